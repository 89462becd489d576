//! Features on a working connection: commands, pipelines, transactions, scripts, scans, blocking
//! calls.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_redis::{
    ArgWriter, ExecError, FromReply, LuaScript, RedisClient, ReplyError, ReplyReader, RequestError, Retry,
    ScanCommand, ToArgs, cmd,
};
use forebay_testkit::Direction;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::support::*;

fn code(error: &ExecError) -> Option<&str> {
    error.server().map(|error| error.code())
}

/// Waits until this many connections are blocked.
async fn wait_until_blocked(admin: &RedisClient, count: usize) {
    eventually("connections are blocked", true, async || {
        let info: String = admin.exec(("INFO", "clients")).await.unwrap();
        info.contains(&format!("blocked_clients:{count}\r"))
    })
    .await;
}

#[tokio::test]
async fn a_command_is_a_tuple_or_built_at_run_time() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("SET", "key", "value", "EX", 100, None::<&str>)).await.unwrap();
    let value: String = client.exec(("GET", "key")).await.unwrap();
    let ttl: i64 = client.exec(cmd("TTL").arg("key")).await.unwrap();
    assert!(value == "value" && (1..=100).contains(&ttl));
    let added: i64 =
        client.exec(("SADD", "set", ["a", "b"], vec!["c"], &BTreeSet::from(["d"]))).await.unwrap();
    assert_eq!(added, 4);
    let missing: Option<Bytes> = client.exec(("GET", "none")).await.unwrap();
    assert_eq!(missing, None);
}

#[tokio::test]
async fn a_pipeline_is_a_tuple_or_a_list_and_each_result_is_separate() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("SET", "text", "abc")).await.unwrap();
    let (number, wrong_type, mismatch, text) = client
        .pipeline::<(i64, i64, i64, String)>((
            ("INCR", "n"),
            ("LLEN", "text"),
            ("GET", "text"),
            cmd("GET").arg("text"),
        ))
        .await
        .unwrap();
    assert_eq!((number, text), (Ok(1), Ok("abc".into())));
    assert!(
        matches!(&wrong_type, Err(ReplyError::Server(error)) if error.code() == "WRONGTYPE"),
        "{wrong_type:?}"
    );
    assert!(matches!(mismatch, Err(ReplyError::Mismatch(_))), "{mismatch:?}");

    let keys = ["text", "n", "none"];
    let expected: Vec<Result<Option<String>, _>> =
        vec![Ok(Some("abc".into())), Ok(Some("1".into())), Ok(None)];
    let array = keys.map(|key| ("GET", key));
    assert_eq!(client.pipeline::<Vec<_>>(array).await.unwrap(), expected);
    assert_eq!(client.pipeline::<Vec<_>>(array.to_vec()).await.unwrap(), expected);
    assert_eq!(client.pipeline::<Vec<_>>(&array[..]).await.unwrap(), expected);
    assert_eq!(client.pipeline::<Vec<_>>(&array[1..]).await.unwrap(), expected[1..]);
}

#[tokio::test]
async fn an_empty_pipeline_sends_nothing() {
    let redis = start();
    let client = connect(redis.url()).await;
    let none: [(&str, &str); 0] = [];
    assert!(client.pipeline::<Vec<String>>(none).await.unwrap().is_empty());
    assert!(client.transaction::<Vec<String>>(none).await.unwrap().is_empty());
    assert_eq!((client.stats().requests, client.stats().bytes_sent), (0, 0));
}

#[tokio::test]
async fn a_pipeline_of_100_000_commands_gets_its_replies_in_order() {
    let redis = start();
    let client = connect(redis.url()).await;
    let commands: Vec<_> = (0..100_000).map(|n| ("ECHO", n)).collect();
    let echoes = client.pipeline::<Vec<u32>>(&commands).within(TEST_TIMEOUT).await.unwrap();
    assert!(echoes.into_iter().map(Result::unwrap).eq(0..100_000));
}

