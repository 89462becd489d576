//! Refusals: server errors after which the command did not run, and what the client does for each.
//!
//! Invariant: every such error has one row in [`ServerRefusal::row`]. The connection,
//! [`ReplyError::retry`](crate::ReplyError::retry) and the README have no list of their own.
//! Enforced by: `tests/it/refusals.rs` gets each error from a real server.

use super::frame::{FrameKind, FrameStep, Framer, ReplyLimits, header};
use crate::error::Retry;

/// Server error that refuses a command because of the server's state, or because the key is on
/// another node.
///
/// The command did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerRefusal {
    /// `READONLY`: a write was sent to a replica.
    ReadOnly,
    /// `LOADING`: the server is loading its data.
    Loading,
    /// `MASTERDOWN`: a replica has lost its master and must not serve stale data.
    MasterDown,
    /// `CLUSTERDOWN`: the cluster does not cover all slots.
    ClusterDown,
    /// `MISCONF`: the server cannot write to its disk and rejects writes until it can.
    Misconfigured,
    /// `OOM`: the server has reached `maxmemory` and cannot evict anything.
    OutOfMemory,
    /// `BUSY`: a script or function has been running for too long.
    Busy,
    /// `NOREPLICAS`: fewer replicas are connected than `min-replicas-to-write`.
    NoReplicas,
    /// `TRYAGAIN`: the keys of a command are on two nodes while a slot migrates.
    TryAgain,
    /// `UNBLOCKED`: a blocking command was ended because the server became a replica.
    Unblocked,
    /// `MOVED`: the key belongs to another node of the cluster.
    Moved,
    /// `ASK`: the key is migrating to another node of the cluster.
    Ask,
    /// `NOAUTH`: the connection is not authenticated.
    NoAuth,
    /// `NOSCRIPT`: the server does not have the script; [`LuaScript`](crate::LuaScript) then sends
    /// its source.
    NoScript,
}

/// What happens to a connection that received a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// The connection stays open.
    Keep,
    /// The connection ends, unless
    /// [`Config::leave_unfit_server`](crate::Config::leave_unfit_server) is off. The next dial may
    /// reach a server that can serve.
    Close,
}

/// One row of the table: error code, action, whether to retry.
pub(crate) type RefusalRow = (&'static str, ConnectionAction, Retry);

impl ServerRefusal {
    /// All refusals.
    pub const ALL: [ServerRefusal; 14] = [
        ServerRefusal::ReadOnly,
        ServerRefusal::Loading,
        ServerRefusal::MasterDown,
        ServerRefusal::ClusterDown,
        ServerRefusal::Misconfigured,
        ServerRefusal::OutOfMemory,
        ServerRefusal::Busy,
        ServerRefusal::NoReplicas,
        ServerRefusal::TryAgain,
        ServerRefusal::Unblocked,
        ServerRefusal::Moved,
        ServerRefusal::Ask,
        ServerRefusal::NoAuth,
        ServerRefusal::NoScript,
    ];

    /// Returns the table row. The README's section "Errors of the server" shows the same table.
    pub(crate) fn row(self) -> RefusalRow {
        use ConnectionAction::{Close, Keep};
        use Retry::{Never, Safe};
        match self {
            ServerRefusal::ReadOnly => ("READONLY", Close, Safe),
            ServerRefusal::Loading => ("LOADING", Close, Safe),
            ServerRefusal::MasterDown => ("MASTERDOWN", Close, Safe),
            ServerRefusal::ClusterDown => ("CLUSTERDOWN", Keep, Safe),
            ServerRefusal::Misconfigured => ("MISCONF", Keep, Safe),
            ServerRefusal::OutOfMemory => ("OOM", Keep, Safe),
            ServerRefusal::Busy => ("BUSY", Keep, Safe),
            ServerRefusal::NoReplicas => ("NOREPLICAS", Keep, Safe),
            ServerRefusal::TryAgain => ("TRYAGAIN", Keep, Safe),
            // Redis closes the connection itself.
            ServerRefusal::Unblocked => ("UNBLOCKED", Keep, Safe),
            // Redirections are not followed, so the same request would get the same error.
            ServerRefusal::Moved => ("MOVED", Keep, Never),
            ServerRefusal::Ask => ("ASK", Keep, Never),
            ServerRefusal::NoAuth => ("NOAUTH", Keep, Never),
            ServerRefusal::NoScript => ("NOSCRIPT", Keep, Never),
        }
    }

    /// Returns the first word of the server's error.
    pub fn code(self) -> &'static str {
        self.row().0
    }

    /// Returns whether to retry the request.
    pub fn retry(self) -> Retry {
        self.row().2
    }

    /// Returns true if this refusal ends the connection while
    /// [`Config::leave_unfit_server`](crate::Config::leave_unfit_server) is on.
    pub fn ends_connection(self) -> bool {
        self.row().1 == ConnectionAction::Close
    }

    /// Parses the refusal in an error's text.
    ///
    /// Redis before version 7 appends the error of a command inside a script to the script's error.
    /// `EXEC` appends the reason for which it discarded a transaction.
    pub(crate) fn parse(text: &[u8]) -> Option<ServerRefusal> {
        const DISCARDED: &[u8] = b"EXECABORT Transaction discarded because of: ";
        if let Some(cause) = text.strip_prefix(DISCARDED) {
            return ServerRefusal::parse_code(cause);
        }
        if text.starts_with(b"ERR Error running script") {
            let at = memchr::memmem::find(text, b": -")?;
            return ServerRefusal::parse_code(&text[at + b": -".len()..]);
        }
        ServerRefusal::parse_code(text)
    }

    fn parse_code(text: &[u8]) -> Option<ServerRefusal> {
        let code = text.split(|&byte| byte == b' ').next().unwrap_or_default();
        ServerRefusal::ALL.into_iter().find(|refusal| refusal.code().as_bytes() == code)
    }
}

