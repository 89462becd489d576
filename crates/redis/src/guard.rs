//! Which commands a connection can't take.
//!
//! Invariant: one command gets one reply, and no caller changes the connection under another's feet.
//! Kept by: what answers otherwise (`SUBSCRIBE`, `MONITOR`, `CLIENT REPLY`), what changes the connection (`HELLO`, `SELECT`,
//! `MULTI` …) and what blocks it is refused before a byte of it is sent, with a word on what to use instead. A connection
//! of one's own takes all but those that answer otherwise.

use crate::core::frame::{Length, header};
use crate::error::RequestError;

/// The names below have between so many letters and so many.
const MIN_NAME: usize = "AUTH".len();
const MAX_NAME: usize = "PUNSUBSCRIBE".len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The connection has many callers.
    Shared,
    /// It has one at a time.
    Dedicated,
}

impl Guard {
    /// Looks at an encoded command, from its first argument on.
    #[inline]
    pub(crate) fn check(self, arguments: &[u8]) -> Result<(), RequestError> {
        // `$3\r\n`: the commonest commands are too short to be any of these.
        if let [b'$', b'0'..=b'3', b'\r', ..] = arguments {
            return Ok(());
        }
        self.check_name(arguments)
    }

    fn check_name(self, arguments: &[u8]) -> Result<(), RequestError> {
        let mut words = Words(arguments);
        let name = words.next().unwrap_or_default();
        if !(MIN_NAME..=MAX_NAME).contains(&name.len()) {
            return Ok(());
        }
        let mut upper = [0; MAX_NAME];
        let upper = &mut upper[..name.len()];
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        let refused = |command, instead| Err(RequestError::Unsuitable { command, instead });
        match (&*upper, self) {
            (b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE", _) => refused("SUBSCRIBE", "Client::subscribe"),
            (b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE", _) => {
                refused("UNSUBSCRIBE", "drop the Subscription")
            }
            (b"MONITOR" | b"SYNC" | b"PSYNC", _) => refused("MONITOR and SYNC", "redis-cli"),
            (b"HELLO", _) => refused("HELLO", "Config::protocol"),
            (b"RESET" | b"QUIT", _) => refused("RESET and QUIT", "Client::close"),
            (b"CLIENT", _) if words.next().is_some_and(|word| word.eq_ignore_ascii_case(b"REPLY")) => {
                refused("CLIENT REPLY", "drop the future of a request whose reply doesn't matter")
            }
            (b"AUTH", Guard::Shared) => refused("AUTH", "Config::username and Config::password"),
            (b"SELECT", Guard::Shared) => refused("SELECT", "Config::db, or Client::dedicated"),
            (b"MULTI" | b"EXEC" | b"DISCARD", Guard::Shared) => {
                refused("MULTI and EXEC", "Client::transaction")
            }
            (b"WATCH" | b"UNWATCH", Guard::Shared) => refused("WATCH", "Client::dedicated"),
            (
                b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BLMPOP" | b"BRPOPLPUSH" | b"BZPOPMIN" | b"BZPOPMAX"
                | b"BZMPOP" | b"WAIT" | b"WAITAOF",
                Guard::Shared,
            ) => refused("a blocking command", "Client::dedicated"),
            (b"XREAD" | b"XREADGROUP", Guard::Shared) if blocks(&mut words) => {
                refused("XREAD BLOCK", "Client::dedicated")
            }
            _ => Ok(()),
        }
    }
}

/// Whether BLOCK is among the options, which end with STREAMS. After GROUP come two names, which may be anything.
fn blocks(words: &mut Words<'_>) -> bool {
    while let Some(word) = words.next() {
        match word.to_ascii_uppercase().as_slice() {
            b"BLOCK" => return true,
            b"STREAMS" => return false,
            b"GROUP" => words.by_ref().take(2).for_each(drop),
            _ => {}
        }
    }
    false
}

/// The words of an encoded command.
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let header = header(self.0, 0, b'$').ok()??;
        let Length::Known(length) = header.length else { return None };
        let end = header.end + length as usize;
        let word = self.0.get(header.end..end)?;
        self.0 = self.0.get(end + 2..).unwrap_or_default();
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ArgWriter, Command};

    fn check(guard: Guard, command: impl Command) -> Result<(), RequestError> {
        let mut out = Vec::new();
        let mut writer = ArgWriter::guarded(&mut out, guard);
        writer.command(&command);
        writer.verdict()
    }

    #[test]
    fn what_answers_otherwise_is_refused_everywhere() {
        for guard in [Guard::Shared, Guard::Dedicated] {
            for name in
                ["SUBSCRIBE", "psubscribe", "Ssubscribe", "UNSUBSCRIBE", "MONITOR", "HELLO", "RESET", "quit"]
            {
                assert!(check(guard, (name, "x")).is_err(), "{name}");
            }
            assert!(check(guard, ("CLIENT", "reply", "OFF")).is_err());
        }
    }

    #[test]
    fn what_concerns_only_its_caller_is_for_connections_of_ones_own() {
        for command in [("BLPOP", "list"), ("WATCH", "key"), ("MULTI", ""), ("select", "1"), ("wait", "1")] {
            assert!(check(Guard::Shared, command).is_err(), "{command:?}");
            assert!(check(Guard::Dedicated, command).is_ok(), "{command:?}");
        }
        let read = ("XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", "$");
        assert!(check(Guard::Shared, read).is_err() && check(Guard::Dedicated, read).is_ok());
        let named_so = ("XREADGROUP", "GROUP", "block", "BLOCK", "COUNT", 1, "STREAMS", "block", ">");
        assert!(check(Guard::Shared, named_so).is_ok());
    }

    #[test]
    fn everything_else_passes() {
        for command in
            [("GET", "SUBSCRIBE"), ("CLIENT", "ID"), ("XREAD", "STREAMS"), ("PUBLISH", "MONITOR"), ("", "")]
        {
            assert!(check(Guard::Shared, command).is_ok(), "{command:?}");
        }
        let error = check(Guard::Shared, ("BLPOP", "secret list")).expect_err("it blocks").to_string();
        assert!(error.contains("Client::dedicated") && !error.contains("secret"), "{error}");
    }
}
