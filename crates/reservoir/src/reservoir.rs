//! What a program holds: the reservoir, and views of it.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{ConfigError, Limits, ReservoirConfig};
use crate::connect::{Connect, Connection};
use crate::error::{CheckoutError, FillError};
use crate::guard::Guard;
use crate::keeper;
use crate::shared::{Shared, Tried, now};
use crate::status::{Filling, Status};

/// Ready connections. Cheap to clone; when the last handle and view are gone, it closes.
pub struct Reservoir<C: Connection> {
    whole: View<C>,
}

/// A share of a reservoir, with a quota of its own: so many connections at once, and no more. Cheap to clone.
pub struct View<C: Connection> {
    owner: Arc<Owner<C>>,
    view: usize,
}

/// Doesn't keep a reservoir open.
#[cfg(feature = "postgres")]
pub(crate) struct WeakReservoir<C: Connection> {
    owner: std::sync::Weak<Owner<C>>,
    view: usize,
}

#[cfg(feature = "postgres")]
impl<C: Connection> WeakReservoir<C> {
    /// `None`: it is closed, or closes.
    pub(crate) fn upgrade(&self) -> Option<Reservoir<C>> {
        let whole = View { owner: self.owner.upgrade()?, view: self.view };
        let is_open = !whole.owner.shared.look(|ledger| ledger.is_closing());
        is_open.then_some(Reservoir { whole })
    }
}

/// Closes the reservoir with the last handle.
struct Owner<C: Connection> {
    shared: Arc<Shared<C>>,
}

impl<C: Connection> Drop for Owner<C> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<C: Connection> Reservoir<C> {
    /// Begins to fill one. Needs a tokio runtime, on which it then lives: one that isn't driven any more opens nothing, and keeps no
    /// deadlines.
    ///
    /// # Errors
    /// If no connection would ever be lent: see [`ConfigError`].
    pub fn start(
        connect: impl Connect<Connection = C>,
        config: ReservoirConfig,
        limits: Limits,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let shared = Shared::new(config, limits.open(&connect.endpoint()));
        let view = shared.add_view("default", u32::MAX);
        tokio::spawn(keeper::run(Arc::new(connect), shared.clone()));
        Ok(Reservoir { whole: View { owner: Arc::new(Owner { shared }), view } })
    }

    /// A share of it, for one of several users: at most `quota` connections at once.
    pub fn view(&self, name: &str, quota: u32) -> View<C> {
        let view = self.books().add_view(name, quota);
        View { owner: self.whole.owner.clone(), view }
    }

    /// Lends a connection that is ready. `None`: there is none.
    #[track_caller]
    pub fn try_checkout(&self) -> Result<Option<Guard<C>>, CheckoutError> {
        self.whole.try_checkout()
    }

