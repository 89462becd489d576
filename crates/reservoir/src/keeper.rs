//! The refiller: opens connections before they are needed, one step after the other.
//!
//! Invariant: a place in the books, then a lease, then a token of the rate, then credentials, then the dial; each is given back
//! if a later one fails, and the token is spent when the dial begins.

use std::sync::Arc;
use std::time::Duration;

use forebay_quota::Mode;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::connect::{Connect, ConnectError, ConnectErrorKind, Connection};
use crate::shared::{Dialing, Shared, Stage, now};

/// When a budget that said no is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Runs until the reservoir is closed and empty.
pub(crate) async fn run<K: Connect>(connect: Arc<K>, shared: Arc<Shared<K::Connection>>) {
    let (mut dials, mut mode) = (JoinSet::new(), Mode::Normal);
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
    let limits = &shared.limits;
    if let Some(budget) = &limits.budget {
        match budget.take().await {
            Ok(lease) => dialing.keep(lease),
            Err(refusal) => {
                debug!(service = shared.config.service, %refusal, "no lease for another connection");
                return dialing.denied(refusal.to_string(), now() + ASK_AGAIN);
            }
        }
    }
    dialing.enter(Stage::Rate);
    let token = match limits.rate.take().await {
        Ok(token) => token,
        Err(refusal) => return dialing.denied(refusal.to_string(), now() + ASK_AGAIN),
    };
    dialing.enter(Stage::Connection);
    let (began, timeout) = (now(), shared.config.dial_timeout);
    let opened = tokio::time::timeout(timeout, async {
        let credentials = connect.credentials().await?;
        token.spend();
        connect.connect(credentials).await
    });
    let opened = opened.await.unwrap_or_else(|_| {
        let text = format!("not connected within {timeout:?}");
        Err(ConnectError::new(ConnectErrorKind::Unreachable, text))
    });
    match opened {
        Ok(connection) => {
            shared.meters.dial_seconds.record((now() - began).as_secs_f64());
            dialing.succeeded(connection);
        }
        Err(error) => {
            warn!(service = shared.config.service, %error, "a connection couldn't be opened");
            dialing.failed(&error);
        }
    }
}

/// Says when the store of the budget is away, and when it is back.
fn watch_mode<C: Connection>(shared: &Shared<C>, before: &mut Mode) {
    let quota = shared.limits.quota();
    let (mode, service) = (quota.mode(), &shared.config.service);
    let is_local = matches!(mode, Mode::WithinSlices | Mode::Degraded(_));
    shared.meters.local_only.set(f64::from(u8::from(is_local)));
    if let Some(budget) = &shared.limits.budget {
        shared.meters.slice.set(f64::from(budget.usage().slice));
    }
    if mode != *before {
        match is_local {
            true => {
                warn!(service, %mode, "only local limits hold: the store of the connection budget is away")
            }
            false => info!(service, %mode, "the connection budget of the cluster holds"),
        }
        *before = mode;
    }
}
