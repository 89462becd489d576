//! One command gets one reply: every command of a real Redis 7, and commands that are not in the
//! client's table.
//!
//! The first tests get the list of commands from the server (`COMMAND`). They fail if a command is
//! missing in `src/command_table.rs`, or replies differently than the table says.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_redis::{
    ConnectionLoss, ExecError, IntoConfig, ProtocolError, RedisClient, ReplyLimits, RequestError,
    RespDecoder, RespValue, State,
};
use forebay_sandbox::Redis;
use futures_util::future::join_all;

use super::support::*;

/// Rejected on every connection, because Redis may send no reply or several.
const REJECTED: [&str; 15] = [
    "client|reply",
    "hello",
    "monitor",
    "psubscribe",
    "psync",
    "punsubscribe",
    "quit",
    "replconf",
    "reset",
    "script|debug",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "sync",
    "unsubscribe",
];
/// Ends the server; tested by `shutdown_loses_the_request_and_the_client_reconnects`.
const DESTRUCTIVE: [&str; 1] = ["shutdown"];
/// Computes for a second.
const SLOW: [&str; 1] = ["pfselftest"];
/// Calls with valid arguments, in addition to the dummy arguments.
const VALID_CALLS: [&str; 12] = [
    "client tracking on",
    "client caching yes",
    "client no-evict on",
    "client kill type replica",
    "client unpause",
    "xread block 1 streams s $",
    "wait 1 1",
    "script flush",
    "select 3",
    "auth default x",
    "failover abort",
    "lolwut version 5",
];

/// A command or subcommand of the server.
struct ServerCommand {
    name: String,
    /// Minimum number of words, including the name.
    min_words: usize,
    blocking: bool,
    /// True if the second word is a subcommand. A call without a known subcommand gets a probe.
    container: bool,
}

fn parse_command(entry: &RespValue) -> Vec<ServerCommand> {
    let RespValue::Array(fields) = entry else { panic!("{entry:?}") };
    let [name, RespValue::Int(arity), flags, .., subcommands] = &fields[..] else { panic!("{entry:?}") };
    let (RespValue::Set(flags) | RespValue::Array(flags)) = flags else { panic!("{flags:?}") };
    let (RespValue::Set(subcommands) | RespValue::Array(subcommands)) = subcommands else {
        panic!("{subcommands:?}")
    };
    let blocking = flags.iter().any(|flag| word(flag) == "blocking");
    let (min_words, container) = (arity.unsigned_abs() as usize, !subcommands.is_empty());
    let own = ServerCommand { name: word(name), min_words, blocking, container };
    std::iter::once(own).chain(subcommands.iter().flat_map(parse_command)).collect()
}

