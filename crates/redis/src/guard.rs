//! Which commands a connection can't take, and which need verification.
//!
//! Invariant: one command gets one reply, and no caller changes the connection under another's feet.
//! Kept by: a command that answers otherwise (`SUBSCRIBE`, `MONITOR`, `REPLCONF`, `CLIENT REPLY`, `SCRIPT DEBUG` …), changes
//! the connection (`HELLO`, `SELECT`, `MULTI` …) or blocks it is refused before a byte of it is sent, with a word on what to
//! use instead. A connection of one's own takes all but those that answer otherwise. A command that Redis 7 doesn't have
//! (of a module, renamed, or of a later version) is let through and verified; see `core/sentinel.rs`.

use crate::core::frame::{Length, header};
use crate::error::RequestError;
use crate::known::{Answers, answers, subcommand_answers_once};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The connection has many callers.
    Shared,
    /// It has one at a time. `queuing`: its caller has sent `MULTI` and not yet `EXEC`.
    Dedicated { queuing: bool },
}

/// How a command that is let through will answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// With one reply.
    Once,
    /// With one reply, and from then on commands are queued.
    BeginsQueuing,
    /// With one reply, and from then on commands are run again.
    EndsQueuing,
    /// With an unknown number of replies: the request must be verified.
    Unverified,
}

impl Guard {
    /// Looks at an encoded command, from its first argument on.
    #[inline]
    pub(crate) fn check(self, arguments: &[u8]) -> Result<Passed, RequestError> {
        // The commonest commands of all.
        if let [b'$', b'3', b'\r', b'\n', name @ ..] = arguments
            && let Some(b"GET" | b"SET" | b"DEL" | b"TTL") = name.first_chunk::<3>()
        {
            return Ok(Passed::Once);
        }
        let mut words = Words(arguments);
        let name = words.next().unwrap_or_default();
        match answers(name) {
            Some(Answers::Once) => Ok(Passed::Once),
            Some(Answers::Guarded) => self.check_guarded(name, words),
            Some(Answers::BySubcommand) => self.check_subcommand(name, words.next().unwrap_or_default()),
            None => self.unknown(),
        }
    }