#[tokio::test]
async fn a_transaction_gives_each_commands_result() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("SET", "text", "abc")).await.unwrap();
    let (left, wrong, right) = client
        .transaction::<(i64, i64, i64)>((("DECR", "a"), ("INCR", "text"), ("INCR", "b")))
        .await
        .unwrap();
    assert_eq!((left, right), (Ok(-1), Ok(1)), "an error while it runs does not stop the other commands");
    assert!(wrong.unwrap_err().to_string().contains("not an integer"));
    let list = client.transaction::<Vec<i64>>(vec![("INCR", "a"); 3]).await.unwrap();
    assert_eq!(list, [Ok(0), Ok(1), Ok(2)]);
}

#[tokio::test]
async fn a_transaction_that_is_refused_runs_nothing_and_gives_the_first_refusal() {
    let redis = start();
    let client = connect(redis.url()).await;
    let commands = [cmd("INCR").arg("n"), cmd("NOSUCHCOMMAND"), cmd("GET"), cmd("INCR").arg("n")];
    let error = client.transaction::<Vec<i64>>(commands).await.unwrap_err();
    assert!(error.server().unwrap().text().contains("NOSUCHCOMMAND"), "{error}");
    assert_eq!(client.exec::<Option<i64>>(("GET", "n")).await.unwrap(), None);
    assert_eq!(client.transaction::<(i64,)>((("INCR", "n"),)).await.unwrap(), (Ok(1),), "still in sync");
}

#[tokio::test]
async fn nothing_comes_between_the_commands_of_a_transaction() {
    let redis = start();
    let client = connect(redis.url()).await;
    let tasks = (0..16).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                let (before, after) =
                    client.transaction::<(i64, i64)>((("INCR", "n"), ("INCR", "n"))).await.unwrap();
                assert_eq!(before.unwrap() + 1, after.unwrap());
                client.exec::<()>(("INCR", "n")).await.unwrap();
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(client.exec::<i64>(("GET", "n")).await.unwrap(), 16 * 50 * 3);
}

#[tokio::test]
async fn a_watched_key_that_was_changed_aborts_the_transaction() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut own = client.dedicated().await.unwrap();
    own.exec::<()>(("WATCH", "balance")).await.unwrap();
    client.exec::<()>(("SET", "balance", 5)).await.unwrap();
    let error = own.transaction::<(i64,)>((("INCR", "balance"),)).await.unwrap_err();
    assert!(matches!(error, ExecError::Reply(ReplyError::Aborted)), "{error:?}");
    assert_eq!(error.retry(), Retry::Safe);

    own.exec::<()>(("WATCH", "balance")).await.unwrap();
    assert_eq!(own.exec::<i64>(("GET", "balance")).await.unwrap(), 5);
    assert_eq!(own.transaction::<(i64,)>((("INCR", "balance"),)).await.unwrap(), (Ok(6),));
}

#[tokio::test]
async fn a_script_is_sent_once_and_again_when_the_server_forgot_it() {
    let redis = start();
    let client = connect(redis.url()).await;
    let script = LuaScript::new("return {KEYS[1], KEYS[2], ARGV[1], redis.call('INCRBY', KEYS[1], ARGV[1])}");
    for total in 1..=3 {
        let result: (String, String, i64, i64) = script.run(&client, ["a", "b"], [5]).await.unwrap();
        assert_eq!(result, ("a".into(), "b".into(), 5, 5 * total), "run once each time");
        client.exec::<()>(("SCRIPT", "FLUSH")).await.unwrap();
    }
    let none: [&str; 0] = [];
    assert_eq!(LuaScript::new("return #KEYS + #ARGV").run::<i64>(&client, none, none).await.unwrap(), 0);

    let before = client.stats().requests;
    let again = LuaScript::new("return 1");
    for _ in 0..3 {
        again.run::<i64>(&client, none, none).await.unwrap();
    }
    assert_eq!(client.stats().requests - before, 4, "the source only with the first");
}

