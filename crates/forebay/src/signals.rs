//! Signals of the process. The first SIGTERM or SIGINT requests a graceful shutdown, the second an
//! immediate one. SIGHUP requests a reload of the settings.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of these signals. It receives them from its creation on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangup_ends: bool,
    /// Signal that the next call of `next` returns, see `requeue`.
    queued: Option<&'static str>,
}

impl Signals {
    /// Starts to receive signals.
    ///
    /// # Errors
    /// Fails if the system refuses the handlers.
    pub fn catch() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            hangup_ends: false,
            queued: None,
        })
    }

    /// Makes `next` return this signal once more, because the caller couldn't act on it.
    pub(crate) fn requeue(&mut self, signal: &'static str) {
        self.queued = Some(signal);
    }

    /// Makes SIGHUP, which a closed terminal sends, request a shutdown too.
    pub(crate) fn end_on_hangup(&mut self) {
        self.hangup_ends = true;
    }

    /// Waits for the next signal that requests a shutdown, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        self.next_with_reload(async || {}).await
    }

    /// Like [`next`](Self::next). While it waits, each SIGHUP runs `reload`, one after the other.
    pub async fn next_with_reload(&mut self, mut reload: impl AsyncFnMut()) -> &'static str {
        if let Some(queued) = self.queued.take() {
            return queued;
        }
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {}
            }
            if self.hangup_ends {
                return "SIGHUP";
            }
            reload().await;
        }
    }
}