impl std::fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}

/// Returns the text of an error reply: a line, or a bulk error of RESP3.
pub(crate) fn error_text(reply: &[u8]) -> Option<&[u8]> {
    let rest = match reply.split_first()? {
        (b'-', line) => line,
        (b'!', string) => string.get(memchr::memchr(b'\n', string)? + 1..)?,
        _ => return None,
    };
    rest.strip_suffix(b"\r\n")
}

/// Returns the texts of the errors directly inside an array reply.
///
/// `EXEC` replies with such an array. It holds the errors of commands that were queued and then
/// refused, such as a script that writes on a replica.
pub(crate) fn errors_inside(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let header = if reply.starts_with(b"*") { header(reply, 0, b'*').ok().flatten() } else { None };
    let mut elements = header.map_or(&[][..], |header| &reply[header.end..]);
    std::iter::from_fn(move || {
        loop {
            // The end marker of a streamed array is not a frame, so it ends the loop too.
            let Ok(FrameStep::Frame(kind, range)) = Framer::new(ReplyLimits::NONE).next(elements) else {
                return None;
            };
            let (element, rest) = elements.split_at(range.end);
            elements = rest;
            if kind == FrameKind::Error {
                return error_text(element);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_recognized_only_by_its_code() {
        for refusal in ServerRefusal::ALL {
            let text = format!("{refusal} some text");
            assert_eq!(ServerRefusal::parse(text.as_bytes()), Some(refusal));
            assert_eq!(ServerRefusal::parse(refusal.code().as_bytes()), Some(refusal));
            assert_eq!(ServerRefusal::parse(format!("{refusal}S text").as_bytes()), None);
        }
        for text in [
            "ERR unknown command 'READONLY'",
            "WRONGTYPE no",
            "",
            "readonly x",
            "BUSYGROUP exists",
            "BUSYKEY",
        ] {
            assert_eq!(ServerRefusal::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_refusal_inside_a_script_or_a_transaction_is_found() {
        let redis_6 = b"ERR Error running script (call to f_91dc): @user_script:1: @user_script: 1: -READONLY You can't \
                        write against a read only replica.";
        assert_eq!(ServerRefusal::parse(redis_6), Some(ServerRefusal::ReadOnly));
        let redis_7 =
            b"READONLY You can't write against a read only replica. script: 91dc, on @user_script:1.";
        assert_eq!(ServerRefusal::parse(redis_7), Some(ServerRefusal::ReadOnly));
        let discarded =
            b"EXECABORT Transaction discarded because of: LOADING Redis is loading the dataset in memory";
        assert_eq!(ServerRefusal::parse(discarded), Some(ServerRefusal::Loading));
        assert_eq!(
            ServerRefusal::parse(b"EXECABORT Transaction discarded because of previous errors."),
            None
        );
        assert_eq!(
            ServerRefusal::parse(b"ERR Error running script (call to f_1): @user_script:1: no READONLY"),
            None
        );
    }

    #[test]
    fn the_text_of_an_error_is_found_in_both_encodings() {
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
