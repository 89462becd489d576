//! Commands that are known to answer with exactly one reply.
//!
//! Invariant: a name in [`ONCE`] or [`SUBCOMMANDS`] is answered by one reply whatever its arguments are, or the connection
//! ends (`SHUTDOWN`). A name that is in none of the tables is unknown: the request is verified, see `core/sentinel.rs`.
//! Enforced by: `tests/it/replies.rs` sends every command of a real Redis 7 and compares the tables with its `COMMAND`.
//! Out of scope: which of these suit a connection; see `guard.rs`.

use Answers::{BySubcommand, Guarded, Once};

/// How a command of Redis 7 answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// With one reply, on any connection.
    Once,
    /// As its subcommand does.
    BySubcommand,
    /// `guard.rs` decides.
    Guarded,
}

/// Returns how a command answers, or `None` if its name is unknown. Upper and lower case are the same.
///
/// One multiplication and, nearly always, one comparison: every request passes here.
#[inline]
pub(crate) fn answers(name: &[u8]) -> Option<Answers> {
    let mut place = place(name);
    loop {
        let (known, answers) = TABLE[place]?;
        if known.as_bytes().eq_ignore_ascii_case(name) {
            return Some(answers);
        }
        place = (place + 1) % PLACES;
    }
}

/// Whether a subcommand of one of the [`CONTAINERS`] is known to answer with one reply.
pub(crate) fn subcommand_answers_once(container: &[u8], subcommand: &[u8]) -> bool {
    let known = |name: &&str| {
        name.split_once('|').is_some_and(|(first, second)| {
            first.as_bytes().eq_ignore_ascii_case(container)
                && second.as_bytes().eq_ignore_ascii_case(subcommand)
        })
    };
    SUBCOMMANDS.iter().any(known)
}

/// Commands that answer with one reply on any connection. `SHUTDOWN` answers with an error or ends the connection.
#[rustfmt::skip]
pub(crate) const ONCE: [&str; 193] = [
    "APPEND", "ASKING", "BGREWRITEAOF", "BGSAVE", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "BITOP",
    "BITPOS", "COPY", "DBSIZE", "DECR", "DECRBY", "DEL", "DUMP", "ECHO", "EVAL", "EVALSHA",
    "EVALSHA_RO", "EVAL_RO", "EXISTS", "EXPIRE", "EXPIREAT", "EXPIRETIME", "FAILOVER", "FCALL",
    "FCALL_RO", "FLUSHALL", "FLUSHDB", "GEOADD", "GEODIST", "GEOHASH", "GEOPOS", "GEORADIUS",
    "GEORADIUSBYMEMBER", "GEORADIUSBYMEMBER_RO", "GEORADIUS_RO", "GEOSEARCH", "GEOSEARCHSTORE", "GET",
    "GETBIT", "GETDEL", "GETEX", "GETRANGE", "GETSET", "HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY",
    "HINCRBYFLOAT", "HKEYS", "HLEN", "HMGET", "HMSET", "HRANDFIELD", "HSCAN", "HSET", "HSETNX",
    "HSTRLEN", "HVALS", "INCR", "INCRBY", "INCRBYFLOAT", "INFO", "KEYS", "LASTSAVE", "LCS", "LINDEX",
    "LINSERT", "LLEN", "LMOVE", "LMPOP", "LOLWUT", "LPOP", "LPOS", "LPUSH", "LPUSHX", "LRANGE", "LREM",
    "LSET", "LTRIM", "MGET", "MIGRATE", "MOVE", "MSET", "MSETNX", "PERSIST", "PEXPIRE", "PEXPIREAT",
    "PEXPIRETIME", "PFADD", "PFCOUNT", "PFDEBUG", "PFMERGE", "PFSELFTEST", "PING", "PSETEX", "PTTL",
    "PUBLISH", "RANDOMKEY", "READONLY", "READWRITE", "RENAME", "RENAMENX", "REPLICAOF", "RESTORE",
    "RESTORE-ASKING", "ROLE", "RPOP", "RPOPLPUSH", "RPUSH", "RPUSHX", "SADD", "SAVE", "SCAN", "SCARD",
    "SDIFF", "SDIFFSTORE", "SET", "SETBIT", "SETEX", "SETNX", "SETRANGE", "SHUTDOWN", "SINTER",
    "SINTERCARD", "SINTERSTORE", "SISMEMBER", "SLAVEOF", "SMEMBERS", "SMISMEMBER", "SMOVE", "SORT",
    "SORT_RO", "SPOP", "SPUBLISH", "SRANDMEMBER", "SREM", "SSCAN", "STRLEN", "SUBSTR", "SUNION",
    "SUNIONSTORE", "SWAPDB", "TIME", "TOUCH", "TTL", "TYPE", "UNLINK", "XACK", "XADD", "XAUTOCLAIM",
    "XCLAIM", "XDEL", "XLEN", "XPENDING", "XRANGE", "XREVRANGE", "XSETID", "XTRIM", "ZADD", "ZCARD",
    "ZCOUNT", "ZDIFF", "ZDIFFSTORE", "ZINCRBY", "ZINTER", "ZINTERCARD", "ZINTERSTORE", "ZLEXCOUNT",
    "ZMPOP", "ZMSCORE", "ZPOPMAX", "ZPOPMIN", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE",
    "ZRANGESTORE", "ZRANK", "ZREM", "ZREMRANGEBYLEX", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE",
    "ZREVRANGE", "ZREVRANGEBYLEX", "ZREVRANGEBYSCORE", "ZREVRANK", "ZSCAN", "ZSCORE", "ZUNION",
    "ZUNIONSTORE",
];

