//! The store in Redis: one script for each call.
//!
//! Invariant: all keys of a namespace share one hash tag, so that a script's keys lie in one slot; and no key that holds a
//! count expires, because a server that may evict takes those first.
//! Time is Redis's own; nothing here compares it with a clock of ours.
//! Keys, after the tag: `:k` all exact accounts, a field each, and the sequences of the living; `:m` the members' expiries, the
//! generation and where the sweep stands; `:x` those whose name was taken over; `:t` the TTLs of both; `:b:…` a budget each; `:r:…` a
//! bucket each; the channel `:p` tells of pressure.
//! Members of release 0.1 share the namespace: they use the same keys in the same way, except `:t` and a bucket's depth.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_redis::{
    ArgWriter, ExecError, LuaScript, RedisClient, RedisCommand, RedisConnectError, Subscription, ToArgs,
};

use crate::store::{
    Answer, Ask, Beat, BeatKind, Calling, Draw, Drawn, Holdings, Life, MemberId, Pulse, Settled, Settlement,
    Share, Shares, Standing, Store, StoreError,
};

/// Keeps the counts in Redis 5 or newer.
#[derive(Debug, Clone)]
pub struct RedisStore {
    client: RedisClient,
    keys: Arc<Keys>,
    beat: Arc<LuaScript>,
    settle: Arc<LuaScript>,
    draw: Arc<LuaScript>,
    look: Arc<LuaScript>,
    /// Made when somebody first listens; one listener at a time, which is the member.
    pressure: Arc<tokio::sync::Mutex<Option<Subscription>>>,
}

#[derive(Debug)]
struct Keys {
    tag: String,
    /// Exact accounts, members, replaced: those that scripts begin with.
    common: [String; 3],
    /// The TTLs of members.
    lives: String,
    /// The channel on which pressure is told.
    pressure: String,
}

