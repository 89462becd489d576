//! Decoding of real replies into Rust types, in RESP3 and RESP2, and the errors of mismatches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Debug;

use bytes::Bytes;
use forebay_redis::{
    BigNumber, ExecError, FromReply, PathStep, RedisClient, RedisCommand, RedisServerError, ReplyError,
    ReplyReader, ReplyToken, RespValue, VerbatimString,
};
use forebay_sandbox::Redis;

/// Returns a RESP3 client and a RESP2 client. Both must give the same values.
async fn both() -> [RedisClient; 2] {
    let url = Redis::shared().url();
    [
        RedisClient::connect(url.clone()).await.unwrap(),
        RedisClient::connect(format!("{url}?protocol=2")).await.unwrap(),
    ]
}

/// Returns a command whose reply is the script's result.
fn lua(script: &str) -> (&'static str, &str, u8) {
    ("EVAL", script, 0)
}

/// Returns the message of the type mismatch that this result must be.
#[track_caller]
fn message<T: Debug>(result: Result<T, ExecError>) -> String {
    match result.expect_err("this type doesn't fit") {
        ExecError::Reply(error @ ReplyError::Mismatch(_)) => error.to_string(),
        other => panic!("expected a mismatch, found {other:?}"),
    }
}

async fn is<T: FromReply + PartialEq + Debug>(client: &RedisClient, command: impl RedisCommand, expected: T) {
    assert_eq!(client.exec::<T>(command).await.unwrap(), expected);
}

#[tokio::test]
async fn integers_fit_or_say_that_they_do_not() {
    for client in both().await {
        client
            .exec::<()>(("MSET", "int:300", 300, "int:min", i64::MIN, "int:max", u64::MAX, "int:word", "abc"))
            .await
            .unwrap();
        // As integers.
        is(&client, lua("return 255"), 255_u8).await;
        is(&client, lua("return -128"), -128_i8).await;
        is(&client, ("INCRBY", "int:min", 0), i64::MIN).await;
        is(&client, ("INCRBY", "int:min", 0), i128::from(i64::MIN)).await;
        // As strings.
        is(&client, ("GET", "int:300"), 300_u16).await;
        is(&client, ("GET", "int:300"), 300_isize).await;
        is(&client, ("GET", "int:min"), i64::MIN).await;
        is(&client, ("GET", "int:max"), u64::MAX).await;
        is(&client, ("GET", "int:max"), u128::from(u64::MAX)).await;

        let range = "an integer out of its range";
        assert_eq!(
            message(client.exec::<u8>(lua("return 256")).await),
            format!("expected an integer that fits u8, found {range}")
        );
        assert_eq!(
            message(client.exec::<u64>(lua("return -1")).await),
            format!("expected an integer that fits u64, found {range}")
        );
        let error = message(client.exec::<i8>(("GET", "int:300")).await);
        assert_eq!(error, "expected an integer that fits i8, found another string");
        let error = message(client.exec::<i64>(("GET", "int:word")).await);
        assert_eq!(error, "expected an integer that fits i64, found another string");
        let error = message(client.exec::<i64>(("GET", "int:none")).await);
        assert_eq!(error, "expected an integer that fits i64, found null");
    }
}

#[tokio::test]
async fn floats_come_from_doubles_integers_and_strings() {
    for client in both().await {
        client
            .exec::<()>((
                "ZADD",
                "float:z",
                1.5,
                "a",
                f64::INFINITY,
                "b",
                f64::NEG_INFINITY,
                "c",
                1e-300,
                "d",
            ))
            .await
            .unwrap();
        is(&client, ("ZSCORE", "float:z", "a"), 1.5_f64).await;
        is(&client, ("ZSCORE", "float:z", "a"), 1.5_f32).await;
        is(&client, ("ZSCORE", "float:z", "b"), f64::INFINITY).await;
        is(&client, ("ZSCORE", "float:z", "c"), f64::NEG_INFINITY).await;
        is(&client, ("ZSCORE", "float:z", "d"), 1e-300_f64).await;
        is(&client, ("ZSCORE", "float:z", "none"), None::<f64>).await;
        is(&client, ("ZMSCORE", "float:z", "a", "none"), vec![Some(1.5_f64), None]).await;
        is(&client, lua("return 7"), 7.0_f64).await;
        is(&client, ("ECHO", "-2.5e3"), -2500.0_f64).await;
        let error = message(client.exec::<f64>(("ECHO", "five")).await);
        assert_eq!(error, "expected a number, found another string");
    }
}