fn word(value: &RespValue) -> String {
    match value {
        RespValue::Bulk(bytes) | RespValue::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}

async fn commands_of(redis: &Redis) -> Vec<ServerCommand> {
    let entries: Vec<RespValue> = connect(redis.url()).await.exec(("COMMAND",)).await.unwrap();
    let commands: Vec<ServerCommand> = entries.iter().flat_map(parse_command).collect();
    assert!(commands.len() > 350, "{} commands", commands.len());
    commands
}

/// Returns calls of the command: without arguments, and with the minimum number of dummy arguments
/// and one more.
fn calls(command: &ServerCommand) -> Vec<Vec<String>> {
    let name: Vec<&str> = command.name.split('|').collect();
    let with = |dummy: &str, more: usize| {
        let dummies = (command.min_words + more).saturating_sub(name.len());
        name.iter().copied().chain(std::iter::repeat_n(dummy, dummies)).map(str::to_owned).collect()
    };
    let bare: Vec<String> = name.iter().map(|&word| word.to_owned()).collect();
    if SLOW.contains(&&*command.name) {
        return vec![bare];
    }
    // A longer timeout would slow the test down.
    let dummies: &[&str] = if command.blocking { &["0.01"] } else { &["1", "key", "0.01"] };
    let mut calls = vec![bare];
    for dummy in dummies {
        calls.extend([with(dummy, 0), with(dummy, 1)]);
    }
    for list in VALID_CALLS {
        let words: Vec<String> = list.split(' ').map(str::to_owned).collect();
        if words.starts_with(&calls[0]) {
            calls.push(words);
        }
    }
    calls
}

fn encode(words: &[String]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    out
}

/// A plain socket with a decoder.
struct RawConnection {
    stream: TcpStream,
    decoder: RespDecoder,
}

impl RawConnection {
    fn connect(redis: &Redis, protocol: &str) -> RawConnection {
        let stream = TcpStream::connect(redis.addr()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut socket = RawConnection { stream, decoder: RespDecoder::new(ReplyLimits::default()) };
        socket.send(&["HELLO".to_owned(), protocol.to_owned()]);
        assert!(socket.reply().is_some(), "HELLO is answered");
        socket
    }

    fn send(&mut self, words: &[String]) {
        self.stream.write_all(&encode(words)).unwrap();
    }

    /// Returns the next reply, or `None` if the server has closed the connection.
    fn reply(&mut self) -> Option<RespValue> {
        loop {
            match self.decoder.next().unwrap() {
                Some(Ok(RespValue::Push(_))) => continue,
                Some(reply) => return Some(reply.unwrap()),
                None => {}
            }
            let mut bytes = [0; 64 << 10];
            let count = self.stream.read(&mut bytes).unwrap();
            if count == 0 {
                return None;
            }
            self.decoder.feed(&bytes[..count]);
        }
    }
}

#[tokio::test]
async fn every_command_of_redis_7_gets_one_reply_on_the_wire() {
    let redis = start();
    let commands = commands_of(&redis).await;
    let mut sent = 0;
    for command in commands
        .iter()
        .filter(|command| !REJECTED.contains(&&*command.name) && !DESTRUCTIVE.contains(&&*command.name))
    {
        for protocol in ["2", "3"] {
            for call in calls(command) {
                let mut socket = RawConnection::connect(&redis, protocol);
                let nonce = format!("nonce {sent}");
                socket.send(&call);
                socket.send(&["PING".to_owned(), nonce.clone()]);
                let first = socket.reply().unwrap_or_else(|| panic!("{call:?} closed the connection"));
                let second = socket.reply().map(|reply| word(&reply));
                let expected = if command.name == "multi" && first == RespValue::Simple("OK".into()) {
                    "QUEUED".to_owned()
                } else {
                    nonce
                };
                assert_eq!(second, Some(expected), "{call:?} was answered by {first:?} in RESP{protocol}");
                sent += 1;
            }
        }
        undo_command(&redis, &command.name);
    }
    assert!(sent > 3_000, "{sent} calls");
}

/// Undoes commands that make the server a replica or pause its clients.
fn undo_command(redis: &Redis, name: &str) {
    if let "replicaof" | "slaveof" | "client|pause" = name {
        let mut socket = RawConnection::connect(redis, "2");
        for words in [&["REPLICAOF", "NO", "ONE"][..], &["CLIENT", "UNPAUSE"]] {
            socket.send(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
            assert_eq!(socket.reply(), Some(RespValue::Simple("OK".into())));
        }
    }
}

fn is_rejected(result: &Result<RespValue, ExecError>) -> bool {
    matches!(result, Err(ExecError::Request(RequestError::UnsupportedCommand { .. })))
}

#[tokio::test]
async fn every_command_of_redis_7_through_the_client_keeps_replies_in_sync() {
    let redis = start();
    let commands = commands_of(&redis).await;
    let client = connect(with(config(redis.url()), |config| config.leave_unfit_server = false)).await;
    let mut own = client.dedicated().await.unwrap();
    let mut refused = BTreeSet::new();
    for command in commands.iter().filter(|command| !DESTRUCTIVE.contains(&&*command.name)) {
        for (number, call) in calls(command).into_iter().enumerate() {
            let nonce = format!("{call:?} {number}");
            let before = client.stats().bytes_sent;
            let result = client.exec::<RespValue>((&call,)).await;
            assert_eq!(client.exec::<String>(("ECHO", &nonce)).await.unwrap(), nonce, "{result:?}");
            let echo = encode(&["ECHO".to_owned(), nonce.clone()]).len() as u64;
            let sent = client.stats().bytes_sent - before - echo;
            // Commands of Redis 7 need no probe. DEBUG does, because its behavior depends on the
            // build.
            let expected = if is_rejected(&result) { 0 } else { encode(&call).len() as u64 };
            let verified = command.name == "debug" || command.container;
            assert!(sent == expected || verified, "{call:?}: {sent} bytes for {expected}");

            let result = own.exec::<RespValue>((&call,)).await;
            if is_rejected(&result) {
                refused.insert(command.name.clone());
            }
            if command.name == "multi" {
                let _not_begun = own.exec::<RespValue>(("DISCARD",)).await;
            }
            assert_eq!(own.exec::<String>(("ECHO", &nonce)).await.unwrap(), nonce, "{result:?}");
        }
        undo_command(&redis, &command.name);
    }
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    assert_eq!(refused, REJECTED);
    assert_eq!((client.stats().connections, client.stats().open_requests), (1, 0));
}

#[tokio::test]
async fn shutdown_loses_the_request_and_the_client_reconnects() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    let error = client.exec::<RespValue>(("SHUTDOWN", "NOSAVE")).await.unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Lost(_))), "{error}");
    redis.kill();
    redis.revive().unwrap();
    wait_for_state(&mut changes, State::Open).await;
    assert_eq!(client.exec::<String>(("ECHO", "in sync")).await.unwrap(), "in sync");
}

