//! SIGTERM and SIGINT: the first asks for a graceful end, the second for the end. SIGHUP: settings are to be read again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// These signals, caught from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
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
        })
    }

    /// The name of the next one that asks for the end. SIGHUP doesn't.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// As [`next`](Self::next); each SIGHUP before it reloads, one after the other.
    pub async fn next_reloading(&mut self, mut reload: impl AsyncFnMut()) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {}
            }
            reload().await;
        }
    }
}