#[tokio::test]
async fn booleans_come_from_zero_and_one_and_nothing_else() {
    for client in both().await {
        client.exec::<()>(("SADD", "bool:s", "in")).await.unwrap();
        is(&client, ("SISMEMBER", "bool:s", "in"), true).await;
        is(&client, ("SISMEMBER", "bool:s", "out"), false).await;
        is(&client, ("SMISMEMBER", "bool:s", "in", "out"), vec![true, false]).await;
        is(&client, ("ECHO", "1"), true).await;
        is(&client, lua("redis.setresp(3); return true"), true).await;
        assert_eq!(
            message(client.exec::<bool>(lua("return 2")).await),
            "expected a boolean, 0 or 1, found an integer"
        );
        assert_eq!(
            message(client.exec::<bool>(("ECHO", "yes")).await),
            "expected a boolean, 0 or 1, found a string"
        );
    }
}

#[tokio::test]
async fn strings_are_text_and_bytes_are_bytes() {
    for client in both().await {
        let binary = b"\xff\x00\r\n\xfe";
        client
            .exec::<()>(("MSET", "str:text", "grüß", "str:binary", binary, "str:long", "x".repeat(5000)))
            .await
            .unwrap();
        is(&client, ("GET", "str:text"), "grüß".to_owned()).await;
        is(&client, ("GET", "str:long"), Bytes::from("x".repeat(5000))).await;
        is(&client, ("GET", "str:binary"), Bytes::from_static(binary)).await;
        is(&client, ("GET", "str:binary"), binary.to_vec()).await;
        is(&client, ("GET", "str:binary"), RespValue::Bulk(Bytes::from_static(binary))).await;
        is(&client, ("MGET", "str:text", "str:none"), vec![Some("grüß".to_owned().into_bytes()), None]).await;
        is(&client, ("GET", "str:text"), Box::new("grüß".to_owned())).await;
        is(&client, ("PING",), "PONG".to_owned()).await;
        is(&client, lua("return 42"), "42".to_owned()).await;
        let error = message(client.exec::<String>(("GET", "str:binary")).await);
        assert_eq!(error, "expected a UTF-8 string, found a string of other bytes");
        let error = message(client.exec::<Vec<u8>>(("SMEMBERS", "str:none")).await);
        assert!(error.starts_with("expected a string, found"), "{error}");
    }
}

#[tokio::test]
async fn null_is_none_and_fits_nothing_else() {
    for client in both().await {
        is(&client, ("GET", "null:none"), None::<String>).await;
        is(&client, ("GET", "null:none"), RespValue::Null).await;
        is(&client, ("GET", "null:none"), ()).await;
        is(&client, ("LPOP", "null:none", 2), None::<Vec<String>>).await;
        is(&client, ("MGET", "null:none", "null:none"), vec![None::<i64>, None]).await;
        assert_eq!(
            message(client.exec::<String>(("GET", "null:none")).await),
            "expected a string, found null"
        );
        assert_eq!(
            message(client.exec::<Vec<String>>(("LPOP", "null:none", 2)).await),
            "expected an array, found null"
        );
        let error = message(client.exec::<Vec<String>>(("MGET", "null:none")).await);
        assert_eq!(error, "expected a string, found null at reply[0]");
    }
}

#[tokio::test]
async fn maps_come_from_hashes() {
    for client in both().await {
        client.exec::<()>(("HSET", "map:h", "a", 1, "b", 2)).await.unwrap();
        is(&client, ("HGETALL", "map:h"), HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)])).await;
        is(&client, ("HGETALL", "map:h"), BTreeMap::from([(Bytes::from("a"), 1_u8), (Bytes::from("b"), 2)]))
            .await;
        is(&client, ("HGETALL", "map:h"), vec![("a".to_owned(), 1), ("b".to_owned(), 2)]).await;
        is(&client, ("HGETALL", "map:none"), HashMap::<String, String>::new()).await;
        // Arrays of pairs also decode into maps.
        is(
            &client,
            lua("return {{'a', 1}, {'b', 2}}"),
            BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]),
        )
        .await;
        let error = message(client.exec::<HashMap<String, i64>>(lua("return {'a', 1, 'b'}")).await);
        assert_eq!(error, "expected a map, found an odd number of items");
        assert_eq!(
            message(client.exec::<HashMap<String, i64>>(("PING",)).await),
            "expected a map, found a status"
        );

        client.exec::<()>(("HSET", "map:words", "a", "one")).await.unwrap();
        let error = message(client.exec::<HashMap<String, i64>>(("HGETALL", "map:words")).await);
        assert_eq!(error, "expected an integer that fits i64, found another string at reply[value 0]");
        let error = message(client.exec::<BTreeMap<i64, String>>(("HGETALL", "map:words")).await);
        assert_eq!(error, "expected an integer that fits i64, found another string at reply[key 0]");
    }
}

