//! Command guard: decides which commands a connection accepts, and which need an echo probe.
//!
//! Invariant: one command gets one reply, and no caller changes the connection of other callers.
//! Enforced by: some commands do not get exactly one reply (`SUBSCRIBE`, `MONITOR`, `REPLCONF`,
//! `CLIENT REPLY`, `SCRIPT DEBUG` …). They are rejected on every connection before a byte is sent,
//! and the error says what to use instead. Commands that change the connection (`SELECT`, `MULTI`
//! …) or block it are accepted only on a dedicated connection. Commands that Redis 7 does not have
//! (of a module, renamed, or of a later version) are accepted and verified; see
//! `core/echo_probe.rs`.

use crate::command_table::{CommandClass, classify, subcommand_has_single_reply};
use crate::core::frame::{AnnouncedLength, header};
use crate::error::RequestError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandGuard {
    /// The connection has many callers.
    Shared,
    /// The connection has one caller at a time. `queuing`: true between `MULTI` and `EXEC`.
    Dedicated { queuing: bool },
}

/// How an accepted command replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardVerdict {
    /// One reply.
    SingleReply,
    /// One reply; the server queues later commands.
    BeginsQueuing,
    /// One reply; the server runs later commands again.
    EndsQueuing,
    /// An unknown number of replies: the request needs an echo probe.
    NeedsProbe,
}

impl CommandGuard {
    /// Checks an encoded command, starting at its first argument.
    #[inline]
    pub(crate) fn check(self, arguments: &[u8]) -> Result<GuardVerdict, RequestError> {
        // Fast path for the most common commands.
        if let [b'$', b'3', b'\r', b'\n', name @ ..] = arguments
            && let Some(b"GET" | b"SET" | b"DEL" | b"TTL") = name.first_chunk::<3>()
        {
            return Ok(GuardVerdict::SingleReply);
        }
        let mut args = EncodedArgs(arguments);
        let name = args.next().unwrap_or_default();
        match classify(name) {
            Some(CommandClass::SingleReply) => Ok(GuardVerdict::SingleReply),
            Some(CommandClass::Guarded) => self.check_guarded(name, args),
            Some(CommandClass::BySubcommand) => self.check_subcommand(name, args.next().unwrap_or_default()),
            None => self.check_unknown(),
        }
    }

    fn check_guarded(self, name: &[u8], mut args: EncodedArgs<'_>) -> Result<GuardVerdict, RequestError> {
        let upper = name.to_ascii_uppercase();
        match (&*upper, self) {
            (b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE", _) => {
                reject("SUBSCRIBE", "RedisClient::subscribe")
            }
            (b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE", _) => {
                reject("UNSUBSCRIBE", "drop the Subscription")
            }
            (b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF", _) => {
                reject("MONITOR, SYNC and REPLCONF", "redis-cli")
            }
            (b"HELLO", _) => reject("HELLO", "Config::protocol"),
            (b"RESET" | b"QUIT", _) => reject("RESET and QUIT", "RedisClient::close"),
            (b"AUTH", CommandGuard::Shared) => reject("AUTH", "Config::username and Config::password"),
            (b"SELECT", CommandGuard::Shared) => reject("SELECT", "Config::db, or RedisClient::dedicated"),
            (b"MULTI" | b"EXEC" | b"DISCARD", CommandGuard::Shared) => {
                reject("MULTI and EXEC", "RedisClient::transaction")
            }
            (b"WATCH" | b"UNWATCH", CommandGuard::Shared) => reject("WATCH", "RedisClient::dedicated"),
            (b"XREAD" | b"XREADGROUP", CommandGuard::Shared) if !blocks(&mut args) => {
                Ok(GuardVerdict::SingleReply)
            }
            (b"XREAD" | b"XREADGROUP", CommandGuard::Shared) => {
                reject("XREAD BLOCK", "RedisClient::dedicated")
            }
            // BLPOP and other blocking commands.
            (_, CommandGuard::Shared) => reject("a blocking command", "RedisClient::dedicated"),
            (b"MULTI", CommandGuard::Dedicated { .. }) => Ok(GuardVerdict::BeginsQueuing),
            (b"EXEC" | b"DISCARD", CommandGuard::Dedicated { .. }) => Ok(GuardVerdict::EndsQueuing),
            (_, CommandGuard::Dedicated { .. }) => Ok(GuardVerdict::SingleReply),
        }
    }

