//! A cluster-wide rate: tokens, one at a time, in the order of asking.
//!
//! Invariant: over any span of time the cluster is given at most a burst and the rate's worth of tokens; a token that
//! wasn't used goes to the next caller of the same member, or is lost after a second.
//! Without the store, a member goes by its own part of the rate, or by none if the policy is `closed`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{Policy, RateConfig};
use crate::core::bucket::{self, Level};
use crate::error::Refusal;
use crate::shared::{Shared, now};
use crate::store::{Draw, Drawn, StoreError};

/// A token that wasn't used within this time has had its turn.
const TOKEN_LIFE: Duration = Duration::from_secs(1);
/// Longest sleep between two draws: whatever wait a store names, its clock may have been set right since.
const MAX_SLEEP: Duration = Duration::from_secs(2);

/// A rate that holds across all members.
#[derive(Clone)]
pub struct Rate {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    bucket: Arc<str>,
    config: RateConfig,
    /// Callers stand in line here: one of them asks the store at a time.
    line: tokio::sync::Mutex<()>,
    spare: Mutex<Spare>,
}

/// Tokens at hand, and the bucket that is used without the store.
struct Spare {
    tokens: u32,
    /// However many come back, no more than this are kept.
    max: u32,
    expire: Instant,
    origin: Instant,
    local: Level,
}

impl Rate {
    pub(crate) fn new(shared: Arc<Shared>, name: &str, config: RateConfig) -> Self {
        let now = now();
        let spare = Spare {
            tokens: 0,
            max: config.burst.max(config.batch),
            expire: now,
            origin: now,
            local: Level::default(),
        };
        let (line, spare) = (tokio::sync::Mutex::new(()), Mutex::new(spare));
        Rate { inner: Arc::new(Inner { shared, bucket: format!("r:{name}").into(), config, line, spare }) }
    }

    /// Waits its turn for a token. Cancelling it loses nothing.
    pub async fn take(&self) -> Result<Token, Refusal> {
        let _turn = self.inner.line.lock().await;
        loop {
            if let Some(expires) = self.inner.spare().pop() {
                return Ok(Token { rate: Some(self.inner.clone()), expires });
            }
            // In a task of its own: what was drawn for a caller that has gone is there for the next.
            let inner = self.inner.clone();
            let drawing = self.inner.shared.spawn(async move {
                let drawn = inner.draw().await?;
                inner.spare().add(drawn.tokens, now() + TOKEN_LIFE);
                Ok(drawn)
            });
            let Drawn { tokens, wait } = drawing.await.unwrap_or_else(|_| {
                Err(Refusal::Unavailable { why: "the runtime of this member has ended".into() })
            })?;
            if tokens == 0 {
                tokio::time::sleep(wait.min(MAX_SLEEP)).await;
            }
        }
    }
}

impl Inner {
    async fn draw(&self) -> Result<Drawn, Refusal> {
        let (RateConfig { per_second, burst, batch }, shared) = (self.config, &self.shared);
        let draw = Draw { bucket: self.bucket.clone(), per_second, burst, want: batch };
        let outage = shared.look(|member, _| member.outage().map(ToString::to_string));
        let why = match outage {
            Some(why) => why,
            None => match shared.in_time(shared.store.draw(draw)).await {
                Ok(drawn) => return Ok(drawn),
                Err(
                    error @ (StoreError::Timeout(_) | StoreError::Unreachable(_) | StoreError::Unexpected(_)),
                ) => error.to_string(),
            },
        };
        let (policy, members) = shared.look(|member, _| (member.policy(), member.members().max(1)));
        match policy {
            Policy::Closed => Err(Refusal::Unavailable { why }),
            Policy::Share => Ok(self.spare().draw_local(per_second / f64::from(members), burst / members)),
            Policy::Open => Ok(self.spare().draw_local(per_second, burst)),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare {
    /// Takes one, and says when it expires.
    fn pop(&mut self) -> Option<Instant> {
        self.forget_expired();
        self.tokens = self.tokens.checked_sub(1)?;
        Some(self.expire)
    }

    /// All go with the first that expires.
    fn add(&mut self, tokens: u32, expires: Instant) {
        self.forget_expired();
        self.expire = if self.tokens == 0 { expires } else { self.expire.min(expires) };
        self.tokens = self.tokens.saturating_add(tokens).min(self.max);
    }

    fn forget_expired(&mut self) {
        if now() >= self.expire {
            self.tokens = 0;
        }
    }

    fn draw_local(&mut self, per_second: f64, burst: u32) -> Drawn {
        let time = now().saturating_duration_since(self.origin);
        let (drawn, level) = bucket::draw(self.local, time, per_second, burst, 1);
        self.local = level;
        drawn
    }
}

/// The right to do one thing now. [Spend](Token::spend) it when you begin; dropped before, it goes to the next in line.
#[must_use = "a token that is dropped goes to the next in line"]
pub struct Token {
    rate: Option<Arc<Inner>>,
    expires: Instant,
}

impl Token {
    /// Uses it up.
    pub fn spend(mut self) {
        self.rate = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(rate) = self.rate.take() {
            rate.spare().add(1, self.expires);
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rate").field("bucket", &self.inner.bucket).finish_non_exhaustive()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}