#[tokio::test]
async fn sets_come_from_sets() {
    for client in both().await {
        client.exec::<()>(("SADD", "set:s", 1, 2, 3)).await.unwrap();
        is(&client, ("SMEMBERS", "set:s"), HashSet::from([1, 2, 3])).await;
        is(&client, ("SMEMBERS", "set:s"), BTreeSet::from(["1".to_owned(), "2".to_owned(), "3".to_owned()]))
            .await;
        is(&client, ("SMEMBERS", "set:s"), HashSet::from([1_u8, 2, 3])).await;
        is(&client, ("SMEMBERS", "set:s"), BTreeSet::from([1_u8, 2, 3])).await;
        is(&client, ("SMEMBERS", "set:s"), vec![1, 2, 3]).await;
        is(&client, ("SMEMBERS", "set:none"), BTreeSet::<String>::new()).await;
        let error = message(client.exec::<HashSet<bool>>(("SMEMBERS", "set:s")).await);
        assert_eq!(error, "expected a boolean, 0 or 1, found a string at reply[1]");
        let error = message(client.exec::<BTreeSet<bool>>(("SMEMBERS", "set:s")).await);
        assert_eq!(error, "expected a boolean, 0 or 1, found a string at reply[1]");
        assert_eq!(message(client.exec::<HashSet<i64>>(("PING",)).await), "expected a set, found a status");
    }
}

#[tokio::test]
async fn tuples_have_as_many_items_as_the_reply() {
    for client in both().await {
        is(&client, lua("return {1, 'two', {3, 4}}"), (1_i64, "two".to_owned(), vec![3, 4])).await;
        is(&client, lua("return {1, {2, {3, {}}}}"), (1, (2, (3, Vec::<i64>::new())))).await;
        is(&client, ("HSCAN", "tuple:none", 0), (0_u64, HashMap::<String, String>::new())).await;
        let error = message(client.exec::<(i64, i64)>(lua("return {1}")).await);
        assert_eq!(error, "expected an array of 2 items, found a shorter array");
        let error =
            message(client.exec::<Vec<(i64, i64, i64)>>(lua("return {{1, 2, 3}, {1, 2, 3, 4}}")).await);
        assert_eq!(error, "expected an array of 3 items, found a longer array at reply[1]");
    }
}

#[tokio::test]
async fn scores_are_pairs_in_both_protocols() {
    for client in both().await {
        client.exec::<()>(("ZADD", "scores:z", 1, "ada", 2.5, "grace")).await.unwrap();
        let command = ("ZRANGE", "scores:z", 0, -1, "WITHSCORES");
        is(&client, command, vec![("ada".to_owned(), 1.0), ("grace".to_owned(), 2.5)]).await;
        is(&client, command, HashMap::from([("ada".to_owned(), 1.0), ("grace".to_owned(), 2.5)])).await;
        is(&client, ("ZRANGE", "scores:none", 0, -1, "WITHSCORES"), Vec::<(String, f64)>::new()).await;
        is(&client, ("ZPOPMIN", "scores:none", 2), Vec::<(String, f64)>::new()).await;
        is(&client, ("ZRANGE", "scores:z", 0, -1), vec!["ada".to_owned(), "grace".to_owned()]).await;
        let error = message(client.exec::<Vec<(String, i64)>>(command).await);
        assert!(error.starts_with("expected an integer that fits i64, found"), "{error}");
    }
}

