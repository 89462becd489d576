//! One connection's task, from accept to close.
//!
//! Invariant: a task is never larger than a lean stream needs.
//! Kept by: everything before that is one box, freed when the stream begins.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::net::TcpStream;

use crate::Peer;
use crate::bounds::{Answers, Streamed};
use crate::lean::{Lean, Taken};
use crate::ordinary;
use crate::registry::Entry;
use crate::server::Shared;

pin_project! {
    /// The future of a connection's task.
    pub(crate) struct Connection<B> {
        #[pin]
        phase: Phase<B>,
        entry: Open,
    }
}

/// Dropped last, so that an open connection is counted as long as anything of it is left.
struct Open {
    shared: Arc<Shared>,
    _entry: Entry,
}

pin_project! {
    #[project = PhaseView]
    enum Phase<B> {
        Ordinary { serving: Serving<B> },
        Lean { #[pin] lean: Lean<B> },
    }
}

type Serving<B> = Pin<Box<dyn Future<Output = Option<Taken<B>>> + Send>>;

impl<B: Streamed + Send + 'static> Connection<B> {
    pub(crate) fn new<S>(stream: TcpStream, peer: Peer, service: S, shared: Arc<Shared>, entry: Entry) -> Self
    where
        S: Answers<B>,
    {
        shared.stats.counters().accepted.up();
        shared.stats.counters().open_connections.up();
        let serving = Box::pin(ordinary::serve(stream, peer, service, Arc::clone(&shared)));
        Connection { phase: Phase::Ordinary { serving }, entry: Open { shared, _entry: entry } }
    }
}

impl<B: Streamed> Future for Connection<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            match this.phase.as_mut().project() {
                PhaseView::Ordinary { serving } => {
                    let Some(taken) = ready!(serving.as_mut().poll(cx)) else { return Poll::Ready(()) };
                    let shared = &this.entry.shared;
                    let lean = Lean::new(taken, Arc::clone(&shared.config), shared.stats.clone());
                    this.phase.set(Phase::Lean { lean });
                }
                PhaseView::Lean { lean } => return lean.poll(cx),
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.stats.counters().open_connections.down();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::combinators::UnsyncBoxBody;

    use super::*;
    use crate::Tail;
    use crate::error::BoxError;
    use crate::outlet::Outlet;

    /// tokio adds about 100 bytes for the task, and 256 for the socket's place in its reactor.
    #[test]
    fn a_stream_is_small_with_its_body_in_it_or_in_a_box() {
        let boxed = size_of::<Connection<UnsyncBoxBody<Bytes, BoxError>>>();
        let tail = size_of::<Connection<Tail>>();
        let outlet = size_of::<Outlet>();
        assert!(boxed <= 128 && tail <= 192 && outlet <= 192, "boxed {boxed}, tail {tail}, outlet {outlet}");
    }

    #[test]
    fn what_comes_before_the_stream_adds_nothing() {
        assert!(size_of::<Connection<Tail>>() <= size_of::<Lean<Tail>>() + size_of::<Open>());
    }
}