    /// Lends a connection; if none is ready, the next in its turn, within the time that the configuration allows.
    #[track_caller]
    pub fn checkout(&self) -> impl Future<Output = Result<Guard<C>, CheckoutError>> + Send + use<'_, C> {
        self.whole.checkout()
    }

    /// Likewise, within `patience`.
    #[track_caller]
    pub fn checkout_within(
        &self,
        patience: Duration,
    ) -> impl Future<Output = Result<Guard<C>, CheckoutError>> + Send + use<'_, C> {
        self.whole.checkout_within(patience)
    }

    /// Waits until there are as many connections as the low watermark says, for up to `patience`. With fewer it goes on, and
    /// says how many there are; with none it fails, and says why.
    pub async fn initial_fill(&self, patience: Duration) -> Result<Filling, FillError> {
        self.initial_fill_with(patience, |_| {}).await
    }

    /// Likewise, and tells of each step.
    pub async fn initial_fill_with(
        &self,
        patience: Duration,
        mut progress: impl FnMut(Filling) + Send,
    ) -> Result<Filling, FillError> {
        let (shared, began) = (self.books(), now());
        let fill = || {
            shared.look(|ledger| {
                let counts = ledger.counts();
                let ready = counts.ready + counts.lent + counts.resetting;
                Filling { ready, wanted: ledger.rules().low_watermark }
            })
        };
        let mut told = None;
        let filled = tokio::time::timeout(patience, async {
            loop {
                let changed = shared.changed.notified();
                let filling = fill();
                if told.replace(filling) != Some(filling) {
                    progress(filling);
                    tracing::info!(
                        service = shared.config.service,
                        ready = filling.ready,
                        wanted = filling.wanted,
                        "filling"
                    );
                }
                if filling.ready >= filling.wanted || shared.look(|ledger| ledger.is_closing()) {
                    return;
                }
                changed.await;
            }
        });
        let in_time = filled.await.is_ok();
        let filling = fill();
        match filling.ready {
            0 => Err(FillError { why: shared.shortage(), waited: now() - began }),
            _ => {
                if !in_time {
                    let Filling { ready, wanted } = filling;
                    let why = shared.shortage();
                    tracing::warn!(service = shared.config.service, ready, wanted, %why, "begins with fewer connections");
                }
                Ok(filling)
            }
        }
    }

    /// Everything that it knows of itself.
    pub fn status(&self) -> Status {
        self.books().status()
    }

    /// Lends nothing more, closes what is ready, and waits for what is lent and for the server to close the rest, for up to
    /// `patience`. Returns how many connections were still out: lent, or not closed by the server.
    ///
    /// Those keep their leases until they have come back and the server has closed them, for as long as the runtime runs;
    /// [`Quota::leave`](forebay_quota::Quota::leave) or the runtime's end gives back what is left, whatever the server has.
    pub async fn close(&self, patience: Duration) -> u32 {
        let shared = self.books();
        shared.close();
        let emptied = tokio::time::timeout(patience, async {
            loop {
                let changed = shared.changed.notified();
                if shared.look(|ledger| ledger.is_empty()) {
                    return;
                }
                changed.await;
            }
        });
        let _ = emptied.await;
        shared.look(|ledger| ledger.counts().total())
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn downgrade(&self) -> WeakReservoir<C> {
        WeakReservoir { owner: Arc::downgrade(&self.whole.owner), view: self.whole.view }
    }

    fn books(&self) -> &Arc<Shared<C>> {
        &self.whole.owner.shared
    }
}

impl<C: Connection> View<C> {
    /// Lends a connection that is ready. `None`: there is none, or this view has its share.
    #[track_caller]
    pub fn try_checkout(&self) -> Result<Option<Guard<C>>, CheckoutError> {
        self.owner.shared.try_checkout(self.view, Some(Location::caller()))
    }

    /// Lends a connection; if none is ready, the next in its turn, within the time that the configuration allows.
    #[track_caller]
    pub fn checkout(&self) -> impl Future<Output = Result<Guard<C>, CheckoutError>> + Send + use<'_, C> {
        self.checkout_within(self.patience())
    }

    /// Likewise, within `patience`.
    #[track_caller]
    pub fn checkout_within(
        &self,
        patience: Duration,
    ) -> impl Future<Output = Result<Guard<C>, CheckoutError>> + Send + use<'_, C> {
        self.checkout_by(Some(Location::caller()), patience)
    }

    pub(crate) fn patience(&self) -> Duration {
        self.owner.shared.config.checkout_timeout
    }

    /// `by` is told if the connection is held for too long.
    pub(crate) async fn checkout_by(
        &self,
        by: Option<&'static Location<'static>>,
        patience: Duration,
    ) -> Result<Guard<C>, CheckoutError> {
        match self.owner.shared.checkout_or_wait(self.view, patience, by)? {
            Tried::Lent(guard) => Ok(guard),
            Tried::Wait(in_line) => in_line.turn().await,
        }
    }
}

impl<C: Connection> Clone for Reservoir<C> {
    fn clone(&self) -> Self {
        Reservoir { whole: self.whole.clone() }
    }
}

impl<C: Connection> Clone for View<C> {
    fn clone(&self) -> Self {
        View { owner: self.owner.clone(), view: self.view }
    }
}

impl<C: Connection> fmt::Debug for Reservoir<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservoir").field("status", &self.status()).finish()
    }
}

impl<C: Connection> fmt::Debug for View<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("view", &self.view).finish_non_exhaustive()
    }
}