/// How many exact accounts a beat looks through for some that only the dead hold.
const SWEEP: u32 = 64;
/// How long to wait before subscribing again when it failed.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// A store in the namespace of this name: members of one namespace share their counts.
    ///
    /// The server must not evict keys that don't expire (so `maxmemory-policy noeviction`, or `volatile-*`): what it forgets
    /// has to be told anew. A namespace that nobody uses any more keeps a few small keys until they are deleted.
    pub fn new(client: RedisClient, namespace: &str) -> Self {
        // Braces would end the hash tag early.
        let tag = format!("{{{}}}", namespace.replace(['{', '}'], "_"));
        let key = |name| format!("{tag}:{name}");
        let keys = Keys { common: ["k", "m", "x"].map(key), lives: key("t"), pressure: key("p"), tag };
        let script = |source: &str| Arc::new(LuaScript::new(source));
        RedisStore {
            client,
            keys: Arc::new(keys),
            beat: script(include_str!("beat.lua")),
            settle: script(include_str!("settle.lua")),
            draw: script(include_str!("draw.lua")),
            look: script(include_str!("look.lua")),
            pressure: Arc::default(),
        }
    }

    /// A store on a connection of its own. A server that can't be reached yet is no error: the client goes on trying, and
    /// the member does without it meanwhile.
    pub fn open(url: &str, namespace: &str) -> Result<Self, RedisConnectError> {
        Ok(RedisStore::new(RedisClient::open(url)?, namespace))
    }

    async fn run_pressed(&self) {
        let mut pressure = self.pressure.lock().await;
        loop {
            // A gap is as good as a message: somebody may have been refused meanwhile.
            if let Some(subscription) = &mut *pressure
                && subscription.next().await.is_some()
            {
                return;
            }
            match self.client.subscribe([&self.keys.pressure]).await {
                Ok(subscription) => *pressure = Some(subscription),
                Err(_) => tokio::time::sleep(RESUBSCRIBE).await,
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.keys.tag)
    }

    async fn run_beat(&self, beat: Beat) -> Result<Pulse, StoreError> {
        let kind = match beat.kind {
            BeatKind::Join => "join",
            BeatKind::TakeOver => "take_over",
            BeatKind::Stay => "stay",
        };
        let (member, ttl) = (&beat.member, millis(beat.ttl));
        let args = Words((member.as_str(), member.name().len(), kind, ttl, beat.generation, SWEEP));
        let keys = Words((&self.keys.common, &self.keys.lives));
        let reply: (String, u64, u64, u64, u32) =
            self.beat.run(&self.client, keys, args).await.map_err(failed)?;
        let (standing, sequence, generation, rebuild_left, members) = reply;
        let standing = match standing.as_str() {
            "alive" => Standing::Alive { sequence },
            "joined" => Standing::Joined,
            "unknown" => Standing::Unknown,
            "replaced" => Standing::Replaced,
            other => return Err(StoreError::Unexpected(format!("the standing {other:?}"))),
        };
        Ok(Pulse { standing, generation, rebuild_left: Duration::from_millis(rebuild_left), members })
    }

    async fn run_settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let Settlement { member, sequence, landed, pressure, asks } = settlement;
        let own_field = ["#", member.as_str()].concat();
        let Keys { tag, common, pressure: channel, .. } = &*self.keys;
        let blocks = in_blocks(&asks).next().is_some();
        let for_blocks = blocks.then_some((millis(pressure), channel.as_str()));
        let keys = SettleKeys { tag, common, asks: &asks };
        let args = SettleArgs { start: (sequence, landed, &own_field), asks: &asks, for_blocks };
        let reply: Vec<u32> = self.settle.run(&self.client, keys, args).await.map_err(failed)?;
        match reply.as_slice() {
            [1] => Ok(Settled::Unknown),
            [2] => Ok(Settled::Stale),
            [3] => Ok(Settled::LostWrites),
            [0, short, answers @ ..] => {
                let answers = read_answers(&asks, *short as usize, answers);
                let unexpected = || format!("{} numbers for {} accounts", reply.len(), asks.len());
                answers.map(Settled::Landed).ok_or_else(|| StoreError::Unexpected(unexpected()))
            }
            _ => Err(StoreError::Unexpected(format!("{reply:?} instead of answers"))),
        }
    }

    async fn run_look(&self, accounts: Vec<Arc<str>>) -> Result<Holdings, StoreError> {
        let (exact, blocks): (Vec<_>, Vec<_>) =
            accounts.into_iter().partition(|account| account.starts_with("k:"));
        let keys =
            Words((&self.keys.common, blocks.iter().map(|account| self.key(account)).collect::<Vec<_>>()));
        type Found = (u64, Vec<String>, Vec<String>, Vec<String>, Vec<Vec<String>>);
        let found: Found = self.look.run(&self.client, keys, &exact).await.map_err(failed)?;
        let (now, members, replaced, in_exact, in_blocks) = found;
        let mut holdings = Holdings::default();
        holdings.members.extend(read_lives(&members, now, false));
        holdings.members.extend(read_lives(&replaced, now, true));
        let exact = exact.into_iter().zip(in_exact.iter().map(|holders| read_exact(holders)));
        let blocks = blocks.into_iter().zip(in_blocks.iter().map(|fields| read_blocks(fields)));
        for (account, mut shares) in exact.chain(blocks) {
            // Of exact accounts, a replaced member's share counts for nothing.
            let exact = account.starts_with("k:");
            let counts = |life: &Life| !(life.replaced && exact);
            shares.retain(|share| {
                holdings.members.iter().any(|life| life.member == share.member && counts(life))
            });
            if !shares.is_empty() {
                holdings.accounts.push(Shares { account, shares });
            }
        }
        Ok(holdings)
    }
}

impl Store for RedisStore {
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        Box::pin(self.run_beat(beat))
    }

    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        Box::pin(self.run_settle(settlement))
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        Box::pin(async move {
            let (Keys { common: [exact, members, replaced], lives, .. }, id) = (&*self.keys, member.as_str());
            let removals = (
                ("HDEL", exact, format!("#{id}")),
                ("HDEL", members, id),
                ("HDEL", replaced, id),
                ("HDEL", lives, id),
            );
            let removed = self.client.transaction::<(i64, i64, i64, i64)>(removals).await.map_err(failed)?;
            let removed = removed.0.and(removed.1).and(removed.2).and(removed.3);
            removed.map(|_| ()).map_err(|error| StoreError::Unexpected(error.to_string()))
        })
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        Box::pin(async move {
            let spacing_us = 1e6 / draw.per_second;
            let (key, args) = ([self.key(&draw.bucket)], Words((spacing_us, draw.burst.max(1), draw.want)));
            let (tokens, wait_us): (u32, u64) =
                self.draw.run(&self.client, key, args).await.map_err(failed)?;
            Ok(Drawn { tokens, wait: Duration::from_micros(wait_us) })
        })
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        Box::pin(self.run_look(accounts))
    }

    fn pressed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.run_pressed())
    }

    fn kind(&self) -> &'static str {
        "redis"
    }
}

