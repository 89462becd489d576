//! Sentinel: a command at the end of a request whose reply shows that every command before it had exactly one reply.
//!
//! Invariant: no reply to a command of an unknown kind is taken for the reply to a later request.
//! Kept by: a request with a command that `known.rs` doesn't list ends with `ECHO` and a random number, twice. The pipeline
//! hands out its replies only when that number has come back twice, where it should; otherwise the connection ends before a
//! later reply is handed out. Twice, because a `MONITOR` under another name sends a line after the first.
//! Out of scope: two commands of one request that make up for each other, one without a reply and one with two. They mix
//! up the replies of that request only.

use super::backoff::Dice;
use super::refusal::{Refusal, error_text};

/// The random number of one request, and how often it must still come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentinel {
    number: u64,
    left: u8,
    /// The last reply before it was an error.
    after_error: bool,
}

/// What a reply to a request with a sentinel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// A reply to one of its commands.
    Reply,
    /// The reply to the sentinel, where it should be; another follows.
    Sentinel,
    /// Likewise, the last one.
    Verified,
    /// Too early, or another reply in its place.
    OutOfStep,
}

impl Sentinel {
    /// Answers with its argument, also while the server loads its data or has lost its master.
    pub(crate) const COMMAND: &str = "ECHO";

    /// How often it is sent.
    pub(crate) const TIMES: u8 = 2;

    pub(crate) fn new() -> Self {
        Sentinel::of(Dice::random().roll())
    }

    pub(crate) fn of(number: u64) -> Self {
        Sentinel { number, left: Self::TIMES, after_error: false }
    }

    pub(crate) fn argument(self) -> String {
        format!("{:016x}", self.number)
    }

    /// Judges a whole reply. `left` replies of the request's commands are still to come.
    pub(crate) fn judge(&mut self, left: u32, reply: &[u8]) -> Judged {
        match (left > 0, self.is_answered_by(reply)) {
            (true, false) => {
                self.after_error = error_text(reply).is_some();
                Judged::Reply
            }
            (false, true) => self.came_back(),
            (true, true) => Judged::OutOfStep,
            (false, false) => match error_text(reply) {
                // A server that refuses every command refuses this one, too. It may have another error for the command
                // before: that a command doesn't exist is found out first.
                Some(text) if self.after_error && refuses_everything(text) => self.came_back(),
                // A user may be allowed to run less than this. Redis names the command in lower case.
                Some(text) if text.starts_with(b"NOPERM ") && names_echo(text) => self.came_back(),
                Some(_) | None => Judged::OutOfStep,
            },
        }
    }

    fn came_back(&mut self) -> Judged {
        self.left -= 1;
        if self.left == 0 { Judged::Verified } else { Judged::Sentinel }
    }

    /// By the nonce itself, or, of a server without ECHO, by an error that names the nonce as the command's argument.
    fn is_answered_by(self, reply: &[u8]) -> bool {
        let (nonce, text) = (self.argument(), error_text(reply));
        let argument = reply.strip_prefix(b"$16\r\n").and_then(|rest| rest.strip_suffix(b"\r\n"));
        let is_unknown = |text: &[u8]| {
            text.starts_with(b"ERR unknown command") && memchr::memmem::find(text, nonce.as_bytes()).is_some()
        };
        argument == Some(nonce.as_bytes()) || text.is_some_and(is_unknown)
    }
}

fn refuses_everything(text: &[u8]) -> bool {
    use Refusal::{Busy, Loading, MasterDown, NoAuth};
    matches!(Refusal::of(text), Some(Busy | Loading | MasterDown | NoAuth))
}

fn names_echo(text: &[u8]) -> bool {
    memchr::memmem::find(text, b"'echo' command").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHOED: &[u8] = b"$16\r\n00000000000000ff\r\n";

    #[test]
    fn the_number_must_come_back_after_the_replies_and_not_before() {
        let sentinel = Sentinel::of(255);
        assert_eq!(sentinel.argument().len(), 16);
        let judge = |left, reply: &[u8]| Sentinel::of(255).judge(left, reply);
        assert_eq!(judge(1, ECHOED), Judged::OutOfStep, "a command without a reply");
        assert_eq!(judge(1, b"+OK\r\n"), Judged::Reply);
        for second in [&b"+OK\r\n"[..], b"$16\r\n00000000000000fe\r\n", b"-ERR no\r\n", b"-BUSY so\r\n"] {
            assert_eq!(judge(0, second), Judged::OutOfStep, "a command with two replies");
            let mut begun = sentinel;
            assert_eq!(begun.judge(0, ECHOED), Judged::Sentinel);
            assert_eq!(begun.judge(0, second), Judged::OutOfStep, "a command whose replies never end");
        }
        let mut sentinel = sentinel;
        assert_eq!(sentinel.judge(0, ECHOED), Judged::Sentinel);
        assert_eq!(sentinel.judge(0, ECHOED), Judged::Verified);
    }

    #[test]
    fn a_server_that_refuses_both_has_answered_both() {
        let judge = |left, reply: &[u8]| Sentinel::of(1).judge(left, reply);
        let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
        assert_eq!(judge(0, loading), Judged::OutOfStep, "its command was not refused");
        for first in [&loading[..], b"-ERR unknown command 'MY.CMD'\r\n"] {
            let mut sentinel = Sentinel::of(1);
            assert_eq!(sentinel.judge(1, first), Judged::Reply);
            assert_eq!(sentinel.judge(0, loading), Judged::Sentinel);
            assert_eq!(sentinel.judge(0, b"-ERR no\r\n"), Judged::OutOfStep);
        }
        let denied = b"-NOPERM this user has no permissions to run the 'echo' command\r\n";
        assert_eq!(judge(0, denied), Judged::Sentinel);
        assert_eq!(judge(1, denied), Judged::Reply);
        let absent = b"-ERR unknown command 'ECHO', with args beginning with: '0000000000000001' \r\n";
        assert_eq!((judge(0, absent), judge(1, absent)), (Judged::Sentinel, Judged::OutOfStep));
        assert_eq!(
            judge(0, b"-ERR unknown command 'ECHO', with args beginning with: '2' \r\n"),
            Judged::OutOfStep
        );
        let another = b"-NOPERM this user has no permissions to run the 'json.set' command\r\n";
        assert_eq!(judge(0, another), Judged::OutOfStep);
    }
}