/// Commands whose second word is a subcommand.
#[rustfmt::skip]
pub(crate) const CONTAINERS: [&str; 15] = [
    "ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "FUNCTION", "LATENCY", "MEMORY", "MODULE",
    "OBJECT", "PUBSUB", "SCRIPT", "SLOWLOG", "XGROUP", "XINFO",
];

/// Their subcommands that answer with one reply: all of Redis 7 but `CLIENT REPLY` and `SCRIPT DEBUG`, which are refused.
#[rustfmt::skip]
pub(crate) const SUBCOMMANDS: [&str; 124] = [
    "ACL|CAT", "ACL|DELUSER", "ACL|DRYRUN", "ACL|GENPASS", "ACL|GETUSER", "ACL|HELP", "ACL|LIST",
    "ACL|LOAD", "ACL|LOG", "ACL|SAVE", "ACL|SETUSER", "ACL|USERS", "ACL|WHOAMI", "CLIENT|CACHING",
    "CLIENT|GETNAME", "CLIENT|GETREDIR", "CLIENT|HELP", "CLIENT|ID", "CLIENT|INFO", "CLIENT|KILL",
    "CLIENT|LIST", "CLIENT|NO-EVICT", "CLIENT|PAUSE", "CLIENT|SETNAME", "CLIENT|TRACKING",
    "CLIENT|TRACKINGINFO", "CLIENT|UNBLOCK", "CLIENT|UNPAUSE", "CLUSTER|ADDSLOTS",
    "CLUSTER|ADDSLOTSRANGE", "CLUSTER|BUMPEPOCH", "CLUSTER|COUNT-FAILURE-REPORTS",
    "CLUSTER|COUNTKEYSINSLOT", "CLUSTER|DELSLOTS", "CLUSTER|DELSLOTSRANGE", "CLUSTER|FAILOVER",
    "CLUSTER|FLUSHSLOTS", "CLUSTER|FORGET", "CLUSTER|GETKEYSINSLOT", "CLUSTER|HELP", "CLUSTER|INFO",
    "CLUSTER|KEYSLOT", "CLUSTER|LINKS", "CLUSTER|MEET", "CLUSTER|MYID", "CLUSTER|NODES",
    "CLUSTER|REPLICAS", "CLUSTER|REPLICATE", "CLUSTER|RESET", "CLUSTER|SAVECONFIG",
    "CLUSTER|SET-CONFIG-EPOCH", "CLUSTER|SETSLOT", "CLUSTER|SHARDS", "CLUSTER|SLAVES", "CLUSTER|SLOTS",
    "COMMAND|COUNT", "COMMAND|DOCS", "COMMAND|GETKEYS", "COMMAND|GETKEYSANDFLAGS", "COMMAND|HELP",
    "COMMAND|INFO", "COMMAND|LIST", "CONFIG|GET", "CONFIG|HELP", "CONFIG|RESETSTAT", "CONFIG|REWRITE",
    "CONFIG|SET", "FUNCTION|DELETE", "FUNCTION|DUMP", "FUNCTION|FLUSH", "FUNCTION|HELP",
    "FUNCTION|KILL", "FUNCTION|LIST", "FUNCTION|LOAD", "FUNCTION|RESTORE", "FUNCTION|STATS",
    "LATENCY|DOCTOR", "LATENCY|GRAPH", "LATENCY|HELP", "LATENCY|HISTOGRAM", "LATENCY|HISTORY",
    "LATENCY|LATEST", "LATENCY|RESET", "MEMORY|DOCTOR", "MEMORY|HELP", "MEMORY|MALLOC-STATS",
    "MEMORY|PURGE", "MEMORY|STATS", "MEMORY|USAGE", "MODULE|HELP", "MODULE|LIST", "MODULE|LOAD",
    "MODULE|LOADEX", "MODULE|UNLOAD", "OBJECT|ENCODING", "OBJECT|FREQ", "OBJECT|HELP",
    "OBJECT|IDLETIME", "OBJECT|REFCOUNT", "PUBSUB|CHANNELS", "PUBSUB|HELP", "PUBSUB|NUMPAT",
    "PUBSUB|NUMSUB", "PUBSUB|SHARDCHANNELS", "PUBSUB|SHARDNUMSUB", "SCRIPT|EXISTS", "SCRIPT|FLUSH",
    "SCRIPT|HELP", "SCRIPT|KILL", "SCRIPT|LOAD", "SLOWLOG|GET", "SLOWLOG|HELP", "SLOWLOG|LEN",
    "SLOWLOG|RESET", "XGROUP|CREATE", "XGROUP|CREATECONSUMER", "XGROUP|DELCONSUMER", "XGROUP|DESTROY",
    "XGROUP|HELP", "XGROUP|SETID", "XINFO|CONSUMERS", "XINFO|GROUPS", "XINFO|HELP", "XINFO|STREAM",
];