#[tokio::test]
async fn streams_are_lists_of_entries() {
    type Entries = Vec<(String, Vec<(String, i64)>)>;
    for client in both().await {
        client.exec::<()>(("DEL", "stream:x")).await.unwrap();
        client.exec::<()>(("XADD", "stream:x", "1-1", "a", 1, "b", 2)).await.unwrap();
        client.exec::<()>(("XADD", "stream:x", "2-1", "c", 3)).await.unwrap();
        let (first, second) = (vec![("a".to_owned(), 1), ("b".to_owned(), 2)], vec![("c".to_owned(), 3)]);
        let entries: Entries = vec![("1-1".to_owned(), first), ("2-1".to_owned(), second)];
        is(&client, ("XRANGE", "stream:x", "-", "+"), entries.clone()).await;
        // A map in RESP3, an array of pairs in RESP2.
        let streams = HashMap::from([("stream:x".to_owned(), entries)]);
        is(&client, ("XREAD", "STREAMS", "stream:x", 0), streams).await;
        is(&client, ("XREAD", "STREAMS", "stream:x", "9-9"), None::<HashMap<String, Entries>>).await;

        client.exec::<()>(("XADD", "stream:x", "3-1", "d", "four")).await.unwrap();
        let error = message(client.exec::<Entries>(("XRANGE", "stream:x", "-", "+")).await);
        assert_eq!(error, "expected an integer that fits i64, found another string at reply[2][1][value 0]");
    }
}

#[tokio::test]
async fn verbatim_strings_are_strings_with_a_format() {
    for client in both().await {
        let info: String = client.exec(("INFO", "server")).await.unwrap();
        assert!(info.starts_with("# Server\r\n"), "the format is no part of the text");
        let info: VerbatimString = client.exec(("INFO", "server")).await.unwrap();
        assert_eq!((&*info.format, info.text.starts_with("# Server\r\n")), ("txt", true));
        let info: Bytes = client.exec(("INFO", "server")).await.unwrap();
        assert!(info.starts_with(b"# Server\r\n"));
        let error = message(client.exec::<VerbatimString>(lua("return 1")).await);
        assert_eq!(error, "expected a verbatim string, found an integer");
    }
}

#[tokio::test]
async fn big_numbers_are_text_or_integers_that_are_wide_enough() {
    for client in both().await {
        let script = "redis.setresp(3); return {big_number = '170141183460469231731687303715884105727'}";
        is(&client, lua(script), BigNumber(i128::MAX.to_string())).await;
        is(&client, lua(script), i128::MAX).await;
        is(&client, lua(script), i128::MAX.to_string()).await;
        is(&client, lua(script), 1.7014118346046923e38_f64).await;
        is(&client, lua("return 5"), BigNumber("5".into())).await;
        let error = message(client.exec::<i64>(lua(script)).await);
        assert_eq!(error, "expected an integer that fits i64, found another string");
    }
}

#[tokio::test]
async fn an_error_inside_a_reply_is_a_value_where_asked_for() {
    for client in both().await {
        let script = "return {1, {err = 'MY own'}, {ok = 'FINE'}}";
        let items: Vec<Result<RespValue, RedisServerError>> = client.exec(lua(script)).await.unwrap();
        let [Ok(RespValue::Int(1)), Err(error), Ok(RespValue::Simple(_))] = &items[..] else {
            panic!("{items:?}")
        };
        assert_eq!((error.code(), error.text()), ("MY", "MY own"));
        let whole: RespValue = client.exec(lua(script)).await.unwrap();
        assert!(
            matches!(&whole, RespValue::Array(items) if items[1] == RespValue::Error(error.clone())),
            "{whole:?}"
        );
        // Any other type fails with the error.
        let error_of_array = client.exec::<Vec<Option<String>>>(lua(script)).await.unwrap_err();
        assert_eq!(error_of_array.server(), Some(error));

        client.exec::<()>(("SET", "error:text", "no number")).await.unwrap();
        let mut own = client.dedicated().await.unwrap();
        for command in [&["MULTI"][..], &["STRLEN", "error:text"], &["INCR", "error:text"]] {
            own.exec::<()>((command,)).await.unwrap();
        }
        let results: Vec<Result<i64, RedisServerError>> = own.exec(("EXEC",)).await.unwrap();
        assert!(matches!(&results[..], [Ok(9), Err(error)] if error.code() == "ERR"), "{results:?}");
    }
}

