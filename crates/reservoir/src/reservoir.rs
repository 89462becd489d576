//! Public handles: the reservoir and its views.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{ConnectionLimits, ReservoirConfig, ReservoirConfigError};
use crate::connect::{Connect, ReservoirConnection};
use crate::driver::{CheckoutAttempt, ReservoirDriver, now};
use crate::error::{CheckoutError, FillError};
use crate::guard::ConnectionGuard;
use crate::hooks::ReservoirHooks;
use crate::refill::Refiller;
use crate::status::{FillProgress, Status};

/// A reservoir of open connections. Cheap to clone; it closes when the last handle and view are
/// dropped.
pub struct Reservoir<C: ReservoirConnection> {
    whole: ReservoirView<C>,
}

/// A view of a reservoir that may hold a limited number of its connections. Cheap to clone.
pub struct ReservoirView<C: ReservoirConnection> {
    owner: Arc<ReservoirOwner<C>>,
    view: usize,
}

/// A handle that doesn't keep the reservoir open.
#[cfg(feature = "postgres")]
pub(crate) struct WeakReservoir<C: ReservoirConnection> {
    owner: std::sync::Weak<ReservoirOwner<C>>,
    view: usize,
}

#[cfg(feature = "postgres")]
impl<C: ReservoirConnection> WeakReservoir<C> {
    /// Returns `None` if the reservoir is closed or closing.
    pub(crate) fn upgrade(&self) -> Option<Reservoir<C>> {
        let whole = ReservoirView { owner: self.owner.upgrade()?, view: self.view };
        let reservoir = Reservoir { whole };
        (!reservoir.is_closing()).then_some(reservoir)
    }
}

/// Closes the reservoir when the last handle is dropped.
struct ReservoirOwner<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
}

impl<C: ReservoirConnection> Drop for ReservoirOwner<C> {
    fn drop(&mut self) {
        self.driver.close();
    }
}

impl<C: ReservoirConnection> Reservoir<C> {
    /// Starts a reservoir, which begins to fill. Needs a tokio runtime.
    ///
    /// The reservoir's tasks run on that runtime: while it isn't driven, no connection is opened
    /// and no timeout fires.
    ///
    /// # Errors
    /// Fails if no connection would ever be lent: see [`ReservoirConfigError`].
    pub fn start(
        connect: impl Connect<Connection = C>,
        config: ReservoirConfig,
        limits: ConnectionLimits,
    ) -> Result<Self, ReservoirConfigError> {
        Reservoir::start_with_hooks(connect, config, limits, ReservoirHooks::new())
    }

    /// Starts a reservoir as [`start`](Self::start) does, with callbacks on its connections.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with_hooks(
        connect: impl Connect<Connection = C>,
        config: ReservoirConfig,
        limits: ConnectionLimits,
        hooks: ReservoirHooks<C>,
    ) -> Result<Self, ReservoirConfigError> {
        config.check()?;
        let driver = ReservoirDriver::new(config, limits.open(&connect.endpoint()), hooks);
        let view = driver.add_view("default", u32::MAX);
        tokio::spawn(Refiller::new(connect, driver.clone()).run());
        Ok(Reservoir { whole: ReservoirView { owner: Arc::new(ReservoirOwner { driver }), view } })
    }

    /// Returns whether [`close`](Self::close) was called.
    pub fn is_closing(&self) -> bool {
        self.driver().with_ledger(|ledger| ledger.is_closing())
    }

    /// Creates a view that may hold at most `quota` connections at once.
    pub fn view(&self, name: &str, quota: u32) -> ReservoirView<C> {
        let view = self.driver().add_view(name, quota);
        ReservoirView { owner: self.whole.owner.clone(), view }
    }

    /// Lends a ready connection; `None` if there is none.
    #[track_caller]
    pub fn try_checkout(&self) -> Result<Option<ConnectionGuard<C>>, CheckoutError> {
        self.whole.try_checkout()
    }

    /// Lends a connection; waits up to the configured `checkout_timeout` if none is ready.
    ///
    /// Callers are served in the order of arrival.
    #[track_caller]
    pub fn checkout(
        &self,
    ) -> impl Future<Output = Result<ConnectionGuard<C>, CheckoutError>> + Send + use<'_, C> {
        self.whole.checkout()
    }

    /// Lends a connection; waits up to `timeout` if none is ready.
    #[track_caller]
    pub fn checkout_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<ConnectionGuard<C>, CheckoutError>> + Send + use<'_, C> {
        self.whole.checkout_within(timeout)
    }

    /// Waits up to `timeout` until the number of open connections reaches the low watermark.
    ///
    /// Returns the number of open connections if there are fewer, and fails if there is none.
    pub async fn initial_fill(&self, timeout: Duration) -> Result<FillProgress, FillError> {
        self.initial_fill_with(timeout, |_| {}).await
    }

    /// As [`initial_fill`](Self::initial_fill), and calls `progress` at each change.
    pub async fn initial_fill_with(
        &self,
        timeout: Duration,
        mut progress: impl FnMut(FillProgress) + Send,
    ) -> Result<FillProgress, FillError> {
        let (driver, began) = (self.driver(), now());
        let fill = || {
            driver.with_ledger(|ledger| {
                let counts = ledger.counts();
                let ready = counts.ready + counts.lent + counts.resetting;
                FillProgress { ready, wanted: ledger.rules().low_watermark }
            })
        };
        let mut reported = None;
        let filled = tokio::time::timeout(timeout, async {
            loop {
                let changed = driver.changed.notified();
                let filling = fill();
                if reported.replace(filling) != Some(filling) {
                    progress(filling);
                    tracing::info!(
                        service = driver.config.service,
                        ready = filling.ready,
                        wanted = filling.wanted,
                        "reservoir filling"
                    );
                }
                if filling.ready >= filling.wanted || driver.with_ledger(|ledger| ledger.is_closing()) {
                    return;
                }
                changed.await;
            }
        });
        let in_time = filled.await.is_ok();
        let filling = fill();
        match filling.ready {
            0 => Err(FillError { why: driver.shortage(), waited: now() - began }),
            _ => {
                if !in_time {
                    let FillProgress { ready, wanted } = filling;
                    let why = driver.shortage();
                    tracing::warn!(service = driver.config.service, ready, wanted, %why, "reservoir started below its low watermark");
                }
                Ok(filling)
            }
        }
    }

    /// Returns the current state.
    pub fn status(&self) -> Status {
        self.driver().status()
    }

    /// Closes the reservoir and waits up to `timeout`. Returns the number of connections that are
    /// still lent or that the server has not closed.
    ///
    /// No connection is lent any more. Ready connections are closed now, lent ones when they are
    /// returned.
    ///
    /// Remaining connections keep their leases until they are returned and the server has closed
    /// them. [`Quota::leave`](forebay_quota::Quota::leave) and the end of the runtime release the
    /// leases, even if the server has not closed the connections.
    pub async fn close(&self, timeout: Duration) -> u32 {
        let driver = self.driver();
        driver.close();
        let emptied = tokio::time::timeout(timeout, async {
            loop {
                let changed = driver.changed.notified();
                if driver.with_ledger(|ledger| ledger.is_empty()) {
                    return;
                }
                changed.await;
            }
        });
        let _ = emptied.await;
        driver.with_ledger(|ledger| ledger.counts().total())
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn downgrade(&self) -> WeakReservoir<C> {
        WeakReservoir { owner: Arc::downgrade(&self.whole.owner), view: self.whole.view }
    }

    fn driver(&self) -> &Arc<ReservoirDriver<C>> {
        &self.whole.owner.driver
    }
}

