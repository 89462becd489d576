//! The refiller: opens connections before they are needed, one step after the other.
//!
//! Invariant: a place in the books, then a lease, then credentials, then a token of the rate, then the dial; place and lease are
//! given back if a later step fails, once the server has closed what the dial opened (`dialing.rs`). The token comes last
//! because it is good for this moment: one that waited for slow credentials would be spent together with others.

use std::sync::Arc;
use std::time::Duration;

use forebay_quota::QuotaMode;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::connect::{Connect, ConnectError, ConnectErrorKind, Connection};
use crate::dialing::Dialing;
use crate::error::Shortage;
use crate::shared::{Shared, now};

/// When a budget that said no is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Runs until the reservoir is closed and empty.
pub(crate) async fn run<K: Connect>(connect: Arc<K>, shared: Arc<Shared<K::Connection>>) {
    let (mut dials, mut mode) = (JoinSet::new(), QuotaMode::Normal);
    // Whatever ends this task, even the end of its runtime: nobody may wait for it in vain.
    let _end = End(shared.clone());
    loop {
        let plan = shared.plan();
        watch_mode(&shared, &mut mode);
        for _ in 0..plan.dials {
            dials.spawn(dial(connect.clone(), Dialing::new(shared.clone()), shared.clone()));
        }
        while dials.try_join_next().is_some() {}
        if shared.look(|ledger| ledger.is_closing()) {
            dials.shutdown().await;
        }
        if shared.look(|ledger| ledger.is_empty()) {
            return;
        }
        // Whether it was woken or slept long enough, it looks again.
        let _ = tokio::time::timeout_at(plan.look_at.into(), shared.refiller.notified()).await;
    }
}

struct End<C: Connection>(Arc<Shared<C>>);

impl<C: Connection> Drop for End<C> {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn dial<K: Connect>(
    connect: Arc<K>,
    mut dialing: Dialing<K::Connection>,
    shared: Arc<Shared<K::Connection>>,
) {
    let (limits, timeout) = (&shared.limits, shared.config.dial_timeout);
    if let Some(budget) = &limits.budget {
        match budget.take().await {
            Ok(lease) => dialing.keep(lease),
            Err(refusal) => {
                debug!(service = shared.config.service, %refusal, "no lease for another connection");
                let why = Shortage::LeaseDenied { why: refusal.to_string() };
                return dialing.denied(why, now() + ASK_AGAIN);
            }
        }
    }
    let credentials = match in_time(timeout, connect.credentials()).await {
        Ok(credentials) => credentials,
        Err(error) => return failed(&shared, dialing, &error),
    };
    dialing.waits_for_rate(true);
    match limits.rate.take().await {
        Ok(token) => token.spend(),
        Err(refusal) => {
            let why = Shortage::RateDenied { why: refusal.to_string() };
            return dialing.denied(why, now() + ASK_AGAIN);
        }
    }
    dialing.waits_for_rate(false);
    let began = now();
    let slot = dialing.slot();
    // The future is gone before the dial's end is told: what it gave up holds clones of the slot by then.
    let opened = in_time(timeout, connect.connect_in_slot(credentials, slot)).await;
    match opened {
        Ok(connection) => {
            shared.meters.dial_seconds.record((now() - began).as_secs_f64());
            dialing.succeeded(connection);
        }
        Err(error) => failed(&shared, dialing, &error),
    }
}

async fn in_time<T>(
    timeout: Duration,
    step: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    tokio::time::timeout(timeout, step).await.unwrap_or_else(|_| {
        let text = format!("nothing came of it within {timeout:?}");
        Err(ConnectError::new(ConnectErrorKind::Unreachable, text))
    })
}

fn failed<C: Connection>(shared: &Shared<C>, dialing: Dialing<C>, error: &ConnectError) {
    warn!(service = shared.config.service, %error, "a connection couldn't be opened");
    dialing.failed(error);
}

/// Says when the store of the budget is away, and when it is back.
fn watch_mode<C: Connection>(shared: &Shared<C>, before: &mut QuotaMode) {
    let quota = &shared.limits.quota;
    let (mode, service) = (quota.mode(), &shared.config.service);
    let is_local = matches!(mode, QuotaMode::WithinSlices | QuotaMode::Degraded(_));
    shared.meters.local_only.set(f64::from(u8::from(is_local)));
    if let Some(budget) = &shared.limits.budget {
        shared.meters.slice.set(f64::from(budget.usage().slice));
    }
    if mode != *before {
        match mode {
            QuotaMode::Normal => info!(service, "the connection budget of the cluster holds"),
            QuotaMode::Rebuilding => {
                info!(service, "the store of the connection budget rebuilds: nothing new is opened")
            }
            QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
                warn!(service, %mode, "only local limits hold: the store of the connection budget is away");
            }
        }
        *before = mode;
    }
}
