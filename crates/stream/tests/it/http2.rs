//! HTTP/2 with prior knowledge: hyper serves everything, and disconnects are noticed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::client::RawClient;
use crate::test_server::{BIG, TestServer, on_both_runtimes, soon, until};

struct H2Client {
    requests: http2::SendRequest<RequestBody>,
    connection: JoinHandle<hyper::Result<()>>,
    /// Clone of the socket, to close it while hyper uses it.
    socket: socket2::Socket,
}

impl H2Client {
    async fn connect(address: SocketAddr) -> H2Client {
        H2Client::connect_with_window(address, 1 << 20).await
    }

    /// Connects with this initial stream window.
    async fn connect_with_window(address: SocketAddr, window: u32) -> H2Client {
        let socket = soon("a connection", TcpStream::connect(address)).await.unwrap();
        let clone = SockRef::from(&socket).try_clone().unwrap();
        let mut builder = http2::Builder::new(SpawnExecutor);
        builder.initial_stream_window_size(window);
        let (requests, connection) = soon("a handshake", builder.handshake(HyperIo(socket))).await.unwrap();
        H2Client { requests, connection: tokio::spawn(connection), socket: clone }
    }

    async fn ask(&mut self, path: &str, body: &'static str) -> Response<Incoming> {
        self.try_ask(path, RequestBody { chunk: Some(body), never_ends: false }).await.unwrap()
    }

    async fn try_ask(&mut self, path: &str, body: RequestBody) -> hyper::Result<Response<Incoming>> {
        let request = Request::post(format!("http://test{path}")).body(body).unwrap();
        soon("a response", self.requests.send_request(request)).await
    }

    /// Returns true if the connection still serves requests.
    async fn is_alive(&mut self) -> bool {
        self.ask("/echo", "").await.status() == 200
    }
}

/// Request body of one chunk.
struct RequestBody {
    chunk: Option<&'static str>,
    /// Never ends after the chunk.
    never_ends: bool,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.chunk.take() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk.into())))),
            None if self.never_ends => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

/// Returns true if the response ends without further data.
async fn ends_empty(response: Response<Incoming>) -> bool {
    soon("the end", response.into_body().collect()).await.unwrap().to_bytes().is_empty()
}

async fn chunk(response: &mut Response<Incoming>) -> Bytes {
    soon("a chunk", response.frame()).await.unwrap().unwrap().into_data().unwrap()
}

#[test]
fn requests_of_one_connection_are_answered_concurrently() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut h2 = H2Client::connect(server.address).await;
        let mut live = h2.ask("/live", "question").await;
        let mut stream = server.stream().await;
        assert_eq!((live.version(), &stream.request_body[..]), (Version::HTTP_2, &b"question"[..]));
        stream.send("event").await;
        assert_eq!(chunk(&mut live).await, "event");
        let echo = h2.ask("/echo", "hello").await;
        assert_eq!(echo.into_body().collect().await.unwrap().to_bytes(), "hello");
        stream.end();
        assert!(ends_empty(live).await);
        stream.dropped().await;
        let counts = server.stats.counts();
        assert_eq!((counts.accepted, counts.requests, counts.live_started), (1, 2, 0));
    });
}

#[test]
fn a_client_that_resets_a_stream_or_disconnects_drops_the_body() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut h2 = H2Client::connect(server.address).await;
        let reset = h2.ask("/live", "").await;
        let mut first = server.stream().await;
        let _kept = h2.ask("/live", "").await;
        let mut second = server.stream().await;
        drop(reset);
        first.dropped().await;
        assert_eq!(server.stats.counts().open_connections, 1);
        h2.socket.shutdown(std::net::Shutdown::Both).unwrap();
        second.dropped().await;
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_body_that_fails_resets_its_stream_only() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut h2 = H2Client::connect(server.address).await;
        let mut live = h2.ask("/live", "").await;
        let mut stream = server.stream().await;
        stream.fail().await;
        assert!(soon("the reset", live.frame()).await.unwrap().is_err());
        stream.dropped().await;
        let echo = h2.ask("/echo", "still there").await;
        assert_eq!(echo.into_body().collect().await.unwrap().to_bytes(), "still there");
    });
}

