//! Upstream that responds to each request with an open event stream.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Sends one event at once, and then nothing until the client disconnects.
#[derive(Debug)]
pub(crate) struct StreamingUpstream {
    addr: SocketAddr,
    open: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl StreamingUpstream {
    pub(crate) async fn start() -> StreamingUpstream {
        let listener = listener_with_long_backlog();
        let addr = listener.local_addr().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                tokio::spawn(stream(socket, Arc::clone(&count)));
            }
        });
        StreamingUpstream { addr, open, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of open streams.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for StreamingUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a listener whose backlog holds thousands of connections.
fn listener_with_long_backlog() -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(8192).unwrap()
}

async fn stream(mut socket: TcpStream, open: Arc<AtomicUsize>) {
    const RESPONSE: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
        9\r\ndata: 1\n\n\r\n";
    let mut request = Vec::with_capacity(512);
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    drop(request);
    open.fetch_add(1, Ordering::SeqCst);
    if socket.write_all(RESPONSE).await.is_ok() {
        let mut rest = [0; 16];
        while socket.read(&mut rest).await.unwrap_or(0) > 0 {}
    }
    open.fetch_sub(1, Ordering::SeqCst);
}