#[tokio::test]
async fn a_script_that_fails_says_why() {
    let redis = start();
    let client = connect(redis.url()).await;
    let none: [&str; 0] = [];
    for (source, expected) in [
        ("return redis.error_reply('MINE went wrong')", "MINE"),
        ("this is not Lua", "ERR"),
        ("return redis.call('INCR')", "ERR"),
    ] {
        for _ in 0..2 {
            let error = LuaScript::new(source).run::<()>(&client, none, none).await.unwrap_err();
            assert_eq!(code(&error), Some(expected), "{error}");
        }
    }
}

#[tokio::test]
async fn a_blocking_call_waits_beyond_every_deadline_of_the_shared_connection() {
    let redis = start();
    let brief = Duration::from_millis(50);
    let client = connect(with(config(redis.url()), |config| {
        config.response_timeout = Some(brief);
        config.stall_timeout = Some(brief);
    }))
    .await;
    let admin = connect(redis.url()).await;
    let mut queue = client.dedicated().await.unwrap();
    let begun = Instant::now();
    let waiting = tokio::spawn(async move { queue.exec::<(String, String)>(("BLPOP", "jobs", 0)).await });
    wait_until_blocked(&admin, 1).await;
    tokio::time::sleep_until((begun + 6 * brief).into()).await;
    admin.exec::<()>(("RPUSH", "jobs", "job")).await.unwrap();
    let item = within("the item", waiting).await.unwrap().unwrap();
    assert_eq!(item, ("jobs".into(), "job".into()));
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn a_blocking_call_that_is_dropped_takes_no_item() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut queue = client.dedicated().await.unwrap();
    let mut call = Box::pin(queue.exec::<(String, String)>(("BLPOP", "jobs", 0)));
    assert!(futures_util::poll!(&mut call).is_pending());
    wait_until_blocked(&client, 1).await;
    drop(call);
    wait_until_blocked(&client, 0).await;
    client.exec::<()>(("RPUSH", "jobs", "kept")).await.unwrap();
    assert_eq!(client.exec::<i64>(("LLEN", "jobs")).await.unwrap(), 1);
    let item: (String, String) = queue.exec(("BLPOP", "jobs", 0)).await.unwrap();
    assert_eq!(item.1, "kept", "the next call connects again");
}

#[tokio::test]
async fn the_call_right_after_a_dropped_one_finds_a_connection() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut queue = client.dedicated().await.unwrap();
    for n in 0..10 {
        let mut call = Box::pin(queue.exec::<(String, String)>(("BLPOP", "jobs", 0)));
        assert!(futures_util::poll!(&mut call).is_pending());
        drop(call);
        assert_eq!(queue.exec::<u32>(("ECHO", n)).await.unwrap(), n);
    }
}

#[tokio::test]
async fn dropping_a_dedicated_connection_closes_it() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let client = connect(format!("{}?client_name=pair", redis.url())).await;
    let own = client.dedicated().await.unwrap();
    assert_eq!(connections_named(&admin, "pair").await, 2);
    drop(own);
    eventually("one is left", 1, async || connections_named(&admin, "pair").await).await;
}

#[tokio::test]
async fn a_dedicated_connection_is_reopened_after_a_restart() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut own = client.dedicated().await.unwrap();
    own.exec::<()>(("PING",)).await.unwrap();
    let blocked_call = {
        let mut call = Box::pin(own.exec::<Option<()>>(("BLPOP", "jobs", 0)));
        assert!(futures_util::poll!(&mut call).is_pending());
        wait_until_blocked(&client, 1).await;
        redis.kill();
        within("a result", call).await
    };
    assert!(matches!(blocked_call, Err(ExecError::Request(RequestError::Lost(_)))), "{blocked_call:?}");
    let down = within("a result", own.exec::<()>(("PING",))).await.unwrap_err();
    assert!(matches!(&down, ExecError::Request(RequestError::Closed { last_error: Some(_) })), "{down:?}");
    redis.revive().unwrap();
    own.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn a_stream_can_be_read_as_it_grows() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut own = client.dedicated().await.unwrap();
    let reading = tokio::spawn(async move {
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        own.exec::<BTreeMap<String, Entries>>(("XREAD", "BLOCK", 0, "STREAMS", "events", "$")).await
    });
    wait_until_blocked(&client, 1).await;
    let id: String = client.exec(("XADD", "events", "*", "kind", "born")).await.unwrap();
    let entries = within("the entry", reading).await.unwrap().unwrap();
    let fields = BTreeMap::from([("kind".to_owned(), "born".to_owned())]);
    assert_eq!(entries, BTreeMap::from([("events".to_owned(), vec![(id, fields)])]));
}

