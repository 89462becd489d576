//! Upstreams under the test's control.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::wire::{Client, within};

/// One whose every byte the test decides.
#[derive(Debug)]
pub(crate) struct Origin {
    listener: TcpListener,
}

impl Origin {
    pub(crate) async fn start() -> Origin {
        Origin { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap() }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// The gate's next connection. Its `head` is the request's, `send` answers.
    pub(crate) async fn accept(&self) -> Client {
        let (socket, _) = within("the gate's dial", self.listener.accept()).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Client::over(socket)
    }

    /// Whether nobody waits to be accepted.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        self.listener.poll_accept(&mut cx).is_pending()
    }
}

/// One that streams to everybody: an event at once, and then nothing until the client leaves.
#[derive(Debug)]
pub(crate) struct Streams {
    addr: SocketAddr,
    open: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Streams {
    pub(crate) async fn start() -> Streams {
        let listener = roomy_listener();
        let addr = listener.local_addr().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                tokio::spawn(stream(socket, Arc::clone(&count)));
            }
        });
        Streams { addr, open, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Streams that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// With a backlog for thousands that come at once.
fn roomy_listener() -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(8192).unwrap()
}

async fn stream(mut socket: TcpStream, open: Arc<AtomicUsize>) {
    const ANSWER: &[u8] =
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
    if socket.write_all(ANSWER).await.is_ok() {
        let mut rest = [0; 16];
        while socket.read(&mut rest).await.unwrap_or(0) > 0 {}
    }
    open.fetch_sub(1, Ordering::SeqCst);
}