    fn check_subcommand(self, name: &[u8], subcommand: &[u8]) -> Result<GuardVerdict, RequestError> {
        if name.eq_ignore_ascii_case(b"CLIENT") && subcommand.eq_ignore_ascii_case(b"REPLY") {
            return reject("CLIENT REPLY", "drop the future of a request whose reply doesn't matter");
        }
        if name.eq_ignore_ascii_case(b"SCRIPT") && subcommand.eq_ignore_ascii_case(b"DEBUG") {
            return reject("SCRIPT DEBUG", "redis-cli --ldb");
        }
        if subcommand_has_single_reply(name, subcommand) {
            Ok(GuardVerdict::SingleReply)
        } else {
            self.check_unknown()
        }
    }

    fn check_unknown(self) -> Result<GuardVerdict, RequestError> {
        match self {
            // The probe would be queued too, and its reply would be among the results.
            CommandGuard::Dedicated { queuing: true } => {
                reject("a command that Redis 7 doesn't have after MULTI", "DedicatedConnection::transaction")
            }
            CommandGuard::Shared | CommandGuard::Dedicated { queuing: false } => Ok(GuardVerdict::NeedsProbe),
        }
    }
}

fn reject(command: &'static str, instead: &'static str) -> Result<GuardVerdict, RequestError> {
    Err(RequestError::UnsupportedCommand { command, instead })
}

/// Returns true if BLOCK is among the options, which end with STREAMS. GROUP is followed by two
/// names, which may be any word.
fn blocks(args: &mut EncodedArgs<'_>) -> bool {
    while let Some(word) = args.next() {
        match word.to_ascii_uppercase().as_slice() {
            b"BLOCK" => return true,
            b"STREAMS" => return false,
            b"GROUP" => args.by_ref().take(2).for_each(drop),
            _ => {}
        }
    }
    false
}

/// Iterator over the arguments of an encoded command.
pub(crate) struct EncodedArgs<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for EncodedArgs<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let header = header(self.0, 0, b'$').ok()??;
        let AnnouncedLength::Known(length) = header.length else { return None };
        let end = header.end + length as usize;
        let word = self.0.get(header.end..end)?;
        self.0 = self.0.get(end + 2..).unwrap_or_default();
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ArgWriter;
    use crate::command::RedisCommand;
    use crate::command_table::GUARDED;

    const DEDICATED: CommandGuard = CommandGuard::Dedicated { queuing: false };

    fn check(guard: CommandGuard, command: impl RedisCommand) -> Result<GuardVerdict, RequestError> {
        let mut out = Vec::new();
        let arguments = ArgWriter::new(&mut out).unguarded_command(&command);
        guard.check(&out[arguments..])
    }

    #[test]
    fn commands_without_exactly_one_reply_are_rejected_on_every_connection() {
        for guard in [CommandGuard::Shared, DEDICATED, CommandGuard::Dedicated { queuing: true }] {
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
    fn commands_that_change_or_block_a_connection_need_a_dedicated_one() {
        for command in [("BLPOP", "list"), ("WATCH", "key"), ("MULTI", ""), ("select", "1"), ("wait", "1")] {
            assert!(check(CommandGuard::Shared, command).is_err(), "{command:?}");
            assert!(check(DEDICATED, command).is_ok(), "{command:?}");
        }
        let read = ("XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", "$");
        assert!(check(CommandGuard::Shared, read).is_err() && check(DEDICATED, read).is_ok());
        let group_named_block =
            ("XREADGROUP", "GROUP", "block", "BLOCK", "COUNT", 1, "STREAMS", "block", ">");
        assert!(check(CommandGuard::Shared, group_named_block).is_ok());
        let accepted = GUARDED.iter().filter(|name| check(CommandGuard::Shared, (**name, "x")).is_ok());
        assert_eq!(accepted.collect::<Vec<_>>(), [&"XREAD", &"XREADGROUP"]);
    }

    #[test]
    fn other_commands_are_accepted_and_unknown_ones_need_a_probe() {
        for command in [("GET", "SUBSCRIBE"), ("CLIENT", "ID"), ("XREAD", "STREAMS"), ("publish", "MONITOR")]
        {
            assert_eq!(
                check(CommandGuard::Shared, command).ok(),
                Some(GuardVerdict::SingleReply),
                "{command:?}"
            );
        }
        for command in [("JSON.SET", "key"), ("CLIENT", "LATER"), ("DEBUG", "SLEEP"), ("RC", "ACK"), ("", "")]
        {
            assert_eq!(
                check(CommandGuard::Shared, command).ok(),
                Some(GuardVerdict::NeedsProbe),
                "{command:?}"
            );
            assert_eq!(check(DEDICATED, command).ok(), Some(GuardVerdict::NeedsProbe), "{command:?}");
            assert!(check(CommandGuard::Dedicated { queuing: true }, command).is_err(), "{command:?}");
        }
        let error = check(CommandGuard::Shared, ("BLPOP", "secret list")).expect_err("it blocks").to_string();
        assert!(error.contains("RedisClient::dedicated") && !error.contains("secret"), "{error}");
    }
}
