//! Errors with which a server says "not here" or "not now", and what follows from each.
//!
//! Invariant: every such error has one row in [`Refusal::row`]; the connection, [`ReplyError::retry`](crate::ReplyError::retry)
//! and the README have no list of their own.
//! Enforced by: `tests/it/refusals.rs` gets each error from a real server.

use super::frame::{Framer, Kind, Limits, Step, header};
use crate::error::Retry;

/// An error with which a server refuses a command because of its own state, or because the command belongs elsewhere.
///
/// The command did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// `READONLY`: a write was sent to a replica.
    ReadOnly,
    /// `LOADING`: the server loads its data.
    Loading,
    /// `MASTERDOWN`: a replica has lost its master and may not serve stale data.
    MasterDown,
    /// `CLUSTERDOWN`: the cluster does not cover all slots.
    ClusterDown,
    /// `MISCONF`: the server can't write to its disk, and accepts no writes until it can.
    Misconfigured,
    /// `OOM`: the server has reached `maxmemory` and may evict nothing.
    OutOfMemory,
    /// `BUSY`: a script or function runs for too long.
    Busy,
    /// `NOREPLICAS`: fewer replicas are connected than `min-replicas-to-write`.
    NoReplicas,
    /// `TRYAGAIN`: the keys of a command are in two places while a slot migrates.
    TryAgain,
    /// `UNBLOCKED`: a blocking command was ended because the server became a replica.
    Unblocked,
    /// `MOVED`: the key belongs to another node of the cluster.
    Moved,
    /// `ASK`: the key is on its way to another node of the cluster.
    Ask,
    /// `NOAUTH`: the connection has not logged in.
    NoAuth,
    /// `NOSCRIPT`: the server doesn't have the script; [`Script`](crate::Script) sends its source then.
    NoScript,
}

/// What becomes of a connection on which a refusal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// It goes on.
    Keep,
    /// It ends, unless [`Config::leave_unfit_server`](crate::Config::leave_unfit_server) is off: the next dial may find a
    /// server that can serve.
    Leave,
}

/// One row of the table: code, consequence, whether to try again.
pub(crate) type Row = (&'static str, Consequence, Retry);

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 14] = [
        Refusal::ReadOnly,
        Refusal::Loading,
        Refusal::MasterDown,
        Refusal::ClusterDown,
        Refusal::Misconfigured,
        Refusal::OutOfMemory,
        Refusal::Busy,
        Refusal::NoReplicas,
        Refusal::TryAgain,
        Refusal::Unblocked,
        Refusal::Moved,
        Refusal::Ask,
        Refusal::NoAuth,
        Refusal::NoScript,
    ];

    /// The table. The README's section "Errors of the server" shows it.
    pub(crate) fn row(self) -> Row {
        use Consequence::{Keep, Leave};
        use Retry::{Never, Safe};
        match self {
            Refusal::ReadOnly => ("READONLY", Leave, Safe),
            Refusal::Loading => ("LOADING", Leave, Safe),
            Refusal::MasterDown => ("MASTERDOWN", Leave, Safe),
            Refusal::ClusterDown => ("CLUSTERDOWN", Keep, Safe),
            Refusal::Misconfigured => ("MISCONF", Keep, Safe),
            Refusal::OutOfMemory => ("OOM", Keep, Safe),
            Refusal::Busy => ("BUSY", Keep, Safe),
            Refusal::NoReplicas => ("NOREPLICAS", Keep, Safe),
            Refusal::TryAgain => ("TRYAGAIN", Keep, Safe),
            // Redis closes the connection itself.
            Refusal::Unblocked => ("UNBLOCKED", Keep, Safe),
            // Redirections are not followed, so the same request meets the same answer.
            Refusal::Moved => ("MOVED", Keep, Never),
            Refusal::Ask => ("ASK", Keep, Never),
            Refusal::NoAuth => ("NOAUTH", Keep, Never),
            Refusal::NoScript => ("NOSCRIPT", Keep, Never),
        }
    }

    /// The first word of the server's error.
    pub fn code(self) -> &'static str {
        self.row().0
    }

    /// Whether to try again.
    pub fn retry(self) -> Retry {
        self.row().2
    }

    /// Whether it ends the connection while [`Config::leave_unfit_server`](crate::Config::leave_unfit_server) is on.
    pub fn ends_connection(self) -> bool {
        self.row().1 == Consequence::Leave
    }

    /// Returns the refusal in an error's text, if it is one. Redis before version 7 puts the error of a command inside a
    /// script at the end of its own; `EXEC` says why it discards a transaction in the same way.
    pub(crate) fn of(text: &[u8]) -> Option<Refusal> {
        const DISCARDED: &[u8] = b"EXECABORT Transaction discarded because of: ";
        if let Some(cause) = text.strip_prefix(DISCARDED) {
            return Refusal::of_code(cause);
        }
        if text.starts_with(b"ERR Error running script") {
            let at = memchr::memmem::find(text, b": -")?;
            return Refusal::of_code(&text[at + b": -".len()..]);
        }
        Refusal::of_code(text)
    }

    fn of_code(text: &[u8]) -> Option<Refusal> {
        let code = text.split(|&byte| byte == b' ').next().unwrap_or_default();
        Refusal::ALL.into_iter().find(|refusal| refusal.code().as_bytes() == code)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}

