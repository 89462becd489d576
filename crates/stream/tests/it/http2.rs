//! HTTP/2 by prior knowledge: everything takes the ordinary path, and clients that leave are noticed there too.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::site::{Site, on_both_runtimes, soon, until};

struct H2 {
    requests: http2::SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
    /// The same socket, to close it under hyper's hands.
    line: socket2::Socket,
}

impl H2 {
    async fn connect(address: SocketAddr) -> H2 {
        let socket = soon("a connection", TcpStream::connect(address)).await.unwrap();
        let line = SockRef::from(&socket).try_clone().unwrap();
        let (requests, connection) =
            soon("a handshake", http2::handshake(Spawn, ForHyper(socket))).await.unwrap();
        H2 { requests, connection: tokio::spawn(connection), line }
    }

    async fn ask(&mut self, path: &str, body: &'static str) -> Response<Incoming> {
        let request = Request::post(format!("http://test{path}")).body(Full::new(body.into())).unwrap();
        soon("a response", self.requests.send_request(request)).await.unwrap()
    }
}

/// The end may come with an empty frame.
async fn is_over(response: Response<Incoming>) -> bool {
    soon("the end", response.into_body().collect()).await.unwrap().to_bytes().is_empty()
}

async fn chunk(response: &mut Response<Incoming>) -> Bytes {
    soon("a chunk", response.frame()).await.unwrap().unwrap().into_data().unwrap()
}

#[test]
fn requests_of_one_connection_are_answered_side_by_side() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut h2 = H2::connect(site.address).await;
        let mut live = h2.ask("/live", "question").await;
        let mut stream = site.stream().await;
        assert_eq!((live.version(), &stream.request_body[..]), (Version::HTTP_2, &b"question"[..]));
        stream.send("event").await;
        assert_eq!(chunk(&mut live).await, "event");
        let echo = h2.ask("/echo", "hello").await;
        assert_eq!(echo.into_body().collect().await.unwrap().to_bytes(), "hello");
        stream.end();
        assert!(is_over(live).await);
        stream.dropped().await;
        let counts = site.stats.counts();
        assert_eq!((counts.accepted, counts.requests, counts.lean_total), (1, 2, 0));
    });
}

#[test]
fn a_client_that_gives_up_a_stream_or_leaves_drops_the_body() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut h2 = H2::connect(site.address).await;
        let given_up = h2.ask("/live", "").await;
        let mut first = site.stream().await;
        let _kept = h2.ask("/live", "").await;
        let mut second = site.stream().await;
        drop(given_up);
        first.dropped().await;
        assert_eq!(site.stats.counts().open_connections, 1);
        h2.line.shutdown(std::net::Shutdown::Both).unwrap();
        second.dropped().await;
        until("the count", || site.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_body_that_fails_resets_its_stream_only() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut h2 = H2::connect(site.address).await;
        let mut live = h2.ask("/live", "").await;
        let mut stream = site.stream().await;
        stream.fail().await;
        assert!(soon("the reset", live.frame()).await.unwrap().is_err());
        stream.dropped().await;
        let echo = h2.ask("/echo", "still there").await;
        assert_eq!(echo.into_body().collect().await.unwrap().to_bytes(), "still there");
    });
}

#[test]
fn a_drain_says_goodbye_lets_streams_end_and_cuts_the_others() {
    on_both_runtimes(async || {
        for ends in [true, false] {
            let mut site = Site::start(|config| {
                config.drain_timeout = Duration::from_millis(if ends { 15_000 } else { 200 });
            })
            .await;
            let mut h2 = H2::connect(site.address).await;
            let mut live = h2.ask("/live", "").await;
            let mut stream = site.stream().await;
            site.begin_shutdown();
            stream.send("goes on").await;
            assert_eq!(chunk(&mut live).await, "goes on");
            if ends {
                stream.end();
                assert!(is_over(live).await);
            }
            let summary = site.ended().await;
            assert_eq!((summary.open, summary.cut), (1, usize::from(!ends)));
            stream.dropped().await;
            soon("the connection's end", h2.connection).await.unwrap().ok();
        }
    });
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    on_both_runtimes(async || {
        let mut site = Site::start(|config| config.idle_timeout = Duration::from_millis(100)).await;
        let mut busy = H2::connect(site.address).await;
        let mut live = busy.ask("/live", "").await;
        let mut stream = site.stream().await;
        let idle = H2::connect(site.address).await;
        soon("the idle one's end", idle.connection).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        stream.send("here").await;
        assert_eq!(chunk(&mut live).await, "here");
        stream.end();
    });
}

#[test]
fn a_preface_may_come_byte_by_byte_and_must_be_followed_by_http2() {
    on_both_runtimes(async || {
        let site = Site::default().await;
        let mut client = Client::connect(site.address).await;
        for byte in "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".chars() {
            client.send(&byte.to_string()).await;
            tokio::task::yield_now().await;
        }
        client.send("this is no frame at all").await;
        let answer = client.rest().await;
        assert_eq!(answer[3], 4, "the server's settings come first: {}", answer.escape_ascii());
        until("the count", || site.stats.counts().open_connections == 0).await;
        assert_eq!(site.stats.counts().requests, 0);
    });
}

#[derive(Clone)]
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

/// A socket as hyper's client wants it.
struct ForHyper(TcpStream);

mod for_hyper {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use hyper::rt::{Read, ReadBufCursor, Write};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::ForHyper;

    impl Read for ForHyper {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            mut buf: ReadBufCursor<'_>,
        ) -> Poll<io::Result<()>> {
            let mut bytes = [0; 4096];
            let room = buf.remaining().min(bytes.len());
            let mut read = ReadBuf::new(&mut bytes[..room]);
            ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
            buf.put_slice(read.filled());
            Poll::Ready(Ok(()))
        }
    }

    impl Write for ForHyper {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
}
