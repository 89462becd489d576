//! Upstream that sends nothing by itself: the test accepts each connection and writes all bytes.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use crate::wire::{HttpConnection, within};

/// Listener that accepts connections of the gate only when the test calls [`Self::accept`].
#[derive(Debug)]
pub(crate) struct ScriptedUpstream {
    listener: TcpListener,
}

impl ScriptedUpstream {
    pub(crate) async fn start() -> ScriptedUpstream {
        ScriptedUpstream { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap() }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Accepts the gate's next connection. Read the request with `head`, respond with `send`.
    pub(crate) async fn accept(&self) -> HttpConnection {
        let (socket, _) = within("a connection from the gate", self.listener.accept()).await.unwrap();
        socket.set_nodelay(true).unwrap();
        HttpConnection::over(socket)
    }

    /// Returns true if no connection waits to be accepted.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        self.listener.poll_accept(&mut cx).is_pending()
    }
}
