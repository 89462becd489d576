//! `RedisStore`: keeps the counts in Redis, with one Lua script for each call.
//!
//! Invariant: all keys of a namespace share one hash tag, so that a script's keys lie in one
//! cluster slot. No key that holds a count expires, because a server under `volatile-*` evicts keys
//! with an expiry first.
//! Only Redis's clock is used; it is never compared with a local one.
//!
//! | key after the tag | content |
//! |---|---|
//! | `:k` | all exact accounts, one field each, and the sequences of live members |
//! | `:m` | expiries of the members, the generation, the cursor of the sweep |
//! | `:x` | members whose name was taken over |
//! | `:t` | TTLs of both |
//! | `:w` | which members have reported to a rebuild; see `heartbeat.lua` for its end |
//! | `:b:…` | one budget |
//! | `:r:…` | one token bucket |
//! | `:p` | channel on which pressure is published |
//!
//! Members of release 0.1 use the same keys in the same way, except `:t`, `:w` and the depth of a
//! bucket.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_redis::{
    ArgWriter, ExecError, LuaScript, RedisClient, RedisCommand, RedisConnectError, Subscription, ToArgs,
};

use crate::store::{
    AccountShares, Heartbeat, HeartbeatKind, HeartbeatReply, Holdings, MemberId, MemberLiveness, Membership,
    Settlement, SettlementReply, Share, ShareReply, ShareRequest, Store, StoreError, StoreFuture, TokenReply,
    TokenRequest,
};

/// Keeps the counts in Redis 5 or newer.
#[derive(Debug, Clone)]
pub struct RedisStore {
    client: RedisClient,
    keys: Arc<NamespaceKeys>,
    heartbeat: Arc<LuaScript>,
    settle: Arc<LuaScript>,
    draw: Arc<LuaScript>,
    holdings_script: Arc<LuaScript>,
    /// Created at the first wait for pressure. At most one waiter at a time: the member.
    pressure: Arc<tokio::sync::Mutex<Option<Subscription>>>,
}

#[derive(Debug)]
struct NamespaceKeys {
    tag: String,
    /// Exact accounts, members, replaced: the first keys of the scripts.
    common: [String; 3],
    /// The TTLs of members, and the reports to a rebuild.
    ttls: String,
    reports: String,
    /// The channel on which pressure is published.
    pressure: String,
}