#[tokio::test]
async fn the_path_points_to_the_mismatch() {
    for client in both().await {
        let script = "return {{1}, {2}, {'three', {'x'}}}";
        let error = message(client.exec::<Vec<Vec<i64>>>(lua(script)).await);
        assert_eq!(error, "expected an integer that fits i64, found another string at reply[2][0]");
        let error = client.exec::<(RespValue, Vec<String>, (String, (i64,)))>(lua(script)).await.unwrap_err();
        let ExecError::Reply(ReplyError::Mismatch(mismatch)) = error else { panic!("{error:?}") };
        assert_eq!(mismatch.path, [PathStep::Index(2), PathStep::Index(1), PathStep::Index(0)]);
        assert_eq!((mismatch.expected, &*mismatch.found), ("an integer that fits i64", "another string"));
    }
}

#[tokio::test]
async fn one_bad_result_of_a_pipeline_affects_no_other() {
    for client in both().await {
        client.exec::<()>(("DEL", "slot:list", "slot:hash")).await.unwrap();
        client.exec::<()>(("RPUSH", "slot:list", "a", "b", "c")).await.unwrap();
        client.exec::<()>(("HSET", "slot:hash", "field", "word", "other", 2)).await.unwrap();
        let (a, b, c, d, e, f) = client
            .pipeline::<(i64, Vec<i64>, String, HashMap<String, i64>, (i64, String), i64)>((
                ("LLEN", "slot:list"),
                ("LRANGE", "slot:list", 0, -1),   // stops at the first of three
                ("GET", "slot:list"),             // an error of the server
                ("HGETALL", "slot:hash"),         // stops at the first value
                lua("return {1, 'b', {3, {4}}}"), // stops before the last item
                ("LLEN", "slot:list"),
            ))
            .await
            .unwrap();
        assert_eq!((a, f), (Ok(3), Ok(3)));
        assert!(
            matches!(&b, Err(ReplyError::Mismatch(error)) if error.path == [PathStep::Index(0)]),
            "{b:?}"
        );
        assert!(matches!(&c, Err(ReplyError::Server(error)) if error.code() == "WRONGTYPE"), "{c:?}");
        assert!(
            matches!(&d, Err(ReplyError::Mismatch(error)) if error.path == [PathStep::Value(0)]),
            "{d:?}"
        );
        assert!(matches!(&e, Err(ReplyError::Mismatch(error)) if error.found == "a longer array"), "{e:?}");

        let all = client
            .pipeline::<Vec<i64>>([("LLEN", "slot:list"), ("GET", "slot:list"), ("LLEN", "slot:list")])
            .await;
        let all = all.unwrap();
        assert!(matches!(&all[..], [Ok(3), Err(ReplyError::Server(_)), Ok(3)]), "{all:?}");
    }
}

#[tokio::test]
async fn one_bad_result_of_a_transaction_affects_no_other() {
    for client in both().await {
        client.exec::<()>(("SET", "slots:text", "word")).await.unwrap();
        let (a, b, c, d) = client
            .transaction::<(String, i64, i64, Result<i64, RedisServerError>)>((
                ("GET", "slots:text"),
                ("GET", "slots:text"),
                ("STRLEN", "slots:text"),
                ("INCR", "slots:text"),
            ))
            .await
            .unwrap();
        assert_eq!((a.as_deref(), &c), (Ok("word"), &Ok(4)));
        assert!(matches!(b, Err(ReplyError::Mismatch(_))), "{b:?}");
        assert!(matches!(&d, Ok(Err(error)) if error.code() == "ERR"), "{d:?}");
    }
}

#[tokio::test]
async fn messages_of_mismatches_hold_no_values() {
    const SECRET: &str = "s3cr3t";
    for client in both().await {
        client.exec::<()>(("HSET", "secret:h", "field", SECRET)).await.unwrap();
        client.exec::<()>(("SET", "secret:s", [SECRET.as_bytes(), b"\xff"].concat())).await.unwrap();
        let get = ("HGET", "secret:h", "field");
        let all = ("HGETALL", "secret:h");
        let errors = [
            client.exec::<i64>(get).await.unwrap_err(),
            client.exec::<f64>(get).await.unwrap_err(),
            client.exec::<bool>(get).await.unwrap_err(),
            client.exec::<Vec<String>>(get).await.unwrap_err(),
            client.exec::<HashMap<String, i64>>(all).await.unwrap_err(),
            client.exec::<(i64, String)>(all).await.unwrap_err(),
            client.exec::<String>(("GET", "secret:s")).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, ExecError::Reply(ReplyError::Mismatch(_))), "{error:?}");
            assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        }
    }
}

