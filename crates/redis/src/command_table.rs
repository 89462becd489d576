//! Command table: the commands of Redis 7, and which of them get exactly one reply.
//!
//! Invariant: a command in [`SINGLE_REPLY`] or [`SUBCOMMANDS`] gets one reply for any arguments, or
//! the connection ends (`SHUTDOWN`). A command in none of the tables is unknown; its request gets
//! an echo probe, see `core/echo_probe.rs`.
//! Enforced by: `tests/it/replies.rs` sends every command of a real Redis 7 and compares the tables
//! with its `COMMAND`.
//! Out of scope: which commands a connection accepts; see `command_guard.rs`.

use CommandClass::{BySubcommand, Guarded, SingleReply};

/// How a command of Redis 7 replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// One reply, on any connection.
    SingleReply,
    /// Depends on the subcommand.
    BySubcommand,
    /// Decided by `command_guard.rs`.
    Guarded,
}

/// Returns the class of a command, or `None` if its name is unknown. Names are case-insensitive.
///
/// Every request runs this. It costs one multiplication and usually one comparison.
#[inline]
pub(crate) fn classify(name: &[u8]) -> Option<CommandClass> {
    let mut slot = first_slot(name);
    loop {
        let (known, class) = TABLE[slot]?;
        if known.as_bytes().eq_ignore_ascii_case(name) {
            return Some(class);
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// Returns true if a subcommand of one of the [`CONTAINERS`] is known to get one reply.
pub(crate) fn subcommand_has_single_reply(container: &[u8], subcommand: &[u8]) -> bool {
    let known = |name: &&str| {
        name.split_once('|').is_some_and(|(first, second)| {
            first.as_bytes().eq_ignore_ascii_case(container)
                && second.as_bytes().eq_ignore_ascii_case(subcommand)
        })
    };
    SUBCOMMANDS.iter().any(known)
}

/// Commands that get one reply on any connection. `SHUTDOWN` gets an error or ends the connection.
#[rustfmt::skip]
pub(crate) const SINGLE_REPLY: [&str; 193] = [
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

/// Subcommands that get one reply: all of Redis 7 except `CLIENT REPLY` and `SCRIPT DEBUG`, which
/// are rejected.
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

/// Commands that are rejected on some or all connections; see `command_guard.rs`.
#[rustfmt::skip]
pub(crate) const GUARDED: [&str; 32] = [
    "AUTH", "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN",
    "DISCARD", "EXEC", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE", "QUIT",
    "REPLCONF", "RESET", "SELECT", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC", "UNSUBSCRIBE",
    "UNWATCH", "WAIT", "WAITAOF", "WATCH", "XREAD", "XREADGROUP",
];

/// Number of slots of the hash table. It uses open addressing, is built at compile time, and is one
/// third full.
const SLOTS: usize = 1024;

static TABLE: [Option<(&str, CommandClass)>; SLOTS] = {
    assert!(sorted(&SINGLE_REPLY) && sorted(&CONTAINERS) && sorted(&SUBCOMMANDS) && sorted(&GUARDED));
    let mut table = [None; SLOTS];
    insert(&mut table, &SINGLE_REPLY, SingleReply);
    insert(&mut table, &CONTAINERS, BySubcommand);
    insert(&mut table, &GUARDED, Guarded);
    table
};

const fn insert(
    table: &mut [Option<(&'static str, CommandClass)>; SLOTS],
    names: &[&'static str],
    class: CommandClass,
) {
    let mut index = 0;
    while index < names.len() {
        let mut slot = first_slot(names[index].as_bytes());
        while table[slot].is_some() {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = Some((names[index], class));
        index += 1;
    }
}

/// Returns the first slot to probe for a name. The hash covers the length and the first eight
/// letters, case-insensitively.
#[inline]
const fn first_slot(name: &[u8]) -> usize {
    const EITHER_CASE: u64 = 0xdfdf_dfdf_dfdf_dfdf;
    let mut head = 0;
    let mut index = 0;
    while index < name.len() && index < 8 {
        head |= (name[index] as u64) << (8 * index);
        index += 1;
    }
    let mixed = ((head & EITHER_CASE) ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SLOTS.ilog2())) as usize
}

/// Returns true if the names are in ascending order without duplicates.
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
    fn every_name_is_found_in_either_case_and_no_other_name_is() {
        for (names, expected) in
            [(&SINGLE_REPLY[..], SingleReply), (&CONTAINERS[..], BySubcommand), (&GUARDED[..], Guarded)]
        {
            for name in names {
                assert_eq!(classify(name.as_bytes()), Some(expected), "{name}");
                assert_eq!(classify(name.to_lowercase().as_bytes()), Some(expected), "{name}");
                for other in [&name[1..], &format!("{name}X"), &format!("\x07{}", &name[1..])] {
                    let known = [&SINGLE_REPLY[..], &CONTAINERS, &GUARDED].concat().contains(&other);
                    assert_eq!(classify(other.as_bytes()).is_some(), known, "{other}");
                }
            }
        }
        assert_eq!((classify(b""), classify(b"JSON.SET"), classify(&[0xff; 40])), (None, None, None));
    }

    #[test]
    fn a_lookup_probes_few_slots() {
        let distances = SINGLE_REPLY.iter().map(|name| {
            let from = first_slot(name.as_bytes());
            (0..SLOTS).find(|step| TABLE[(from + step) % SLOTS].is_some_and(|(known, _)| known == *name))
        });
        let longest = distances.max().flatten().expect("the table has every name");
        assert!(longest < 8, "{longest} steps");
        assert_eq!(TABLE[first_slot(b"EVALSHA")].map(|(name, _)| name), Some("EVALSHA"));
    }
}