/// Starts a server on which such commands have other names, like commands of a module.
fn server_with_renamed_commands() -> Redis {
    ["REPLCONF RC", "SUBSCRIBE MY.SUBSCRIBE", "MONITOR MY.MONITOR", "GET MY.GET"]
        .into_iter()
        .fold(Redis::builder(), |builder, names| builder.config("rename-command", names))
        .start()
        .unwrap()
}

fn is_out_of_sync(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::Lost(ConnectionLoss::Protocol(
            ProtocolError::OutOfSync | ProtocolError::UnexpectedReply
        ))
    )
}

/// Runs `during` while 50 callers request their own numbers. Fails if one of them gets another
/// reply.
async fn with_other_callers(client: &RedisClient, during: impl Future<Output = ()>) {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callers = (0..50).map(|caller| {
        let (client, stopped) = (client.clone(), stopped.clone());
        tokio::spawn(async move {
            let (mut answers, mut round) = (0, 0);
            while !*stopped.borrow() {
                round += 1;
                let own = format!("{caller}:{round}");
                match client.exec::<String>(("ECHO", &own)).await {
                    Ok(echo) => {
                        assert_eq!(echo, own, "reply of another request");
                        answers += 1;
                    }
                    Err(ExecError::Request(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => panic!("reply of another request: {error}"),
                }
            }
            answers
        })
    });
    let callers: Vec<_> = callers.collect();
    during.await;
    stop.send(true).unwrap();
    let answers: Vec<u64> = join_all(callers).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().sum::<u64>() > 100, "{answers:?}");
}

#[tokio::test]
async fn replconf_is_rejected_and_misroutes_no_reply() {
    let redis = start();
    let client = connect(redis.url()).await;
    with_other_callers(&client, async {
        for _ in 0..100 {
            for call in [["REPLCONF", "ACK", "0"], ["replconf", "GETACK", "*"]] {
                assert!(is_rejected(&client.exec((call,)).await), "{call:?}");
                let batch = client.pipeline::<Vec<RespValue>>([(["PING"],), (["REPLCONF"],)]).await;
                assert!(matches!(batch, Err(RequestError::UnsupportedCommand { .. })));
                assert_eq!(client.exec::<String>(("PING",)).await.unwrap(), "PONG");
            }
        }
    })
    .await;
    let mut own = client.dedicated().await.unwrap();
    assert!(is_rejected(&own.exec(("REPLCONF", "ACK", "0")).await));
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_command_without_exactly_one_reply_ends_the_connection_and_misroutes_no_reply() {
    let redis = server_with_renamed_commands();
    for protocol in ["2", "3"] {
        let url = format!("{}?protocol={protocol}", redis.url());
        let client = connect(fast_reconnect(url)).await;
        with_other_callers(&client, async {
            for call in [&["RC", "ACK", "0"][..], &["MY.SUBSCRIBE", "a", "b"], &["MY.MONITOR"]] {
                for _ in 0..5 {
                    let mut changes = status_from_now(&client).await;
                    let error = loop {
                        match client.exec::<RespValue>((call,)).await.unwrap_err() {
                            ExecError::Request(RequestError::Rejected { .. }) => continue,
                            ExecError::Request(error) => break error,
                            error => panic!("{call:?}: {error}"),
                        }
                    };
                    assert!(is_out_of_sync(&error), "{call:?}: {error}");
                    wait_for_state(&mut changes, State::Open).await;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_unknown_command_is_verified_in_pipelines_transactions_and_dedicated_connections() {
    let redis = server_with_renamed_commands();
    let client = connect(fast_reconnect(redis.url())).await;
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    let get = ["MY.GET", "key", ""];
    let get = &get[..2];
    assert_eq!(client.exec::<String>((get,)).await.unwrap(), "value");
    let missing = client.exec::<RespValue>(("NO.SUCH", "key")).await.unwrap_err();
    assert_eq!(missing.server().map(|error| error.code()), Some("ERR"));
    let strlen = &["STRLEN", "key"][..];
    let both = client.pipeline::<Vec<RespValue>>([(get,), (strlen,), (get,)]).await.unwrap();
    let value = RespValue::Bulk("value".into());
    assert_eq!(both, [Ok(value.clone()), Ok(RespValue::Int(5)), Ok(value.clone())]);
    let both = client.transaction::<Vec<RespValue>>([(get,), (strlen,)]).await.unwrap();
    assert_eq!(both, [Ok(value.clone()), Ok(RespValue::Int(5))]);

    let mut own = client.dedicated().await.unwrap();
    assert_eq!(own.exec::<String>((get,)).await.unwrap(), "value");
    own.exec::<()>(("WATCH", "key")).await.unwrap();
    assert_eq!(own.transaction::<Vec<RespValue>>([(get,)]).await.unwrap(), [Ok(value)]);
    // After the caller's own MULTI, the probe would be among the results.
    own.exec::<()>(("MULTI",)).await.unwrap();
    assert!(is_rejected(&own.exec((get,)).await));
    own.exec::<()>(("STRLEN", "key")).await.unwrap();
    assert_eq!(own.exec::<(i64,)>(("EXEC",)).await.unwrap(), (5,));
    assert_eq!(own.exec::<String>((get,)).await.unwrap(), "value");

    let replconf = &["RC", "ACK", "0"][..];
    let error = own.exec::<RespValue>((replconf,)).await.unwrap_err();
    assert!(matches!(&error, ExecError::Request(error) if is_out_of_sync(error)), "{error}");
    assert_eq!(own.exec::<String>(("ECHO", "again")).await.unwrap(), "again");
    let mut changes = status_from_now(&client).await;
    let error = client.pipeline::<Vec<RespValue>>([(strlen,), (replconf,), (strlen,)]).await.unwrap_err();
    assert!(is_out_of_sync(&error), "{error}");
    wait_for_reconnect(&mut changes).await;
    assert_eq!(client.exec::<String>((get,)).await.unwrap(), "value");
}

#[tokio::test]
async fn a_user_without_permission_for_echo_may_run_unknown_commands() {
    let redis = Redis::builder()
        .acl_user("app", "on >secret ~* +@read +@write -echo")
        .config("rename-command", "GET MY.GET")
        .start()
        .unwrap();
    let url = format!("redis://app:secret@127.0.0.1:{}", redis.port());
    let client = connect(url.into_config().unwrap()).await;
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.exec::<String>(("MY.GET", "key")).await.unwrap(), "value");
        let denied = client.exec::<RespValue>(("MY.OWN",)).await.unwrap_err();
        assert_eq!(denied.server().map(|error| error.code()), Some("ERR"), "{denied}");
    }
    assert_eq!(client.stats().connections, 1);
}
