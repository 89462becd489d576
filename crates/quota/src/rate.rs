//! `Rate`: a cluster-wide token bucket. Callers get tokens one at a time, in order of arrival.
//!
//! Invariant: over any span of time, the cluster gets at most one burst plus the rate's tokens for
//! that span.
//! Enforced by: each token comes from the shared bucket. An unused token passes to the next caller
//! of the same member, or is lost after `TOKEN_TTL`.
//! While the store is unavailable, a member uses a local bucket with its part of the rate. With the
//! policy `closed` it gives no tokens.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::{OutagePolicy, RateConfig};
use crate::core::bucket::{self, BucketLevel};
use crate::error::QuotaRefusal;
use crate::member_runtime::{MemberRuntime, now};
use crate::store::{StoreError, TokenReply, TokenRequest};

/// An unused token is lost after this time.
const TOKEN_TTL: Duration = Duration::from_secs(1);
/// Longest sleep between two draws. A store may return a longer wait if its clock was wrong; the
/// next draw corrects that.
const MAX_SLEEP: Duration = Duration::from_secs(2);

/// A rate that holds across all members.
#[derive(Clone)]
pub struct Rate {
    state: Arc<RateState>,
}

struct RateState {
    runtime: Arc<MemberRuntime>,
    bucket: Arc<str>,
    config: RateConfig,
    /// FIFO queue of callers; its owner is the only one that draws from the store.
    queue: tokio::sync::Mutex<()>,
    spare: Mutex<SpareTokens>,
}

/// Unused tokens, and the local bucket for outages.
struct SpareTokens {
    tokens: u32,
    /// Maximum number of unused tokens.
    max: u32,
    expires_at: Instant,
    origin: Instant,
    local: BucketLevel,
}

impl Rate {
    pub(crate) fn new(runtime: Arc<MemberRuntime>, name: &str, config: RateConfig) -> Self {
        let now = now();
        let spare = SpareTokens {
            tokens: 0,
            max: config.burst.max(config.batch),
            expires_at: now,
            origin: now,
            local: BucketLevel::default(),
        };
        let (queue, spare) = (tokio::sync::Mutex::new(()), Mutex::new(spare));
        Rate {
            state: Arc::new(RateState { runtime, bucket: format!("r:{name}").into(), config, queue, spare }),
        }
    }

    /// Waits for a token, in order of arrival. Cancel safe.
    pub async fn take(&self) -> Result<RateToken, QuotaRefusal> {
        let _turn = self.state.queue.lock().await;
        loop {
            if let Some(expires) = self.state.spare.lock().pop() {
                return Ok(RateToken { rate: Some(self.state.clone()), expires });
            }
            // The draw runs in its own task: if the caller is cancelled, the next caller gets the
            // tokens.
            let state = self.state.clone();
            let drawing = self.state.runtime.spawn(async move {
                let reply = state.draw().await?;
                state.spare.lock().add(reply.tokens, now() + TOKEN_TTL);
                Ok(reply)
            });
            let TokenReply { tokens, wait } = drawing.await.unwrap_or_else(|_| {
                Err(QuotaRefusal::Unavailable { why: "the runtime of this member has ended".into() })
            })?;
            if tokens == 0 {
                tokio::time::sleep(wait.min(MAX_SLEEP)).await;
            }
        }
    }
}

impl RateState {
    async fn draw(&self) -> Result<TokenReply, QuotaRefusal> {
        let (RateConfig { per_second, burst, batch }, runtime) = (self.config, &self.runtime);
        let draw = TokenRequest { bucket: self.bucket.clone(), per_second, burst, want: batch };
        let outage = runtime.read(|member, _| member.outage().map(ToString::to_string));
        let why = match outage {
            Some(why) => why,
            None => match runtime.with_timeout(runtime.store.draw(draw)).await {
                Ok(reply) => return Ok(reply),
                Err(
                    error @ (StoreError::Timeout(_) | StoreError::Unreachable(_) | StoreError::Unexpected(_)),
                ) => error.to_string(),
            },
        };
        let (policy, members) = runtime.read(|member, _| (member.policy(), member.members().max(1)));
        match policy {
            OutagePolicy::Closed => Err(QuotaRefusal::Unavailable { why }),
            OutagePolicy::Share => {
                Ok(self.spare.lock().draw_local(per_second / f64::from(members), burst / members))
            }
            OutagePolicy::Open => Ok(self.spare.lock().draw_local(per_second, burst)),
        }
    }
}

impl SpareTokens {
    /// Takes one token and returns when it expires.
    fn pop(&mut self) -> Option<Instant> {
        self.forget_expired();
        self.tokens = self.tokens.checked_sub(1)?;
        Some(self.expires_at)
    }

    /// Adds unused tokens. All of them expire with the oldest.
    fn add(&mut self, tokens: u32, expires: Instant) {
        self.forget_expired();
        self.expires_at = if self.tokens == 0 { expires } else { self.expires_at.min(expires) };
        self.tokens = self.tokens.saturating_add(tokens).min(self.max);
    }

    fn forget_expired(&mut self) {
        if now() >= self.expires_at {
            self.tokens = 0;
        }
    }

    fn draw_local(&mut self, per_second: f64, burst: u32) -> TokenReply {
        let time = now().saturating_duration_since(self.origin);
        let (reply, level) = bucket::draw(self.local, time, per_second, burst, 1);
        self.local = level;
        reply
    }
}

/// Permission for one operation. [Spend](RateToken::spend) the token when the operation begins. A
/// token that is dropped unspent passes to the next caller.
#[must_use = "a token that is dropped goes to the next caller"]
pub struct RateToken {
    rate: Option<Arc<RateState>>,
    expires: Instant,
}

impl RateToken {
    /// Uses the token up.
    pub fn spend(mut self) {
        self.rate = None;
    }
}

impl Drop for RateToken {
    fn drop(&mut self) {
        if let Some(rate) = self.rate.take() {
            rate.spare.lock().add(1, self.expires);
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rate").field("bucket", &self.state.bucket).finish_non_exhaustive()
    }
}

impl fmt::Debug for RateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}