async fn scanned<T: FromReply + Ord + 'static>(client: &RedisClient, scan: ScanCommand) -> BTreeSet<T> {
    let (mut all, mut items) = (BTreeSet::new(), client.scan::<T>(scan));
    while let Some(item) = items.next().await {
        all.insert(item.unwrap());
    }
    all
}

#[tokio::test]
async fn a_scan_sees_every_key_and_what_it_is_asked_for() {
    let redis = start();
    let client = connect(redis.url()).await;
    let names: BTreeSet<String> = (0..10_000).map(|n| format!("key:{n}")).collect();
    client.pipeline::<Vec<()>>(names.iter().map(|name| ("SET", name, 1)).collect::<Vec<_>>()).await.unwrap();
    client.exec::<()>(("SADD", "set", "member")).await.unwrap();
    let mut all = names.clone();
    all.insert("set".into());
    assert_eq!(scanned(&client, ScanCommand::keys().count(1000)).await, all);
    assert_eq!(scanned(&client, ScanCommand::keys().matching("key:*").count(100)).await, names);
    assert_eq!(
        scanned::<String>(&client, ScanCommand::keys().of_type("set").count(1000)).await,
        ["set".into()].into()
    );
    assert!(scanned::<String>(&client, ScanCommand::keys().matching("none*").count(1000)).await.is_empty());
}

#[tokio::test]
async fn hashes_sets_and_sorted_sets_are_scanned_too() {
    let redis = start();
    let client = connect(redis.url()).await;
    let pairs: BTreeMap<String, u32> = (0..1000).map(|n| (format!("m{n}"), n)).collect();
    client.exec::<()>(("HSET", "hash", &pairs)).await.unwrap();
    client.exec::<()>(("SADD", "set", pairs.keys().collect::<Vec<_>>())).await.unwrap();
    let zadd =
        pairs.iter().fold(cmd("ZADD").arg("sorted"), |zadd, (member, score)| zadd.arg(score).arg(member));
    client.exec::<()>(zadd).await.unwrap();

    let expected: BTreeSet<(String, u32)> = pairs.clone().into_iter().collect();
    assert_eq!(scanned::<(String, u32)>(&client, ScanCommand::hash("hash")).await, expected);
    assert_eq!(scanned::<(String, u32)>(&client, ScanCommand::sorted_set("sorted")).await, expected);
    assert_eq!(
        scanned::<String>(&client, ScanCommand::set("set").count(77)).await,
        pairs.into_keys().collect()
    );
}

#[tokio::test]
async fn a_scan_that_fails_says_so_once_and_ends() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("SET", "text", 1)).await.unwrap();
    let mut items = client.scan::<String>(ScanCommand::set("text"));
    let error = items.next().await.unwrap().unwrap_err();
    assert_eq!(code(&error), Some("WRONGTYPE"));
    assert!(items.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tasks_requests_run_in_the_order_in_which_it_sent_them() {
    let redis = start();
    let client = connect(redis.url()).await;
    let tasks = (0..64).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for batch in 0..10 {
                let requests = (0..50).map(|n| client.exec::<i64>(("RPUSH", task, batch * 50 + n)));
                let lengths = join_all(requests).await;
                let expected = batch * 50 + 1..=batch * 50 + 50;
                assert!(lengths.into_iter().map(Result::unwrap).eq(expected));
            }
            client.exec::<Vec<i64>>(("LRANGE", task, 0, -1)).await.unwrap()
        })
    });
    for list in join_all(tasks).await {
        assert!(list.unwrap().into_iter().eq(0..500));
    }
}

