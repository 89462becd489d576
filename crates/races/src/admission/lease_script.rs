//! Peer: a common way to limit users exactly in Redis. Each user has a sorted set of leases, scored
//! by expiry. A Lua script takes a lease, and ZREM releases it.

use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_redis::{LuaScript, RedisClient};

/// Lifetime of a lease that isn't released.
const LEASE: Duration = Duration::from_secs(60);
/// Maximum number of leases of a user.
const LIMIT: u32 = 3;

/// Removes expired leases, then adds one and returns 1. Returns 0 if the limit is reached.
const ACQUIRE: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
";

/// Takes leases with the script, and releases them with ZREM.
pub(crate) struct LeaseScript {
    client: RedisClient,
    acquire: LuaScript,
}

impl LeaseScript {
    pub(crate) fn new(client: RedisClient) -> Self {
        LeaseScript { client, acquire: LuaScript::new(ACQUIRE) }
    }

    pub(crate) async fn acquire(&self, user: &str, id: &str) -> Result<()> {
        let args = [LIMIT.to_string(), LEASE.as_millis().to_string(), id.to_string()];
        let granted: u32 = self.acquire.run(&self.client, [lease_key(user)], args).await?;
        ensure!(granted == 1, "the user has too many leases");
        Ok(())
    }

    pub(crate) async fn release(&self, user: &str, id: &str) -> Result<()> {
        self.client.exec::<u64>(("ZREM", lease_key(user), id)).await?;
        Ok(())
    }
}

fn lease_key(user: &str) -> String {
    format!("leases:{user}")
}