/// Commands that are refused on some connections or on all; see `guard.rs`.
#[rustfmt::skip]
pub(crate) const GUARDED: [&str; 32] = [
    "AUTH", "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN",
    "DISCARD", "EXEC", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE", "QUIT",
    "REPLCONF", "RESET", "SELECT", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC", "UNSUBSCRIBE",
    "UNWATCH", "WAIT", "WAITAOF", "WATCH", "XREAD", "XREADGROUP",
];

/// A hash table with open addressing, built by the compiler. A third of it is used.
const PLACES: usize = 1024;

static TABLE: [Option<(&str, Answers)>; PLACES] = {
    assert!(sorted(&ONCE) && sorted(&CONTAINERS) && sorted(&SUBCOMMANDS) && sorted(&GUARDED));
    let mut table = [None; PLACES];
    insert(&mut table, &ONCE, Once);
    insert(&mut table, &CONTAINERS, BySubcommand);
    insert(&mut table, &GUARDED, Guarded);
    table
};

const fn insert(
    table: &mut [Option<(&'static str, Answers)>; PLACES],
    names: &[&'static str],
    answers: Answers,
) {
    let mut index = 0;
    while index < names.len() {
        let mut place = place(names[index].as_bytes());
        while table[place].is_some() {
            place = (place + 1) % PLACES;
        }
        table[place] = Some((names[index], answers));
        index += 1;
    }
}

/// Where the search for a name begins: its length and its first eight letters, in either case, decide.
#[inline]
const fn place(name: &[u8]) -> usize {
    const EITHER_CASE: u64 = 0xdfdf_dfdf_dfdf_dfdf;
    let mut head = 0;
    let mut index = 0;
    while index < name.len() && index < 8 {
        head |= (name[index] as u64) << (8 * index);
        index += 1;
    }
    let mixed = ((head & EITHER_CASE) ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - PLACES.ilog2())) as usize
}

/// Whether names are in ascending order, each once.
const fn sorted(names: &[&str]) -> bool {
    let mut index = 1;
    while index < names.len() {
        if !less(names[index - 1].as_bytes(), names[index].as_bytes()) {
            return false;
        }
        index += 1;
    }
    true
}

const fn less(left: &[u8], right: &[u8]) -> bool {
    let mut index = 0;
    while index < left.len() && index < right.len() {
        if left[index] != right[index] {
            return left[index] < right[index];
        }
        index += 1;
    }
    left.len() < right.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_either_case_and_no_other_is() {
        for (names, expected) in [(&ONCE[..], Once), (&CONTAINERS[..], BySubcommand), (&GUARDED[..], Guarded)]
        {
            for name in names {
                assert_eq!(answers(name.as_bytes()), Some(expected), "{name}");
                assert_eq!(answers(name.to_lowercase().as_bytes()), Some(expected), "{name}");
                for other in [&name[1..], &format!("{name}X"), &format!("\x07{}", &name[1..])] {
                    let known = [&ONCE[..], &CONTAINERS, &GUARDED].concat().contains(&other);
                    assert_eq!(answers(other.as_bytes()).is_some(), known, "{other}");
                }
            }
        }
        assert_eq!((answers(b""), answers(b"JSON.SET"), answers(&[0xff; 40])), (None, None, None));
    }

    #[test]
    fn a_search_is_short() {
        let distances = ONCE.iter().map(|name| {
            let from = place(name.as_bytes());
            (0..PLACES).find(|step| TABLE[(from + step) % PLACES].is_some_and(|(known, _)| known == *name))
        });
        let longest = distances.max().flatten().expect("the table has every name");
        assert!(longest < 8, "{longest} steps");
        assert_eq!(TABLE[place(b"EVALSHA")].map(|(name, _)| name), Some("EVALSHA"));
    }
}
