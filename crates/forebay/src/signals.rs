//! SIGTERM and SIGINT: the first asks for a graceful end, the second for the end. SIGHUP: settings are to be read again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// These signals, caught from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangup_ends: bool,
    /// One that came before and is told once more.
    kept: Option<&'static str>,
}

impl Signals {
    /// Starts to catch them.
    ///
    /// # Errors
    /// When the system doesn't let us.
    pub fn catch() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            hangup_ends: false,
            kept: None,
        })
    }

    /// The next one to be told has come already, though its taker couldn't act on it.
    pub(crate) fn keep(&mut self, signal: &'static str) {
        self.kept = Some(signal);
    }

    /// A terminal that is closed ends it from now on, too.
    pub(crate) fn end_on_hangup(&mut self) {
        self.hangup_ends = true;
    }

    /// The name of the next one that asks for the end. SIGHUP doesn't, unless told so.
    pub async fn next(&mut self) -> &'static str {
        self.next_reloading(async || {}).await
    }

    /// As [`next`](Self::next); each SIGHUP before it reloads, one after the other.
    pub async fn next_reloading(&mut self, mut reload: impl AsyncFnMut()) -> &'static str {
        if let Some(kept) = self.kept.take() {
            return kept;
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