#[tokio::test]
async fn a_request_may_have_a_shorter_deadline_than_the_others() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    proxy.stall(Direction::ToClient);
    let begun = Instant::now();
    let error = client.exec::<()>(("PING",)).within(Duration::from_millis(60)).await.unwrap_err();
    let took = begun.elapsed();
    let ExecError::Request(RequestError::Deadline { after }) = error else { panic!("{error:?}") };
    assert_eq!(after, Duration::from_millis(60));
    assert!(took >= after, "{took:?}");
    assert!(error.to_string().contains("60ms") && error.retry() == Retry::Unknown, "{error}");
    let error =
        client.pipeline::<Vec<()>>([("PING",)]).within(Duration::from_millis(20)).await.expect_err("stalled");
    assert!(matches!(error, RequestError::Deadline { .. }), "{error:?}");
}

/// An argument whose encoding fails.
enum Faulty {
    Panics,
    WrongCount,
}

impl ToArgs for Faulty {
    fn count(&self) -> usize {
        match self {
            Faulty::Panics => 1,
            Faulty::WrongCount => 2,
        }
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(b"half a command");
        if let Faulty::Panics = self {
            panic!("this one is meant");
        }
    }
}

#[tokio::test]
async fn an_argument_that_panics_keeps_the_connection_in_sync() {
    let redis = start();
    let client = connect(redis.url()).await;
    for fault in [Faulty::Panics, Faulty::WrongCount] {
        let before = submitted(client.exec::<String>(("ECHO", "before")));
        AssertUnwindSafe(client.exec::<()>(("SET", "key", fault))).catch_unwind().await.unwrap_err();
        let after: String = client.exec(("ECHO", "after")).await.unwrap();
        assert_eq!((before.await.unwrap(), after), ("before".into(), "after".into()));
    }
    assert_eq!(client.stats().connections, 1);
}

/// A custom type that uses existing implementations of `FromReply`.
#[derive(Debug, PartialEq)]
struct GeoPosition {
    longitude: f64,
    latitude: f64,
}

impl FromReply for GeoPosition {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let (longitude, latitude) = FromReply::from_reply(reader)?;
        Ok(GeoPosition { longitude, latitude })
    }
}

#[tokio::test]
async fn a_reply_decodes_into_a_custom_type() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("GEOADD", "places", 13.361, 38.115, "Palermo")).await.unwrap();
    let found: Vec<Option<GeoPosition>> =
        client.exec(("GEOPOS", "places", "Palermo", "Atlantis")).await.unwrap();
    let [Some(palermo), None] = &found[..] else { panic!("{found:?}") };
    assert!(
        (palermo.longitude - 13.361).abs() < 1e-4 && (palermo.latitude - 38.115).abs() < 1e-4,
        "{palermo:?}"
    );

    let error = client.exec::<Vec<GeoPosition>>(("MGET", "a", "b")).await.unwrap_err();
    assert!(error.to_string().contains("at reply[0]"), "{error}");
}

/// A type whose decoding panics.
#[derive(Debug)]
struct Explosive;

impl FromReply for Explosive {
    fn from_reply(_: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        panic!("this one is meant")
    }
}

#[tokio::test]
async fn a_panic_while_decoding_affects_only_its_caller() {
    let redis = start();
    let client = connect(redis.url()).await;
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.exec::<Explosive>(("PING",)).await }
    });
    assert!(task.await.unwrap_err().is_panic());
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn errors_say_what_happened_and_whether_to_retry() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("SET", "text", "abc")).await.unwrap();
    client.exec::<()>(("RPUSH", "list", "1", "two")).await.unwrap();

    let error = client.exec::<i64>(("LPOP", "text")).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), (Some("WRONGTYPE"), Retry::Never));
    let error = client.exec::<i64>(("GET", "text")).await.unwrap_err();
    assert_eq!(error.to_string(), "expected an integer that fits i64, found another string");
    assert_eq!((code(&error), error.retry()), (None, Retry::Never));
    let error = client.exec::<Vec<i64>>(("LRANGE", "list", 0, -1)).await.unwrap_err();
    assert_eq!(error.to_string(), "expected an integer that fits i64, found another string at reply[1]");
    let error = client.exec::<String>(("GET", "none")).await.unwrap_err();
    assert!(error.to_string().contains("found null"), "{error}");

    client.exec::<()>(("CONFIG", "SET", "maxmemory", 1)).await.unwrap();
    let error = client.exec::<()>(("SET", "more", "than there is room for")).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), (Some("OOM"), Retry::Safe));
}

