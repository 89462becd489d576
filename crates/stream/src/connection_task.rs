//! Task of one connection, from accept to close.
//!
//! Invariant: a task is never larger than a live stream needs.
//! Enforced by: all state before the stream is one boxed future, freed when the stream starts. An
//! upgraded connection is one boxed future, too.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::net::TcpStream;

use crate::ClientAddr;
use crate::connection_upgrade::{UpgradeParts, serve_upgraded};
use crate::dispatch;
use crate::live::stream::{LiveStream, LiveStreamParts};
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::task_registry::TaskEntry;

pin_project! {
    /// Future of a connection's task.
    pub(crate) struct ConnectionTask<B> {
        #[pin]
        phase: ConnectionPhase<B>,
        entry: OpenConnection,
    }
}

/// Counts the connection as open; dropped after everything else of it.
struct OpenConnection {
    context: Arc<ServerContext>,
    _entry: TaskEntry,
}

pin_project! {
    /// Phase of a connection.
    #[project = ConnectionPhaseProj]
    enum ConnectionPhase<B> {
        Serving { serving: ServeFuture<B> },
        Live { #[pin] stream: LiveStream<B> },
        Upgraded { connection: Pin<Box<dyn Future<Output = ()> + Send>> },
    }
}

/// Serves requests; returns the parts of a response that takes the connection.
type ServeFuture<B> = Pin<Box<dyn Future<Output = Option<ConnectionHandoff<B>>> + Send>>;

/// Parts of a response that takes the connection from HTTP.
pub(crate) enum ConnectionHandoff<B> {
    Live(LiveStreamParts<B>),
    Upgrade(UpgradeParts<B>),
}

impl<B: ResponseBody + Send + 'static> ConnectionTask<B> {
    pub(crate) fn new<S>(
        stream: TcpStream,
        peer: ClientAddr,
        service: S,
        context: Arc<ServerContext>,
        entry: TaskEntry,
    ) -> Self
    where
        S: HttpService<B>,
    {
        context.stats.counters().accepted.increment();
        context.stats.counters().open_connections.increment();
        let serving = Box::pin(dispatch::serve(stream, peer, service, Arc::clone(&context)));
        ConnectionTask {
            phase: ConnectionPhase::Serving { serving },
            entry: OpenConnection { context, _entry: entry },
        }
    }
}

impl<B: ResponseBody + Send + 'static> Future for ConnectionTask<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            match this.phase.as_mut().project() {
                ConnectionPhaseProj::Serving { serving } => {
                    let Some(handoff) = ready!(serving.as_mut().poll(cx)) else { return Poll::Ready(()) };
                    let (config, stats) =
                        (Arc::clone(&this.entry.context.config), this.entry.context.stats.clone());
                    this.phase.set(match handoff {
                        ConnectionHandoff::Live(parts) => {
                            ConnectionPhase::Live { stream: LiveStream::new(parts, config, stats) }
                        }
                        ConnectionHandoff::Upgrade(parts) => {
                            ConnectionPhase::Upgraded { connection: Box::pin(serve_upgraded(parts, stats)) }
                        }
                    });
                }
                ConnectionPhaseProj::Live { stream } => return stream.poll(cx),
                ConnectionPhaseProj::Upgraded { connection } => return connection.as_mut().poll(cx),
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.context.stats.counters().open_connections.decrement();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::combinators::UnsyncBoxBody;

    use super::*;
    use crate::Tail;
    use crate::error::BodyError;
    use crate::live::direct_writes::DirectSocket;

    /// tokio adds about 100 bytes for the task and 256 for the socket's registration.
    #[test]
    fn the_task_of_a_stream_is_small() {
        let boxed = size_of::<ConnectionTask<UnsyncBoxBody<Bytes, BodyError>>>();
        let tail = size_of::<ConnectionTask<Tail>>();
        let socket = size_of::<DirectSocket>();
        assert!(boxed <= 128 && tail <= 192 && socket <= 192, "boxed {boxed}, tail {tail}, socket {socket}");
    }

    #[test]
    fn a_connection_task_is_no_larger_than_a_live_stream() {
        assert!(
            size_of::<ConnectionTask<Tail>>() <= size_of::<LiveStream<Tail>>() + size_of::<OpenConnection>()
        );
    }
}
