//! SIGTERM and SIGINT: the first asks for a graceful end, the second for the end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, caught from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
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
        })
    }

    /// The next one's name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
