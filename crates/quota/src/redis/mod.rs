//! The store in Redis: one script for each call.
//!
//! Invariant: all keys of a namespace share one hash tag, so that a script's keys lie in one slot, and every script is
//! passed the members' sorted set.
//! Time is Redis's own; nothing here compares it with a clock of ours.
//! Keys, after the tag: `:m` members by expiry, `:x` those whose name was taken over, `:g` the generation and when it is
//! rebuilt, `:s` the sequence of each member's last settlement, `:b:…` budgets, `:k:…` keys of keyed limits, `:r:…` buckets; the
//! channel `:p` tells of pressure.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_redis::{ArgWriter, Client, Command, ConnectError, ExecError, Script, Subscription, ToArgs};

use crate::config::KEY_LIFE;
use crate::store::{
    Answer, Ask, Beat, BeatKind, Calling, Draw, Drawn, Holdings, Life, MemberId, Pulse, Settled, Settlement,
    Share, Shares, Sharing, Standing, Store, StoreError,
};

/// Keeps the counts in Redis 5 or newer.
#[derive(Debug, Clone)]
pub struct RedisStore {
    client: Client,
    tag: Arc<str>,
    beat: Arc<Script>,
    settle: Arc<Script>,
    draw: Arc<Script>,
    look: Arc<Script>,
    /// Made when somebody first listens; one listener at a time, which is the member.
    pressure: Arc<tokio::sync::Mutex<Option<Subscription>>>,
}

/// The channel on which pressure is told.
const PRESSURE: &str = "p";
/// How long to wait before subscribing again when it failed.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// A store in the namespace of this name: members of one namespace share their counts.
    ///
    /// The server must not evict keys (`maxmemory-policy noeviction`, or `volatile-*`): what it forgets has to be told anew.
    pub fn new(client: Client, namespace: &str) -> Self {
        // Braces would end the hash tag early.
        let tag = format!("{{{}}}", namespace.replace(['{', '}'], "_")).into();
        let script = |source: &str| Arc::new(Script::new(source));
        RedisStore {
            client,
            tag,
            beat: script(include_str!("beat.lua")),
            settle: script(include_str!("settle.lua")),
            draw: script(include_str!("draw.lua")),
            look: script(include_str!("look.lua")),
            pressure: Arc::default(),
        }
    }

    /// A store on a connection of its own. A server that can't be reached yet is no error: the client goes on trying, and
    /// the member does without it meanwhile.
    pub fn open(url: &str, namespace: &str) -> Result<Self, ConnectError> {
        Ok(RedisStore::new(Client::open(url)?, namespace))
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
            match self.client.subscribe([self.key(PRESSURE)]).await {
                Ok(subscription) => *pressure = Some(subscription),
                Err(_) => tokio::time::sleep(RESUBSCRIBE).await,
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    /// The keys that every script needs.
    fn common_keys(&self) -> Vec<String> {
        ["m", "x", "g", "s"].iter().map(|name| self.key(name)).collect()
    }

    async fn run_beat(&self, beat: Beat) -> Result<Pulse, StoreError> {
        let kind = match beat.kind {
            BeatKind::Join => "join",
            BeatKind::TakeOver => "take_over",
            BeatKind::Stay => "stay",
        };
        let (member, ttl) = (&beat.member, millis(beat.ttl));
        let args = Words((member.as_str(), member.name().len(), kind, ttl, beat.generation));
        let reply: (String, u64, u64, u64, u32) =
            self.beat.run(&self.client, self.common_keys(), args).await.map_err(failed)?;
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
        let mut keys = self.common_keys();
        keys.extend(asks.iter().map(|ask| self.key(&ask.account)));
        let head = [sequence, landed, millis(pressure), millis(KEY_LIFE)];
        let numbers: Vec<u64> = asks.iter().flat_map(numbers).collect();
        let args = Words((member.as_str(), head, self.key(PRESSURE), numbers));
        let reply: Vec<u32> = self.settle.run(&self.client, keys, args).await.map_err(failed)?;
        match reply.as_slice() {
            [1] => Ok(Settled::Unknown),
            [2] => Ok(Settled::Stale),
            [3] => Ok(Settled::LostWrites),
            [0, answers @ ..] if answers.len() == 4 * asks.len() => {
                Ok(Settled::Landed(answers.chunks_exact(4).map(read_answer).collect()))
            }
            _ => Err(StoreError::Unexpected(format!("{} numbers for {} accounts", reply.len(), asks.len()))),
        }
    }

    async fn run_look(&self, accounts: Vec<Arc<str>>) -> Result<Holdings, StoreError> {
        let mut keys = vec![self.key("m"), self.key("x")];
        keys.extend(accounts.iter().map(|account| self.key(account)));
        let none: [&str; 0] = [];
        let reply: (u64, Vec<String>, Vec<String>, Vec<Vec<String>>) =
            self.look.run(&self.client, keys, none).await.map_err(failed)?;
        let (now, members, replaced, shares) = reply;
        let mut holdings = Holdings::default();
        holdings.members.extend(read_lives(&members, now, false));
        holdings.members.extend(read_lives(&replaced, now, true));
        let alive = |id: &MemberId| holdings.members.iter().any(|life| life.member == *id);
        for (account, fields) in accounts.into_iter().zip(&shares) {
            let shares: Vec<_> = read_shares(fields).filter(|share| alive(&share.member)).collect();
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
            let keys = [self.key("m"), self.key("x"), self.key("s")];
            let id = member.as_str();
            let removals = (("ZREM", &keys[0], id), ("ZREM", &keys[1], id), ("HDEL", &keys[2], id));
            let removed = self.client.transaction::<(i64, i64, i64)>(removals).await.map_err(failed)?;
            let removed = removed.0.and(removed.1).and(removed.2);
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

impl<C: Command> ToArgs for Words<C> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        self.0.write(out);
    }
}

fn numbers(ask: &Ask) -> [u64; 5] {
    let sharing = match ask.sharing {
        Sharing::Exact => 0,
        Sharing::Blocks => 1,
        Sharing::BlocksUntilExpiry => 2,
    };
    [ask.limit.into(), ask.floor.into(), ask.want.into(), ask.used.into(), sharing]
}

fn read_answer(numbers: &[u32]) -> Answer {
    Answer { count: numbers[0], total: numbers[1], used: numbers[2], pressure: numbers[3] == 1 }
}

/// Pairs of a member and its expiry.
fn read_lives(pairs: &[String], now: u64, replaced: bool) -> impl Iterator<Item = Life> {
    pairs.chunks_exact(2).filter_map(move |pair| {
        let expires: f64 = pair[1].parse().ok()?;
        let expires_in_ms = (expires as u64).checked_sub(now).filter(|left| *left > 0)?;
        Some(Life { member: MemberId::parse(&pair[0])?, expires_in_ms: Some(expires_in_ms), replaced })
    })
}

/// Pairs of a member and its share, and perhaps the mark of pressure.
fn read_shares(pairs: &[String]) -> impl Iterator<Item = Share> {
    pairs.chunks_exact(2).filter_map(|pair| {
        let (count, used) = pair[1].split_once(':').unwrap_or((&pair[1], &pair[1]));
        Some(Share {
            member: MemberId::parse(&pair[0])?,
            count: count.parse().ok()?,
            used: used.parse().ok()?,
        })
    })
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
