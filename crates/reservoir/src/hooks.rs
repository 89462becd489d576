//! Hooks: callbacks on a connection after it was opened, and before it is lent.
//!
//! Invariant: a connection whose hook fails or times out is retired and not lent.
//! Enforced by: a dial succeeds only after its hook ([`HookedConnection`]). A checkout returns a
//! guard only after its hook, and otherwise marks the connection as bad.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::connect::{ConnectionError, ConnectionErrorKind, DialSlot, ReservoirConnection};

/// Why a hook failed. Its text is logged: it must contain no secrets and no row values.
pub type HookError = Box<dyn Error + Send + Sync>;

/// Future of a hook. It may be dropped at any point.
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HookError>> + Send + 'a>>;

type Hook<C> = Arc<dyn for<'a> Fn(&'a mut C) -> HookFuture<'a> + Send + Sync>;

/// Callbacks of a reservoir, for
/// [`Reservoir::start_with_hooks`](crate::Reservoir::start_with_hooks).
///
/// A connection whose hook returns an error, or takes longer than
/// [`hook_timeout`](crate::ReservoirConfig::hook_timeout), is closed and replaced.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_reservoir::{
///     ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig,
///     ReservoirHooks,
/// };
///
/// let hooks = ReservoirHooks::new()
///     .after_connect(|client: &mut PostgresClient| {
///         Box::pin(async move { Ok(client.batch_execute("LOAD 'auto_explain'").await?) })
///     })
///     .before_lend(|client: &mut PostgresClient| {
///         Box::pin(async move { Ok(client.batch_execute("SET search_path = shop").await?) })
///     });
/// let connect = PostgresConnect::new("postgres://app@db.internal/shop")?;
/// let (config, limits) = (ReservoirConfig::new(16), ConnectionLimits::local());
/// let reservoir = Reservoir::start_with_hooks(connect, config, limits, hooks)?;
/// # drop(reservoir);
/// # Ok(())
/// # }
/// ```
pub struct ReservoirHooks<C> {
    after_connect: Option<Hook<C>>,
    pub(crate) before_lend: Option<Hook<C>>,
}

impl<C> ReservoirHooks<C> {
    /// Returns no hooks.
    pub fn new() -> Self {
        ReservoirHooks { after_connect: None, before_lend: None }
    }

    /// Sets the hook that runs once on each new connection, as the last step of its dial.
    ///
    /// If it fails, the dial counts as failed, and dials back off. Session settings that it makes
    /// last until the first reset; see [`Reset`](crate::Reset).
    #[must_use]
    pub fn after_connect(
        mut self,
        hook: impl for<'a> Fn(&'a mut C) -> HookFuture<'a> + Send + Sync + 'static,
    ) -> Self {
        self.after_connect = Some(Arc::new(hook));
        self
    }

    /// Sets the hook that runs on a connection each time before it is lent, after the reset.
    ///
    /// It runs in the caller's checkout. If it fails, the checkout continues with another
    /// connection, at the end of the queue, until its own timeout has passed. So a checkout may
    /// take its timeout plus one hook timeout. A checkout that is dropped during the hook returns
    /// the connection.
    ///
    /// A connection whose hook failed is closed. Such failures don't delay dials, unlike those of
    /// [`after_connect`](Self::after_connect). So while the hook fails on each connection, each
    /// checkout closes the ready connections one after another, and replacements are dialed at the
    /// full rate. Let the hook fail only if the connection itself is at fault.
    ///
    /// `try_checkout` fails with [`HookNeedsWait`](crate::CheckoutError::HookNeedsWait).
    #[must_use]
    pub fn before_lend(
        mut self,
        hook: impl for<'a> Fn(&'a mut C) -> HookFuture<'a> + Send + Sync + 'static,
    ) -> Self {
        self.before_lend = Some(Arc::new(hook));
        self
    }
}

impl<C: ReservoirConnection> ReservoirHooks<C> {
    /// Runs the after-connect hook on a connection that was dialed in `slot`.
    ///
    /// If it fails or this future is dropped, the connection is closed in the background, and holds
    /// the slot until the server has closed its end.
    pub(crate) async fn run_after_connect(
        &self,
        connection: C,
        slot: DialSlot,
        timeout: Duration,
    ) -> Result<C, ConnectionError> {
        let Some(hook) = &self.after_connect else { return Ok(connection) };
        let mut hooked = HookedConnection::new(connection, slot);
        run(hook(hooked.connection()), timeout)
            .await
            .map_err(|failure| ConnectionError::new(ConnectionErrorKind::Hook, failure))?;
        Ok(hooked.into_connection())
    }

    /// Runs the before-lend hook.
    pub(crate) async fn run_before_lend(
        &self,
        connection: &mut C,
        timeout: Duration,
    ) -> Result<(), HookFailure> {
        match &self.before_lend {
            Some(hook) => run(hook(connection), timeout).await,
            None => Ok(()),
        }
    }
}

/// How a hook failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookFailure {
    #[error("{0}")]
    Failed(HookError),
    #[error("no result within {0:?}; speed up the hook, or raise hook_timeout")]
    TimedOut(Duration),
}

async fn run(hook: HookFuture<'_>, timeout: Duration) -> Result<(), HookFailure> {
    match tokio::time::timeout(timeout, hook).await {
        Ok(result) => result.map_err(HookFailure::Failed),
        Err(_) => Err(HookFailure::TimedOut(timeout)),
    }
}

/// A new connection whose after-connect hook has not passed. Dropping it closes the connection.
struct HookedConnection<C: ReservoirConnection> {
    /// `None` once the hook has passed.
    connection: Option<C>,
    slot: DialSlot,
    runtime: Handle,
}

impl<C: ReservoirConnection> HookedConnection<C> {
    fn new(connection: C, slot: DialSlot) -> Self {
        HookedConnection { connection: Some(connection), slot, runtime: Handle::current() }
    }

    fn connection(&mut self) -> &mut C {
        self.connection.as_mut().expect(HAS_CONNECTION)
    }

    fn into_connection(mut self) -> C {
        self.connection.take().expect(HAS_CONNECTION)
    }
}

const HAS_CONNECTION: &str = "the connection is taken once, when its hook has passed";

impl<C: ReservoirConnection> Drop for HookedConnection<C> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let slot = self.slot.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                () = connection.close() => {}
                () = slot.released() => {}
            }
        });
    }
}

impl<C> Default for ReservoirHooks<C> {
    fn default() -> Self {
        ReservoirHooks::new()
    }
}

impl<C> Clone for ReservoirHooks<C> {
    fn clone(&self) -> Self {
        ReservoirHooks { after_connect: self.after_connect.clone(), before_lend: self.before_lend.clone() }
    }
}

impl<C> fmt::Debug for ReservoirHooks<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservoirHooks")
            .field("after_connect", &self.after_connect.is_some())
            .field("before_lend", &self.before_lend.is_some())
            .finish()
    }
}
