//! Upstream that responds to each request with an open event stream.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Sends one event at once, and then nothing until the client disconnects. With a capacity, the
/// response begins later if more streams are open.
#[derive(Debug)]
pub(crate) struct StreamingUpstream {
    addr: SocketAddr,
    load: Arc<Load>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Load {
    open: AtomicUsize,
    /// Open streams beyond which a response is delayed; 0: none is.
    capacity: AtomicUsize,
}

impl Load {
    /// Returns the time to the first byte: 50 ms, times the square of the overload.
    fn delay(&self) -> Option<Duration> {
        let capacity = self.capacity.load(Ordering::SeqCst);
        let overload = self.open.load(Ordering::SeqCst) as f64 / capacity as f64;
        (capacity > 0).then(|| Duration::from_millis(50).mul_f64(overload.max(1.0).powi(2)))
    }
}

impl StreamingUpstream {
    pub(crate) async fn start() -> StreamingUpstream {
        let listener = listener_with_long_backlog();
        let addr = listener.local_addr().unwrap();
        let load = Arc::new(Load::default());
        let shared = Arc::clone(&load);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                tokio::spawn(stream(socket, Arc::clone(&shared)));
            }
        });
        StreamingUpstream { addr, load, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of open streams.
    pub(crate) fn open(&self) -> usize {
        self.load.open.load(Ordering::SeqCst)
    }

    /// Delays the responses of later streams by 50 ms, and more beyond this number of open streams.
    pub(crate) fn set_capacity(&self, streams: usize) {
        self.load.capacity.store(streams, Ordering::SeqCst);
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

async fn stream(mut socket: TcpStream, load: Arc<Load>) {
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
    load.open.fetch_add(1, Ordering::SeqCst);
    if let Some(delay) = load.delay() {
        tokio::time::sleep(delay).await;
    }
    if socket.write_all(RESPONSE).await.is_ok() {
        let mut rest = [0; 16];
        while socket.read(&mut rest).await.unwrap_or(0) > 0 {}
    }
    load.open.fetch_sub(1, Ordering::SeqCst);
}