#[tokio::test]
async fn many_tasks_share_one_connection_without_mixing_their_replies() {
    let redis = start();
    let client = connect(redis.url()).await;
    let tasks = (0..200u32).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for n in 0..50 {
                let key = format!("{task}:{n}");
                let (set, get, size) = client
                    .pipeline::<((), String, usize)>((("SET", &key, &key), ("GET", &key), ("STRLEN", &key)))
                    .await
                    .unwrap();
                assert_eq!((set, get, size), (Ok(()), Ok(key.clone()), Ok(key.len())));
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!((client.stats().connections, client.stats().open_requests), (1, 0));
}

#[tokio::test]
async fn unsupported_commands_are_rejected_without_affecting_other_requests() {
    let redis = start();
    let client = connect(redis.url()).await;
    for command in
        [&["SUBSCRIBE", "news"][..], &["MONITOR"], &["CLIENT", "REPLY", "OFF"], &["BLPOP", "list", "0"]]
    {
        let error = client.exec::<()>((command,)).await.unwrap_err();
        assert!(
            matches!(error, ExecError::Request(RequestError::UnsupportedCommand { .. })),
            "{command:?}: {error}"
        );
        assert_eq!(error.retry(), Retry::Never);
    }
    // One such command rejects the whole pipeline before anything is sent.
    let refused =
        client.pipeline::<Vec<i64>>([["INCR", "counter"], ["MULTI", ""]].map(|words| (words,))).await;
    assert!(matches!(refused, Err(RequestError::UnsupportedCommand { .. })));
    let (echo, count): (String, Option<i64>) =
        (client.exec(("ECHO", "in sync")).await.unwrap(), client.exec(("GET", "counter")).await.unwrap());
    assert_eq!((echo.as_str(), count), ("in sync", None));
}

#[tokio::test]
async fn an_empty_command_is_rejected() {
    let redis = start();
    let client = connect(redis.url()).await;
    let empty = client.exec::<()>((Vec::<String>::new(),)).await.unwrap_err();
    assert!(matches!(empty, ExecError::Request(RequestError::UnsupportedCommand { .. })), "{empty}");
    assert_eq!(client.exec::<String>(("ECHO", "in sync")).await.unwrap(), "in sync");
}

#[tokio::test]
async fn maximal_timeouts_do_not_overflow() {
    let redis = start();
    let longest = with(config(redis.url()), |config| {
        config.response_timeout = Some(Duration::MAX);
        config.stall_timeout = Some(Duration::MAX);
        config.connect_timeout = Duration::MAX;
        config.close_timeout = Duration::MAX;
    });
    let client = connect(longest).await;
    let slow = submitted(client.exec::<String>(("ECHO", "slow")).within(Duration::MAX));
    // Its deadline makes the worker check all deadlines.
    let brief = client.exec::<()>(("PING",)).within(Duration::ZERO).await;
    assert!(brief.is_ok() || matches!(brief, Err(ExecError::Request(RequestError::Deadline { .. }))));
    assert_eq!(slow.await.unwrap(), "slow");
    client.close().await;
}

#[tokio::test]
#[should_panic(expected = "polled after completion")]
async fn a_request_that_is_done_is_not_sent_again() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut request = client.exec::<i64>(("INCR", "once"));
    assert_eq!((&mut request).await.unwrap(), 1);
    let _again = (&mut request).await;
}