#[test]
fn a_drain_sends_goaway_lets_streams_finish_and_aborts_the_others() {
    on_both_runtimes(async || {
        for ends in [true, false] {
            let mut server = TestServer::start(|config| {
                config.drain_timeout = Duration::from_millis(if ends { 60_000 } else { 1_500 });
            })
            .await;
            let mut h2 = H2Client::connect(server.address).await;
            let mut live = h2.ask("/live", "").await;
            let mut stream = server.stream().await;
            server.begin_shutdown();
            stream.send("still open").await;
            assert_eq!(chunk(&mut live).await, "still open");
            if ends {
                stream.end();
                assert!(ends_empty(live).await);
            }
            let summary = server.ended().await;
            assert_eq!((summary.open, summary.cut), (1, usize::from(!ends)));
            stream.dropped().await;
            soon("the connection's end", h2.connection).await.unwrap().ok();
        }
    });
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.idle_timeout = Duration::from_secs(1)).await;
        let mut busy = H2Client::connect(server.address).await;
        let mut live = busy.ask("/live", "").await;
        let mut stream = server.stream().await;
        let idle = H2Client::connect(server.address).await;
        soon("the idle one's end", idle.connection).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        stream.send("here").await;
        assert_eq!(chunk(&mut live).await, "here");
        stream.end();
    });
}

#[test]
fn a_client_that_accepts_no_bytes_loses_the_stream_and_not_the_connection() {
    on_both_runtimes(async || {
        // A closed window from the start, and one that closes after the first frame.
        for (path, window) in [("/live", 0), ("/live", 16 << 10), ("/big", 16 << 10)] {
            let mut server =
                TestServer::start(|config| config.write_timeout = Duration::from_millis(200)).await;
            let mut h2 = H2Client::connect_with_window(server.address, window).await;
            let response = h2.ask(path, "").await;
            if path == "/live" {
                let mut stream = server.stream().await;
                stream.send(vec![b'x'; 100_000]).await;
                stream.dropped().await;
            }
            until("the count", || server.stats.counts().slow_clients == 1).await;
            assert!(soon("the reset", response.into_body().collect()).await.is_err());
            assert!(h2.is_alive().await);
        }
    });
}

#[test]
fn a_slow_client_gets_everything_even_after_longer_than_any_timeout() {
    on_both_runtimes(async || {
        let server = TestServer::start(|config| {
            config.write_timeout = Duration::from_millis(1_500);
            config.idle_timeout = Duration::from_secs(1);
        })
        .await;
        let mut h2 = H2Client::connect_with_window(server.address, 32 << 10).await;
        let mut response = h2.ask("/big", "").await;
        let mut received = 0;
        while let Some(frame) = soon("a frame", response.frame()).await {
            received += frame.unwrap().into_data().unwrap().len();
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
        assert_eq!((received, server.stats.counts().slow_clients), (BIG, 0));
    });
}

#[test]
fn a_live_stream_may_be_silent_longer_than_any_timeout() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| {
            config.write_timeout = Duration::from_millis(100);
            config.body_read_timeout = Duration::from_millis(100);
        })
        .await;
        let mut h2 = H2Client::connect(server.address).await;
        let mut live = h2.ask("/live", "").await;
        let mut stream = server.stream().await;
        for event in ["one", "two"] {
            stream.send(event).await;
            assert_eq!(chunk(&mut live).await, event);
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        stream.end();
        assert!(ends_empty(live).await);
    });
}

#[test]
fn a_request_whose_body_stops_arriving_is_reset_for_every_reader() {
    on_both_runtimes(async || {
        let mut server =
            TestServer::start(|config| config.body_read_timeout = Duration::from_millis(200)).await;
        let mut h2 = H2Client::connect(server.address).await;
        for (round, path) in (1..).zip(["/echo", "/elsewhere"]) {
            let result = h2.try_ask(path, RequestBody { chunk: Some("hello"), never_ends: true }).await;
            assert!(result.is_err(), "{path}");
            if path == "/elsewhere" {
                server.stream().await.dropped().await;
            }
            until("the count", || server.stats.counts().body_timeouts == round).await;
        }
        assert!(h2.is_alive().await);
    });
}

#[test]
fn a_preface_may_arrive_byte_by_byte_and_http2_must_follow() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        for byte in "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".chars() {
            client.send(&byte.to_string()).await;
            tokio::task::yield_now().await;
        }
        client.send("this is no frame at all").await;
        let response = client.rest().await;
        assert_eq!(response[3], 4, "the server's settings come first: {}", response.escape_ascii());
        until("the count", || server.stats.counts().open_connections == 0).await;
        assert_eq!(server.stats.counts().requests, 0);
    });
}

#[derive(Clone)]
struct SpawnExecutor;

impl<F> hyper::rt::Executor<F> for SpawnExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

/// Socket adapter for hyper's client.
struct HyperIo(TcpStream);

mod hyper_io {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use hyper::rt::{Read, ReadBufCursor, Write};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::HyperIo;

    impl Read for HyperIo {
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

    impl Write for HyperIo {
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
