//! Echo probe: an `ECHO` at the end of a request that shows that every command before it had
//! exactly one reply.
//!
//! Invariant: a reply to a command that `command_table.rs` does not list is never taken for the
//! reply to a later request.
//! Enforced by: a request with such a command ends with `ECHO` and a random number, twice. The
//! pipeline completes the request only after the number came back twice, in the right position.
//! Otherwise the connection ends before any later reply is dispatched. One `ECHO` is not enough: a
//! renamed `MONITOR` sends another line after it.
//! Out of scope: two commands of one request that compensate for each other, one without a reply
//! and one with two. They mix up the replies of that request only.

use std::hash::{BuildHasher as _, RandomState};

use super::refusal::{ServerRefusal, error_text};

/// The random number of one request, and how many echoes are still expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoProbe {
    number: u64,
    left: u8,
    /// True if the last reply before the probe was an error.
    after_error: bool,
}

/// Classification of a reply to a request with a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// A reply to one of the request's commands.
    Reply,
    /// The echo, in the right position; another one follows.
    Probe,
    /// The last echo, in the right position.
    Verified,
    /// The echo came too early, or another reply came instead of it.
    OutOfSync,
}

impl EchoProbe {
    /// The probe command. It replies with its argument, also while the server loads data or has
    /// lost its master.
    pub(crate) const COMMAND: &str = "ECHO";

    /// Number of times that the probe is sent.
    pub(crate) const ECHO_COUNT: u8 = 2;

    /// Creates a probe with a number that the author of a stored value can't predict.
    ///
    /// Otherwise a value that equals the next number could pass as the echo. So the number is the
    /// hash of `RandomState`: SipHash with keys from the operating system. `fastrand` would not do:
    /// its later numbers follow from a few earlier ones.
    pub(crate) fn new() -> Self {
        EchoProbe::of(RandomState::new().hash_one(0_u8))
    }

    pub(crate) fn of(number: u64) -> Self {
        EchoProbe { number, left: Self::ECHO_COUNT, after_error: false }
    }

    pub(crate) fn argument(self) -> String {
        format!("{:016x}", self.number)
    }

    /// Classifies a whole reply. `left` is the number of replies that the request's commands still
    /// need.
    pub(crate) fn classify(&mut self, left: u32, reply: &[u8]) -> ProbeVerdict {
        match (left > 0, self.is_echoed_by(reply)) {
            (true, false) => {
                self.after_error = error_text(reply).is_some();
                ProbeVerdict::Reply
            }
            (false, true) => self.count_echo(),
            (true, true) => ProbeVerdict::OutOfSync,
            (false, false) => match error_text(reply) {
                // A server that refuses every command refuses the probe too. The command before may
                // have failed with another error: Redis checks first whether a command exists.
                Some(text) if self.after_error && refuses_everything(text) => self.count_echo(),
                // The user may lack permission for ECHO. Redis names the command in lower case.
                Some(text) if text.starts_with(b"NOPERM ") && names_echo(text) => self.count_echo(),
                Some(_) | None => ProbeVerdict::OutOfSync,
            },
        }
    }

    fn count_echo(&mut self) -> ProbeVerdict {
        self.left -= 1;
        if self.left == 0 { ProbeVerdict::Verified } else { ProbeVerdict::Probe }
    }

    /// Returns true if the reply is the number, or an error that names the number as an argument of
    /// an unknown command (a server without ECHO).
    fn is_echoed_by(self, reply: &[u8]) -> bool {
        let (nonce, text) = (self.argument(), error_text(reply));
        let argument = reply.strip_prefix(b"$16\r\n").and_then(|rest| rest.strip_suffix(b"\r\n"));
        let is_unknown = |text: &[u8]| {
            text.starts_with(b"ERR unknown command") && memchr::memmem::find(text, nonce.as_bytes()).is_some()
        };
        argument == Some(nonce.as_bytes()) || text.is_some_and(is_unknown)
    }
}

fn refuses_everything(text: &[u8]) -> bool {
    use ServerRefusal::{Busy, Loading, MasterDown, NoAuth};
    matches!(ServerRefusal::parse(text), Some(Busy | Loading | MasterDown | NoAuth))
}

fn names_echo(text: &[u8]) -> bool {
    memchr::memmem::find(text, b"'echo' command").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHOED: &[u8] = b"$16\r\n00000000000000ff\r\n";

    #[test]
    fn the_echo_must_come_after_the_replies_and_not_before() {
        let probe = EchoProbe::of(255);
        assert_eq!(probe.argument().len(), 16);
        let classify = |left, reply: &[u8]| EchoProbe::of(255).classify(left, reply);
        assert_eq!(classify(1, ECHOED), ProbeVerdict::OutOfSync, "a command without a reply");
        assert_eq!(classify(1, b"+OK\r\n"), ProbeVerdict::Reply);
        for second in [&b"+OK\r\n"[..], b"$16\r\n00000000000000fe\r\n", b"-ERR no\r\n", b"-BUSY so\r\n"] {
            assert_eq!(classify(0, second), ProbeVerdict::OutOfSync, "a command with two replies");
            let mut begun = probe;
            assert_eq!(begun.classify(0, ECHOED), ProbeVerdict::Probe);
            assert_eq!(
                begun.classify(0, second),
                ProbeVerdict::OutOfSync,
                "a command whose replies never end"
            );
        }
        let mut probe = probe;
        assert_eq!(probe.classify(0, ECHOED), ProbeVerdict::Probe);
        assert_eq!(probe.classify(0, ECHOED), ProbeVerdict::Verified);
    }

    #[test]
    fn a_server_that_refuses_every_command_is_in_sync() {
        let classify = |left, reply: &[u8]| EchoProbe::of(1).classify(left, reply);
        let loading = b"-LOADING Redis is loading the dataset in memory\r\n";
        assert_eq!(classify(0, loading), ProbeVerdict::OutOfSync, "its command was not refused");
        for first in [&loading[..], b"-ERR unknown command 'MY.CMD'\r\n"] {
            let mut probe = EchoProbe::of(1);
            assert_eq!(probe.classify(1, first), ProbeVerdict::Reply);
            assert_eq!(probe.classify(0, loading), ProbeVerdict::Probe);
            assert_eq!(probe.classify(0, b"-ERR no\r\n"), ProbeVerdict::OutOfSync);
        }
        let denied = b"-NOPERM this user has no permissions to run the 'echo' command\r\n";
        assert_eq!(classify(0, denied), ProbeVerdict::Probe);
        assert_eq!(classify(1, denied), ProbeVerdict::Reply);
        let absent = b"-ERR unknown command 'ECHO', with args beginning with: '0000000000000001' \r\n";
        assert_eq!(
            (classify(0, absent), classify(1, absent)),
            (ProbeVerdict::Probe, ProbeVerdict::OutOfSync)
        );
        assert_eq!(
            classify(0, b"-ERR unknown command 'ECHO', with args beginning with: '2' \r\n"),
            ProbeVerdict::OutOfSync
        );
        let another = b"-NOPERM this user has no permissions to run the 'json.set' command\r\n";
        assert_eq!(classify(0, another), ProbeVerdict::OutOfSync);
    }
}