    fn check_guarded(self, name: &[u8], mut words: Words<'_>) -> Result<Passed, RequestError> {
        let upper = name.to_ascii_uppercase();
        match (&*upper, self) {
            (b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE", _) => refused("SUBSCRIBE", "Client::subscribe"),
            (b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE", _) => {
                refused("UNSUBSCRIBE", "drop the Subscription")
            }
            (b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF", _) => {
                refused("MONITOR, SYNC and REPLCONF", "redis-cli")
            }
            (b"HELLO", _) => refused("HELLO", "Config::protocol"),
            (b"RESET" | b"QUIT", _) => refused("RESET and QUIT", "Client::close"),
            (b"AUTH", Guard::Shared) => refused("AUTH", "Config::username and Config::password"),
            (b"SELECT", Guard::Shared) => refused("SELECT", "Config::db, or Client::dedicated"),
            (b"MULTI" | b"EXEC" | b"DISCARD", Guard::Shared) => {
                refused("MULTI and EXEC", "Client::transaction")
            }
            (b"WATCH" | b"UNWATCH", Guard::Shared) => refused("WATCH", "Client::dedicated"),
            (b"XREAD" | b"XREADGROUP", Guard::Shared) if !blocks(&mut words) => Ok(Passed::Once),
            (b"XREAD" | b"XREADGROUP", Guard::Shared) => refused("XREAD BLOCK", "Client::dedicated"),
            // BLPOP and the like.
            (_, Guard::Shared) => refused("a blocking command", "Client::dedicated"),
            (b"MULTI", Guard::Dedicated { .. }) => Ok(Passed::BeginsQueuing),
            (b"EXEC" | b"DISCARD", Guard::Dedicated { .. }) => Ok(Passed::EndsQueuing),
            (_, Guard::Dedicated { .. }) => Ok(Passed::Once),
        }
    }

    fn check_subcommand(self, name: &[u8], subcommand: &[u8]) -> Result<Passed, RequestError> {
        if name.eq_ignore_ascii_case(b"CLIENT") && subcommand.eq_ignore_ascii_case(b"REPLY") {
            return refused("CLIENT REPLY", "drop the future of a request whose reply doesn't matter");
        }
        if name.eq_ignore_ascii_case(b"SCRIPT") && subcommand.eq_ignore_ascii_case(b"DEBUG") {
            return refused("SCRIPT DEBUG", "redis-cli --ldb");
        }
        if subcommand_answers_once(name, subcommand) { Ok(Passed::Once) } else { self.unknown() }
    }

    fn unknown(self) -> Result<Passed, RequestError> {
        match self {
            // What verifies it would be queued, too, and come back among the results.
            Guard::Dedicated { queuing: true } => {
                refused("a command that Redis 7 doesn't have after MULTI", "Dedicated::transaction")
            }
            Guard::Shared | Guard::Dedicated { queuing: false } => Ok(Passed::Unverified),
        }
    }
}

fn refused(command: &'static str, instead: &'static str) -> Result<Passed, RequestError> {
    Err(RequestError::Unsuitable { command, instead })
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
    use crate::known::GUARDED;

    const DEDICATED: Guard = Guard::Dedicated { queuing: false };

    fn check(guard: Guard, command: impl Command) -> Result<Passed, RequestError> {
        let mut out = Vec::new();
        let arguments = ArgWriter::new(&mut out).own_command(&command);
        guard.check(&out[arguments..])
    }

    #[test]
    fn what_answers_otherwise_is_refused_everywhere() {
        for guard in [Guard::Shared, DEDICATED, Guard::Dedicated { queuing: true }] {
            for name in
                ["SUBSCRIBE", "psubscribe", "Ssubscribe", "UNSUBSCRIBE", "MONITOR", "HELLO", "RESET", "quit"]
            {
                assert!(check(guard, (name, "x")).is_err(), "{name}");
            }
            for command in [("REPLCONF", "ACK"), ("replconf", "GETACK"), ("SYNC", ""), ("PSYNC", "?")] {
                assert!(check(guard, command).is_err(), "{command:?}");
            }
            assert!(check(guard, ("CLIENT", "reply", "OFF")).is_err());
            assert!(check(guard, ("Script", "Debug", "YES")).is_err());
        }
    }

    #[test]
    fn what_concerns_only_its_caller_is_for_connections_of_ones_own() {
        for command in [("BLPOP", "list"), ("WATCH", "key"), ("MULTI", ""), ("select", "1"), ("wait", "1")] {
            assert!(check(Guard::Shared, command).is_err(), "{command:?}");
            assert!(check(DEDICATED, command).is_ok(), "{command:?}");
        }
        let read = ("XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", "$");
        assert!(check(Guard::Shared, read).is_err() && check(DEDICATED, read).is_ok());
        let named_so = ("XREADGROUP", "GROUP", "block", "BLOCK", "COUNT", 1, "STREAMS", "block", ">");
        assert!(check(Guard::Shared, named_so).is_ok());
        let passed = GUARDED.iter().filter(|name| check(Guard::Shared, (**name, "x")).is_ok());
        assert_eq!(passed.collect::<Vec<_>>(), [&"XREAD", &"XREADGROUP"]);
    }

    #[test]
    fn everything_else_passes_and_what_is_unknown_is_verified() {
        for command in [("GET", "SUBSCRIBE"), ("CLIENT", "ID"), ("XREAD", "STREAMS"), ("publish", "MONITOR")]
        {
            assert_eq!(check(Guard::Shared, command).ok(), Some(Passed::Once), "{command:?}");
        }
        for command in [("JSON.SET", "key"), ("CLIENT", "LATER"), ("DEBUG", "SLEEP"), ("RC", "ACK"), ("", "")]
        {
            assert_eq!(check(Guard::Shared, command).ok(), Some(Passed::Unverified), "{command:?}");
            assert_eq!(check(DEDICATED, command).ok(), Some(Passed::Unverified), "{command:?}");
            assert!(check(Guard::Dedicated { queuing: true }, command).is_err(), "{command:?}");
        }
        let error = check(Guard::Shared, ("BLPOP", "secret list")).expect_err("it blocks").to_string();
        assert!(error.contains("Client::dedicated") && !error.contains("secret"), "{error}");
    }
}