/// Number of exact accounts that a heartbeat checks for expired holders.
const SWEEP_BATCH: u32 = 64;
/// Delay before the next attempt to subscribe.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Creates a store in `namespace`. Members of one namespace share their counts.
    ///
    /// The server must not evict keys without an expiry: set `maxmemory-policy` to `noeviction` or
    /// `volatile-*`. Evicted counts must be rebuilt. An unused namespace keeps a few small keys
    /// until they are deleted.
    pub fn new(client: RedisClient, namespace: &str) -> Self {
        // Braces would end the hash tag early.
        let tag = format!("{{{}}}", namespace.replace(['{', '}'], "_"));
        let key = |name| format!("{tag}:{name}");
        let (ttls, reports, pressure) = (key("t"), key("w"), key("p"));
        let keys = NamespaceKeys { common: ["k", "m", "x"].map(key), ttls, reports, pressure, tag };
        let script = |source: &str| Arc::new(LuaScript::new(source));
        RedisStore {
            client,
            keys: Arc::new(keys),
            heartbeat: script(include_str!("heartbeat.lua")),
            settle: script(include_str!("settle.lua")),
            draw: script(include_str!("draw.lua")),
            holdings_script: script(include_str!("holdings.lua")),
            pressure: Arc::default(),
        }
    }

    /// Creates a store with its own connection.
    /// A server that can't be reached is no error: the client keeps trying, and the member starts
    /// without the store.
    pub fn open(url: &str, namespace: &str) -> Result<Self, RedisConnectError> {
        Ok(RedisStore::new(RedisClient::open(url)?, namespace))
    }

    async fn run_wait_for_pressure(&self) {
        let mut pressure = self.pressure.lock().await;
        loop {
            // A gap counts as a message: it may have hidden one.
            if let Some(subscription) = &mut *pressure
                && subscription.next().await.is_some()
            {
                return;
            }
            match self.client.subscribe([&self.keys.pressure]).await {
                Ok(subscription) => *pressure = Some(subscription),
                Err(_) => tokio::time::sleep(RESUBSCRIBE_DELAY).await,
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.keys.tag)
    }

    async fn run_heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let kind = match heartbeat.kind {
            HeartbeatKind::Join => "join",
            HeartbeatKind::TakeOver => "take_over",
            HeartbeatKind::Renew => "stay",
        };
        let (member, ttl) = (&heartbeat.member, millis(heartbeat.ttl));
        let (generation, before) = (heartbeat.generation, heartbeat.members_before);
        let has_reported = u32::from(heartbeat.has_reported && before > 0);
        let (name_length, report) = (member.name().len(), [before, has_reported]);
        let args = CommandArgs((member.as_str(), name_length, kind, ttl, generation, SWEEP_BATCH, report));
        let keys = CommandArgs((&self.keys.common, &self.keys.ttls, &self.keys.reports));
        let reply: (String, u64, u64, u64, u32, u32) =
            self.heartbeat.run(&self.client, keys, args).await.map_err(failed)?;
        let (membership, sequence, generation, rebuild_left, members, expected) = reply;
        let membership = match membership.as_str() {
            "alive" => Membership::Alive { sequence },
            "joined" => Membership::Joined,
            "unknown" => Membership::Unknown,
            "replaced" => Membership::Replaced,
            other => return Err(StoreError::Unexpected(format!("the standing {other:?}"))),
        };
        Ok(HeartbeatReply {
            membership,
            generation,
            rebuild_left: Duration::from_millis(rebuild_left),
            members,
            expected,
        })
    }

    async fn run_settle(&self, settlement: Settlement) -> Result<SettlementReply, StoreError> {
        let Settlement { member, sequence, last_acknowledged, pressure, rebuild_parts, requests } =
            settlement;
        let own_field = ["#", member.as_str()].concat();
        let NamespaceKeys { tag, common, pressure: channel, .. } = &*self.keys;
        let blocks = in_blocks(&requests).next().is_some();
        let for_blocks = blocks.then_some((millis(pressure), channel.as_str()));
        let keys = SettleKeys { tag, common, requests: &requests };
        let start = (sequence, last_acknowledged, &*own_field);
        let args = SettleArgs { start, requests: &requests, for_blocks, rebuild_parts };
        let reply: Vec<u32> = self.settle.run(&self.client, keys, args).await.map_err(failed)?;
        match reply.as_slice() {
            [1] => Ok(SettlementReply::UnknownMember),
            [2] => Ok(SettlementReply::Stale),
            [3] => Ok(SettlementReply::LostWrites),
            [0, short, replies @ ..] => {
                let replies = read_share_replies(&requests, *short as usize, replies);
                let unexpected = || format!("{} numbers for {} accounts", reply.len(), requests.len());
                replies.map(SettlementReply::Applied).ok_or_else(|| StoreError::Unexpected(unexpected()))
            }
            _ => Err(StoreError::Unexpected(format!("{reply:?} instead of answers"))),
        }
    }

    async fn run_query_holdings(&self, accounts: Vec<Arc<str>>) -> Result<Holdings, StoreError> {
        let (exact, blocks): (Vec<_>, Vec<_>) =
            accounts.into_iter().partition(|account| account.starts_with("k:"));
        let keys = CommandArgs((
            &self.keys.common,
            blocks.iter().map(|account| self.key(account)).collect::<Vec<_>>(),
        ));
        type HoldingsReply = (u64, Vec<String>, Vec<String>, Vec<String>, Vec<Vec<String>>);
        let found: HoldingsReply =
            self.holdings_script.run(&self.client, keys, &exact).await.map_err(failed)?;
        let (now, members, replaced, in_exact, in_blocks) = found;
        let mut holdings = Holdings::default();
        holdings.members.extend(read_liveness(&members, now));
        holdings
            .members
            .extend(read_liveness(&replaced, now).map(|member| MemberLiveness { replaced: true, ..member }));
        let exact = exact.into_iter().zip(in_exact.iter().map(|holders| read_exact_shares(holders)));
        let blocks = blocks.into_iter().zip(in_blocks.iter().map(|fields| read_block_shares(fields)));
        for (account, mut shares) in exact.chain(blocks) {
            // In exact accounts, a replaced member's share doesn't count.
            let exact = account.starts_with("k:");
            let counts = |liveness: &MemberLiveness| !(liveness.replaced && exact);
            shares.retain(|share| {
                holdings.members.iter().any(|liveness| liveness.member == share.member && counts(liveness))
            });
            if !shares.is_empty() {
                holdings.accounts.push(AccountShares { account, shares });
            }
        }
        Ok(holdings)
    }
}