/// A custom type that reads tokens.
#[derive(Debug, PartialEq)]
enum CustomReply {
    Number(i64),
    Text(String),
    Several(Vec<CustomReply>),
}

impl FromReply for CustomReply {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            ReplyToken::Int(number) => Ok(CustomReply::Number(number)),
            ReplyToken::Bulk(text) => Ok(CustomReply::Text(String::from_utf8_lossy(&text).into_owned())),
            ReplyToken::Array(mut items) => {
                let mut items_read = Vec::new();
                while items.next(reader) {
                    items_read
                        .push(CustomReply::from_reply(reader).map_err(|error| error.at(items_read.len()))?);
                }
                Ok(CustomReply::Several(items_read))
            }
            other => Err(other.mismatch("an answer")),
        }
    }
}

#[tokio::test]
async fn custom_types_decode_any_reply() {
    for client in both().await {
        let expected = CustomReply::Several(vec![
            CustomReply::Number(1),
            CustomReply::Several(vec![CustomReply::Text("two".into())]),
        ]);
        is(&client, lua("return {1, {'two'}}"), expected).await;
        let error = message(client.exec::<CustomReply>(lua("return {1, {{ok = 'OK'}}}")).await);
        assert_eq!(error, "expected an answer, found a status at reply[1][0]");
    }
}

#[cfg(feature = "serde")]
mod through_serde {
    use forebay_redis::Serde;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Player {
        name: String,
        score: i64,
        ratio: f64,
        active: bool,
        nick: Option<String>,
        #[serde(default)]
        level: PlayerLevel,
    }

    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum PlayerLevel {
        #[default]
        Low,
        High,
    }

    #[tokio::test]
    async fn a_hash_becomes_a_struct() {
        for client in both().await {
            let words =
                ["name", "ada", "level", "high", "score", "-3", "ratio", "0.5", "active", "1", "more", "1"];
            client.exec::<()>(("HSET", "serde:1", words)).await.unwrap();
            let expected = Player {
                name: "ada".into(),
                score: -3,
                ratio: 0.5,
                active: true,
                nick: None,
                level: PlayerLevel::High,
            };
            is(&client, ("HGETALL", "serde:1"), Serde(expected)).await;
            let Serde(map) =
                client.exec::<Serde<BTreeMap<String, String>>>(("HGETALL", "serde:1")).await.unwrap();
            assert_eq!((map.len(), &*map["name"]), (6, "ada"));
        }
    }

    #[tokio::test]
    async fn lists_tuples_and_options_become_themselves() {
        for client in both().await {
            is(&client, lua("return {1, 'two', {3, false}}"), Serde((1, "two".to_owned(), (3, None::<i64>))))
                .await;
            is(&client, lua("return {1, 2, 3}"), Serde(vec![1_u8, 2, 3])).await;
            is(&client, ("GET", "serde:none"), Serde(None::<Player>)).await;
            is(&client, ("ECHO", "high"), Serde(PlayerLevel::High)).await;
        }
    }

    #[tokio::test]
    async fn a_struct_that_does_not_fit_says_which_field_and_no_value() {
        const SECRET: &str = "s3cr3t";
        for client in both().await {
            client.exec::<()>(("HSET", "serde:2", "name", "ada", "score", SECRET)).await.unwrap();
            let error = message(client.exec::<Serde<Player>>(("HGETALL", "serde:2")).await);
            assert_eq!(error, "expected an integer that fits i64, found another string at reply.score");

            client.exec::<()>(("HSET", "serde:3", "name", "ada")).await.unwrap();
            let error = message(client.exec::<Serde<Player>>(("HGETALL", "serde:3")).await);
            assert_eq!(error, "expected a value of the given type, found missing field `score`");

            let get = ("HGET", "serde:2", "score");
            let errors = [
                message(client.exec::<Serde<PlayerLevel>>(get).await),
                message(client.exec::<Serde<Vec<String>>>(get).await),
                message(client.exec::<Serde<u64>>(get).await),
                message(client.exec::<Serde<bool>>(get).await),
                message(client.exec::<Serde<char>>(get).await),
                message(client.exec::<Serde<BTreeMap<String, String>>>(get).await),
                message(
                    client.exec::<Serde<Vec<BTreeMap<String, u8>>>>(lua("return {{'a', 's3cr3t'}}")).await,
                ),
            ];
            for error in errors {
                assert!(!error.contains(SECRET), "{error}");
            }
        }
    }
}