/// A script's arguments of several types: the words of a command.
struct Words<C>(C);

impl<C: RedisCommand> ToArgs for Words<C> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        self.0.write(out);
    }
}

/// The keys of a settlement, as settle.lua tells.
struct SettleKeys<'a> {
    tag: &'a str,
    common: &'a [String; 3],
    asks: &'a [Ask],
}

impl ToArgs for SettleKeys<'_> {
    fn count(&self) -> usize {
        match in_blocks(self.asks).count() {
            0 => 1,
            blocks => self.common.len() + blocks,
        }
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        let [accounts, for_blocks @ ..] = self.common;
        accounts.write(out);
        for (at, ask) in in_blocks(self.asks).enumerate() {
            if at == 0 {
                for_blocks.write(out);
            }
            format!("{}:{}", self.tag, ask.account).write(out);
        }
    }
}

/// The arguments of a settlement, as settle.lua tells. Redis takes a while for each word, so there are no more than it needs.
struct SettleArgs<'a> {
    start: (u64, u64, &'a str),
    asks: &'a [Ask],
    for_blocks: Option<(u64, &'a str)>,
}

impl ToArgs for SettleArgs<'_> {
    fn count(&self) -> usize {
        let (exact, blocks) = (exact(self.asks).count(), in_blocks(self.asks).count());
        3 + 4 * exact + 5 * blocks + if blocks > 0 { 2 } else { 0 } + 1
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        self.start.write(out);
        exact(self.asks).for_each(|ask| ask.account.write(out));
        exact(self.asks).for_each(|ask| [ask.limit, ask.floor, ask.want].write(out));
        for ask in in_blocks(self.asks) {
            let keeps_replaced = u32::from(ask.sharing.keeps_replaced());
            [ask.limit, ask.floor, ask.want, ask.used, keeps_replaced].write(out);
        }
        self.for_blocks.iter().for_each(|for_blocks| for_blocks.write(out));
        exact(self.asks).count().write(out);
    }
}

fn exact(asks: &[Ask]) -> impl Iterator<Item = &Ask> {
    asks.iter().filter(|ask| !ask.sharing.in_blocks())
}

fn in_blocks(asks: &[Ask]) -> impl Iterator<Item = &Ask> {
    asks.iter().filter(|ask| ask.sharing.in_blocks())
}

/// Three numbers for each exact account that fell short, then four for each account in blocks. `None`: they don't fit.
fn read_answers(asks: &[Ask], short: usize, numbers: &[u32]) -> Option<Vec<Answer>> {
    let (in_exact, in_blocks) = numbers.split_at_checked(short.checked_mul(3)?)?;
    let (mut in_exact, mut in_blocks) = (in_exact.chunks_exact(3).peekable(), in_blocks.chunks_exact(4));
    let mut place = 0;
    let mut answer = |ask: &Ask| {
        if ask.sharing.in_blocks() {
            let numbers = in_blocks.next()?;
            let pressure = numbers[3] == 1;
            return Some(Answer { count: numbers[0], total: numbers[1], used: numbers[2], pressure });
        }
        place += 1;
        let fell_short = in_exact.next_if(|numbers| numbers[0] == place);
        let (count, total) = fell_short.map_or((ask.want, ask.want), |numbers| (numbers[1], numbers[2]));
        Some(Answer { count, total, used: total, pressure: false })
    };
    let answers = asks.iter().map(&mut answer).collect();
    (in_exact.next().is_none() && in_blocks.next().is_none()).then_some(answers)?
}

/// Pairs of a member and its expiry; and fields that are no members.
fn read_lives(pairs: &[String], now: u64, replaced: bool) -> impl Iterator<Item = Life> {
    pairs.chunks_exact(2).filter_map(move |pair| {
        let expires: u64 = pair[1].parse().ok()?;
        let expires_in_ms = expires.checked_sub(now).filter(|left| *left > 0)?;
        Some(Life { member: MemberId::parse(&pair[0])?, expires_in_ms: Some(expires_in_ms), replaced })
    })
}

/// `member=count`, separated by spaces.
fn read_exact(holders: &str) -> Vec<Share> {
    let share = |holder: &str| {
        let (member, count) = holder.rsplit_once('=')?;
        let count = count.parse().ok()?;
        Some(Share { member: MemberId::parse(member)?, count, used: count })
    };
    holders.split(' ').filter_map(share).collect()
}

/// Pairs of a member and its `count:used`, and perhaps the mark of pressure.
fn read_blocks(pairs: &[String]) -> Vec<Share> {
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