impl Store for RedisStore {
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        Box::pin(self.run_heartbeat(heartbeat))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        Box::pin(self.run_settle(settlement))
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (NamespaceKeys { common: [exact, members, replaced], ttls, .. }, id) =
                (&*self.keys, member.as_str());
            let removals = (
                ("HDEL", exact, format!("#{id}")),
                ("HDEL", members, id),
                ("HDEL", replaced, id),
                ("HDEL", ttls, id),
            );
            let removed = self.client.transaction::<(i64, i64, i64, i64)>(removals).await.map_err(failed)?;
            let removed = removed.0.and(removed.1).and(removed.2).and(removed.3);
            removed.map(|_| ()).map_err(|error| StoreError::Unexpected(error.to_string()))
        })
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        Box::pin(async move {
            let spacing_us = 1e6 / draw.per_second;
            let (key, args) =
                ([self.key(&draw.bucket)], CommandArgs((spacing_us, draw.burst.max(1), draw.want)));
            let (tokens, wait_us): (u32, u64) =
                self.draw.run(&self.client, key, args).await.map_err(failed)?;
            Ok(TokenReply { tokens, wait: Duration::from_micros(wait_us) })
        })
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        Box::pin(self.run_query_holdings(accounts))
    }

    fn wait_for_pressure(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.run_wait_for_pressure())
    }

    fn kind(&self) -> &'static str {
        "redis"
    }
}

/// Passes a tuple of several types as the keys or arguments of a script.
struct CommandArgs<C>(C);

impl<C: RedisCommand> ToArgs for CommandArgs<C> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        self.0.write(out);
    }
}

/// The keys of a settlement, in the order of `settle.lua`.
struct SettleKeys<'a> {
    tag: &'a str,
    common: &'a [String; 3],
    requests: &'a [ShareRequest],
}

impl ToArgs for SettleKeys<'_> {
    fn count(&self) -> usize {
        match in_blocks(self.requests).count() {
            0 => 1,
            blocks => self.common.len() + blocks,
        }
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        let [accounts, for_blocks @ ..] = self.common;
        accounts.write(out);
        for (at, request) in in_blocks(self.requests).enumerate() {
            if at == 0 {
                for_blocks.write(out);
            }
            format!("{}:{}", self.tag, request.account).write(out);
        }
    }
}