impl<C: ReservoirConnection> ReservoirView<C> {
    /// Lends a ready connection; `None` if there is none or this view has reached its quota.
    #[track_caller]
    pub fn try_checkout(&self) -> Result<Option<ConnectionGuard<C>>, CheckoutError> {
        self.owner.driver.try_checkout(self.view, Some(Location::caller()))
    }

    /// Lends a connection; waits up to the configured `checkout_timeout` if none is ready.
    #[track_caller]
    pub fn checkout(
        &self,
    ) -> impl Future<Output = Result<ConnectionGuard<C>, CheckoutError>> + Send + use<'_, C> {
        self.checkout_within(self.checkout_timeout())
    }

    /// Lends a connection; waits up to `timeout` if none is ready.
    #[track_caller]
    pub fn checkout_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<ConnectionGuard<C>, CheckoutError>> + Send + use<'_, C> {
        self.checkout_at(Some(Location::caller()), timeout)
    }

    pub(crate) fn checkout_timeout(&self) -> Duration {
        self.owner.driver.config.checkout_timeout
    }

    /// `location` is reported if the connection is held for too long; `None` disables that.
    pub(crate) async fn checkout_at(
        &self,
        location: Option<&'static Location<'static>>,
        timeout: Duration,
    ) -> Result<ConnectionGuard<C>, CheckoutError> {
        if self.owner.driver.hooks.before_lend.is_some() {
            return Box::pin(self.checkout_with_hook(location, timeout)).await;
        }
        self.checkout_without_hook(location, timeout).await
    }

    /// Checks out connections until one passes the before-lend hook or `timeout` has passed.
    async fn checkout_with_hook(
        &self,
        location: Option<&'static Location<'static>>,
        timeout: Duration,
    ) -> Result<ConnectionGuard<C>, CheckoutError> {
        let (driver, began) = (&self.owner.driver, now());
        let (mut left, mut failure) = (timeout, None);
        loop {
            let waited = || now().saturating_duration_since(began);
            let mut guard = match (self.checkout_without_hook(location, left).await, failure.take()) {
                (Ok(guard), _) => guard,
                // The connections that were free have failed the hook, and no other came in time.
                (Err(CheckoutError::Empty { .. } | CheckoutError::ViewFull { .. }), Some(why)) => {
                    return Err(CheckoutError::Hook { why, waited: waited() });
                }
                (Err(error), _) => return Err(error),
            };
            let Err(error) = guard.run_before_lend().await else { return Ok(guard) };
            drop(guard);
            let (why, waited) = (error.to_string(), waited());
            left = timeout.saturating_sub(waited);
            if left.is_zero() {
                driver.metrics.count_shortage("hook");
                return Err(CheckoutError::Hook { why, waited });
            }
            failure = Some(why);
        }
    }

    async fn checkout_without_hook(
        &self,
        location: Option<&'static Location<'static>>,
        timeout: Duration,
    ) -> Result<ConnectionGuard<C>, CheckoutError> {
        match self.owner.driver.checkout_or_wait(self.view, timeout, location)? {
            CheckoutAttempt::Lent(guard) => Ok(guard),
            CheckoutAttempt::Wait(pending) => pending.wait().await,
        }
    }
}

impl<C: ReservoirConnection> Clone for Reservoir<C> {
    fn clone(&self) -> Self {
        Reservoir { whole: self.whole.clone() }
    }
}

impl<C: ReservoirConnection> Clone for ReservoirView<C> {
    fn clone(&self) -> Self {
        ReservoirView { owner: self.owner.clone(), view: self.view }
    }
}

impl<C: ReservoirConnection> fmt::Debug for Reservoir<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservoir").field("status", &self.status()).finish()
    }
}

impl<C: ReservoirConnection> fmt::Debug for ReservoirView<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservoirView").field("view", &self.view).finish_non_exhaustive()
    }
}
