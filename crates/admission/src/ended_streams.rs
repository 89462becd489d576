//! Streams that were asked to end, and whether they have ended.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::timeout;

/// Streams that an operator asked to end.
#[derive(Debug)]
#[must_use = "says whether a stream was found"]
pub struct EndedStreams {
    /// Each resolves when the permit of its stream is released.
    released: Vec<oneshot::Receiver<()>>,
}

impl EndedStreams {
    pub(crate) fn new(released: Vec<oneshot::Receiver<()>>) -> Self {
        EndedStreams { released }
    }

    /// Returns the number of streams.
    pub fn count(&self) -> usize {
        self.released.len()
    }

    /// Waits until all of them have released their permits, for at most `limit`. Returns how many
    /// have not: a stream whose client doesn't read ends at the server's write timeout.
    pub async fn wait(mut self, limit: Duration) -> usize {
        let all = async {
            for released in &mut self.released {
                let _removed = released.await;
            }
        };
        if timeout(limit, all).await.is_ok() {
            return 0;
        }
        let is_open = |released: &mut oneshot::Receiver<()>| released.try_recv() == Err(TryRecvError::Empty);
        self.released.iter_mut().filter_map(|released| is_open(released).then_some(())).count()
    }
}