/// The arguments of a settlement, in the order of `settle.lua`. Redis spends time on each argument,
/// so there are few.
struct SettleArgs<'a> {
    start: (u64, u64, &'a str),
    requests: &'a [ShareRequest],
    for_blocks: Option<(u64, &'a str)>,
    rebuild_parts: u32,
}

impl ToArgs for SettleArgs<'_> {
    fn count(&self) -> usize {
        let (exact, blocks) = (exact(self.requests).count(), in_blocks(self.requests).count());
        3 + 4 * exact + 5 * blocks + if blocks > 0 { 2 } else { 0 } + 2
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        self.start.write(out);
        exact(self.requests).for_each(|request| request.account.write(out));
        exact(self.requests).for_each(|request| [request.limit, request.floor, request.want].write(out));
        for request in in_blocks(self.requests) {
            let keeps_replaced = u32::from(request.allocation.keeps_replaced());
            [request.limit, request.floor, request.want, request.used, keeps_replaced].write(out);
        }
        self.for_blocks.iter().for_each(|for_blocks| for_blocks.write(out));
        self.rebuild_parts.write(out);
        exact(self.requests).count().write(out);
    }
}

fn exact(requests: &[ShareRequest]) -> impl Iterator<Item = &ShareRequest> {
    requests.iter().filter(|request| !request.allocation.in_blocks())
}

fn in_blocks(requests: &[ShareRequest]) -> impl Iterator<Item = &ShareRequest> {
    requests.iter().filter(|request| request.allocation.in_blocks())
}

/// Reads three numbers for each exact account that was not fully granted, then four for each block
/// account.
/// Returns `None` if the numbers don't fit the requests.
fn read_share_replies(requests: &[ShareRequest], short: usize, numbers: &[u32]) -> Option<Vec<ShareReply>> {
    let (in_exact, in_blocks) = numbers.split_at_checked(short.checked_mul(3)?)?;
    let (mut in_exact, mut in_blocks) = (in_exact.chunks_exact(3).peekable(), in_blocks.chunks_exact(4));
    let mut position = 0;
    let mut reply = |request: &ShareRequest| {
        if request.allocation.in_blocks() {
            let numbers = in_blocks.next()?;
            let pressure = numbers[3] == 1;
            return Some(ShareReply { count: numbers[0], total: numbers[1], used: numbers[2], pressure });
        }
        position += 1;
        let fell_short = in_exact.next_if(|numbers| numbers[0] == position);
        let (count, total) =
            fell_short.map_or((request.want, request.want), |numbers| (numbers[1], numbers[2]));
        Some(ShareReply { count, total, used: total, pressure: false })
    };
    let replies = requests.iter().map(&mut reply).collect();
    (in_exact.next().is_none() && in_blocks.next().is_none()).then_some(replies)?
}

/// Reads pairs of a member, not replaced, and its expiry. Skips fields that aren't members.
fn read_liveness(pairs: &[String], now: u64) -> impl Iterator<Item = MemberLiveness> {
    pairs.chunks_exact(2).filter_map(move |pair| {
        let expires: u64 = pair[1].parse().ok()?;
        let expires_in_ms = expires.checked_sub(now).filter(|left| *left > 0)?;
        Some(MemberLiveness {
            member: MemberId::parse(&pair[0])?,
            expires_in_ms: Some(expires_in_ms),
            replaced: false,
        })
    })
}

/// Reads `member=count` entries, separated by spaces.
fn read_exact_shares(holders: &str) -> Vec<Share> {
    let share = |holder: &str| {
        let (member, count) = holder.rsplit_once('=')?;
        let count = count.parse().ok()?;
        Some(Share { member: MemberId::parse(member)?, count, used: count })
    };
    holders.split(' ').filter_map(share).collect()
}

/// Reads pairs of a member and its `count:used`, and skips the mark of pressure.
fn read_block_shares(pairs: &[String]) -> Vec<Share> {
    let share = |pair: &[String]| {
        let (count, used) = pair[1].split_once(':')?;
        Some(Share {
            member: MemberId::parse(&pair[0])?,
            count: count.parse().ok()?,
            used: used.parse().ok()?,
        })
    };
    pairs.chunks_exact(2).filter_map(share).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn failed(error: ExecError) -> StoreError {
    match error {
        ExecError::Reply(error) => StoreError::Unexpected(error.to_string()),
        error => StoreError::Unreachable(error.into()),
    }
}