/// The text of a whole reply that is an error: a line, or a string of RESP3.
pub(crate) fn error_text(reply: &[u8]) -> Option<&[u8]> {
    let rest = match reply.split_first()? {
        (b'-', line) => line,
        (b'!', string) => string.get(memchr::memchr(b'\n', string)? + 1..)?,
        _ => return None,
    };
    rest.strip_suffix(b"\r\n")
}

/// Returns the texts of the errors directly inside a whole reply that is an array. `EXEC` answers with such an array: a
/// command that was queued and then refused, such as a script that writes on a replica, has its error there.
pub(crate) fn errors_inside(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let header = if reply.starts_with(b"*") { header(reply, 0, b'*').ok().flatten() } else { None };
    let mut elements = header.map_or(&[][..], |header| &reply[header.end..]);
    std::iter::from_fn(move || {
        loop {
            // The end marker of a streamed array is no frame and ends the loop, too.
            let Ok(Step::Frame(kind, range)) = Framer::new(Limits::NONE).next(elements) else { return None };
            let (element, rest) = elements.split_at(range.end);
            elements = rest;
            if kind == Kind::Error {
                return error_text(element);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_code_and_nothing_else() {
        for refusal in Refusal::ALL {
            let text = format!("{refusal} some words");
            assert_eq!(Refusal::of(text.as_bytes()), Some(refusal));
            assert_eq!(Refusal::of(refusal.code().as_bytes()), Some(refusal));
            assert_eq!(Refusal::of(format!("{refusal}S words").as_bytes()), None);
        }
        for text in [
            "ERR unknown command 'READONLY'",
            "WRONGTYPE no",
            "",
            "readonly x",
            "BUSYGROUP exists",
            "BUSYKEY",
        ] {
            assert_eq!(Refusal::of(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_refusal_inside_a_script_or_a_transaction_is_found() {
        let redis_6 = b"ERR Error running script (call to f_91dc): @user_script:1: @user_script: 1: -READONLY You can't \
                        write against a read only replica.";
        assert_eq!(Refusal::of(redis_6), Some(Refusal::ReadOnly));
        let redis_7 =
            b"READONLY You can't write against a read only replica. script: 91dc, on @user_script:1.";
        assert_eq!(Refusal::of(redis_7), Some(Refusal::ReadOnly));
        let discarded =
            b"EXECABORT Transaction discarded because of: LOADING Redis is loading the dataset in memory";
        assert_eq!(Refusal::of(discarded), Some(Refusal::Loading));
        assert_eq!(Refusal::of(b"EXECABORT Transaction discarded because of previous errors."), None);
        assert_eq!(Refusal::of(b"ERR Error running script (call to f_1): @user_script:1: no READONLY"), None);
    }

    #[test]
    fn the_text_of_an_error_is_found_in_both_spellings() {
        assert_eq!(error_text(b"-BUSY so\r\n"), Some(&b"BUSY so"[..]));
        assert_eq!(error_text(b"!7\r\nBUSY so\r\n"), Some(&b"BUSY so"[..]));
        assert_eq!((error_text(b"+OK\r\n"), error_text(b""), error_text(b"!")), (None, None, None));
    }

    #[test]
    fn errors_are_found_directly_inside_an_array_and_nowhere_else() {
        let found = |reply| errors_inside(reply).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(found(b"*3\r\n:1\r\n-READONLY no\r\n!3\r\nERR\r\n"), [&b"READONLY no"[..], b"ERR"]);
        assert_eq!(found(b"*?\r\n-BUSY so\r\n.\r\n"), [b"BUSY so"]);
        for reply in
            [&b"*1\r\n*1\r\n-BUSY so\r\n"[..], b"*0\r\n", b"*-1\r\n", b"-BUSY so\r\n", b"$8\r\n-BUSY so\r\n"]
        {
            assert_eq!(found(reply), Vec::<Vec<u8>>::new());
        }
    }
}
