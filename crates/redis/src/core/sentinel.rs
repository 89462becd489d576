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
        Sentinel { number, left: Self::TIMES }
    }

    pub(crate) fn argument(self) -> String {
        format!("{:016x}", self.number)
    }

    /// Judges a whole reply. `left` replies of the request's commands are still to come; `refused` is why the server refused
    /// the last one, if it did.
    pub(crate) fn judge(&mut self, left: u32, refused: Option<Refusal>, reply: &[u8]) -> Judged {
        match (left > 0, self.is_answered_by(reply)) {
            (true, false) => Judged::Reply,
            (false, true) => self.came_back(),
            (true, true) => Judged::OutOfStep,
            (false, false) => match error_text(reply) {
                // A server that refuses all commands refuses this one, too.
                Some(text) if refused.is_some() && Refusal::of(text) == refused => self.came_back(),
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

    fn is_answered_by(self, reply: &[u8]) -> bool {
        let argument = reply.strip_prefix(b"$16\r\n").and_then(|rest| rest.strip_suffix(b"\r\n"));
        argument == Some(self.argument().as_bytes())
    }
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
        let judge = |left, reply| Sentinel::of(255).judge(left, None, reply);
        assert_eq!(judge(1, ECHOED), Judged::OutOfStep, "a command without a reply");
        assert_eq!(judge(1, b"+OK\r\n"), Judged::Reply);
        for second in [&b"+OK\r\n"[..], b"$16\r\n00000000000000fe\r\n", b"-ERR no\r\n", b"-BUSY so\r\n"] {
            assert_eq!(judge(0, second), Judged::OutOfStep, "a command with two replies");
            let mut begun = sentinel;
            assert_eq!(begun.judge(0, None, ECHOED), Judged::Sentinel);
            assert_eq!(begun.judge(0, None, second), Judged::OutOfStep, "a command whose replies never end");
        }
        let mut sentinel = sentinel;
        assert_eq!(sentinel.judge(0, None, ECHOED), Judged::Sentinel);
        assert_eq!(sentinel.judge(0, None, ECHOED), Judged::Verified);
    }

    #[test]
    fn a_server_that_refuses_both_has_answered_both() {
        let judge = |left, refused, reply: &[u8]| Sentinel::of(1).judge(left, refused, reply);
        let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
        assert_eq!(judge(0, Some(Refusal::Loading), loading), Judged::Sentinel);
        assert_eq!(judge(0, Some(Refusal::Busy), loading), Judged::OutOfStep);
        let denied = b"-NOPERM this user has no permissions to run the 'echo' command\r\n";
        assert_eq!(judge(0, None, denied), Judged::Sentinel);
        assert_eq!(judge(1, None, denied), Judged::Reply);
        let another = b"-NOPERM this user has no permissions to run the 'json.set' command\r\n";
        assert_eq!(judge(0, None, another), Judged::OutOfStep);
    }
}
