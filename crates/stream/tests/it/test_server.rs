//! Server under test: its streams obey commands of the test and report when they are dropped.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::{
    ClientAddr, ConnectionUpgrade, DrainSummary, Handshake, HttpServer, HttpServerConfig, Incoming, LiveBody,
    ServerStats, service_fn,
};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of every wait in a test, generous for busy machines.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Request with a body that the server echoes.
pub(crate) const ECHO: &str = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";

/// Headers that send a GET on the fast path, or to hyper because it asks for trailers.
pub(crate) const H1_AND_HYPER: [&str; 2] = ["", "\r\nte: trailers"];

/// Size of the response to `/big`, in bytes.
pub(crate) const BIG: usize = 4 << 20;

/// Runs a test on both kinds of runtime.
pub(crate) fn on_both_runtimes(test: impl AsyncFn()) {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(test());
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    multi.block_on(test());
}

pub(crate) async fn soon<F: Future>(what: &str, event: F) -> F::Output {
    timeout(SOON, event).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) stats: ServerStats,
    streams: mpsc::Receiver<StreamControl>,
    shutdown: Option<oneshot::Sender<()>>,
    running: JoinHandle<DrainSummary>,
}

/// Controls one stream, or one unanswered request.
pub(crate) struct StreamControl {
    commands: Option<mpsc::Sender<BodyCommand>>,
    dropped: oneshot::Receiver<Infallible>,
    pub(crate) request_body: Bytes,
    pub(crate) peer: SocketAddr,
}

#[derive(Debug)]
enum BodyCommand {
    Send(Bytes),
    Fail,
    Panic,
}

impl TestServer {
    pub(crate) async fn start(change: impl FnOnce(&mut HttpServerConfig)) -> TestServer {
        TestServer::build(change, None).await
    }

    pub(crate) async fn start_with_handshake(
        change: impl FnOnce(&mut HttpServerConfig),
        handshake: Arc<dyn Handshake>,
    ) -> TestServer {
        TestServer::build(change, Some(handshake)).await
    }

    async fn build(
        change: impl FnOnce(&mut HttpServerConfig),
        handshake: Option<Arc<dyn Handshake>>,
    ) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = HttpServerConfig::default();
        change(&mut config);
        let (announce, streams) = mpsc::channel(2_000);
        let service = service_fn(move |request| respond(request, announce.clone()));
        let mut server = HttpServer::new(listener, service, config);
        if let Some(handshake) = handshake {
            server = server.with_handshake(handshake);
        }
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stats = server.stats();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        TestServer { address, stats, streams, shutdown: Some(shutdown), running }
    }

    pub(crate) async fn default() -> TestServer {
        TestServer::start(|_| {}).await
    }

    /// Returns the next stream or unanswered request that reaches the service.
    pub(crate) async fn stream(&mut self) -> StreamControl {
        soon("a stream", self.streams.recv()).await.unwrap()
    }

    pub(crate) fn begin_shutdown(&mut self) {
        drop(self.shutdown.take());
    }

    pub(crate) async fn ended(self) -> DrainSummary {
        soon("the server's end", self.running).await.unwrap()
    }
}

impl StreamControl {
    pub(crate) async fn send(&self, text: impl Into<Bytes>) {
        self.command(BodyCommand::Send(text.into())).await;
    }

    /// Sends a chunk; returns false if the stream has ended.
    pub(crate) async fn try_send(&self, text: Bytes) -> bool {
        self.commands.as_ref().unwrap().send(BodyCommand::Send(text)).await.is_ok()
    }

    pub(crate) async fn fail(&self) {
        self.command(BodyCommand::Fail).await;
    }

    pub(crate) async fn panic(&self) {
        self.command(BodyCommand::Panic).await;
    }

    /// Ends the body.
    pub(crate) fn end(&mut self) {
        self.commands = None;
    }

    /// Waits until the body, or the unanswered request's future, is dropped.
    pub(crate) async fn dropped(&mut self) {
        soon("the drop of a body", &mut self.dropped).await.unwrap_err();
    }

    async fn command(&self, command: BodyCommand) {
        let commands = self.commands.as_ref().expect("the stream has not ended");
        soon("space for a command", commands.send(command)).await.expect("the stream is open");
    }
}

type BoxedResponse = Response<UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

async fn respond(request: Request<Incoming>, announce: mpsc::Sender<StreamControl>) -> BoxedResponse {
    let peer = request.extensions().get::<ClientAddr>().unwrap().0;
    let (dropping, dropped) = oneshot::channel();
    let (commands, receiver) = mpsc::channel(4);
    let mut control = StreamControl { commands: Some(commands), dropped, request_body: Bytes::new(), peer };
    let mut feed = CommandedBody { commands: receiver, held: None, _dropping: dropping };
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/live" | "/dead" => control.request_body = request.into_body().collect().await.unwrap().to_bytes(),
        "/held" => feed.held = Some(request.into_body()),
        "/echo" => {
            let body =
                request.into_body().collect().await.map_or_else(|_| Bytes::new(), |body| body.to_bytes());
            return Response::new(Full::new(body).map_err(Into::into).boxed_unsync());
        }
        "/big" => return Response::new(Full::new(vec![b'B'; BIG].into()).map_err(Into::into).boxed_unsync()),
        // An interim response, followed by none.
        "/interim" => {
            let interim = Response::builder().status(103);
            return interim.body(Full::default().map_err(Into::into).boxed_unsync()).unwrap();
        }
        "/hangs" => {
            announce.send(control).await.ok().unwrap();
            let _feed = feed;
            return pending().await;
        }
        // Another task reads the request's body, and reports its drop.
        "/elsewhere" => {
            announce.send(control).await.ok().unwrap();
            tokio::spawn(async move {
                let _feed = feed;
                request.into_body().collect().await.unwrap_err();
            });
            return pending().await;
        }
        // Answered with an empty body when the test commands it.
        "/late" => {
            announce.send(control).await.ok().unwrap();
            let _ended = feed.commands.recv().await;
            return Response::new(Full::default().map_err(Into::into).boxed_unsync());
        }
        "/upgrade" => {
            let floods = request.uri().query() == Some("flood");
            control.request_body = request.into_body().collect().await.unwrap().to_bytes();
            announce.send(control).await.ok().unwrap();
            return upgrade(floods, feed);
        }
        "/unread" | "/empty" => {}
        says if says.starts_with("/says/") => {}
        other => panic!("no route {other}"),
    }
    let says = path.strip_prefix("/says/");
    let status = if path == "/empty" { 204 } else { 200 };
    let mut response = Response::builder().status(status).header("x-path", &path);
    if let Some(length) = says {
        response = response.header("content-length", length);
    } else if path != "/dead" {
        response = response.extension(LiveBody);
    }
    announce.send(control).await.ok().unwrap();
    response.body(feed.boxed_unsync()).unwrap()
}

/// Upgrades the connection: it echoes its input, or is flooded with output.
fn upgrade(floods: bool, feed: CommandedBody) -> BoxedResponse {
    let upgrade = ConnectionUpgrade::new();
    let response = Response::builder().status(101).header("upgrade", "echo").extension(upgrade.clone());
    let connection = Box::pin(async move {
        let (mut reader, mut writer) = tokio::io::split(upgrade.take().expect("the 101 is written"));
        if floods {
            while writer.write_all(&[0; 65_536]).await.is_ok() {}
        } else {
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            let _ = writer.shutdown().await;
        }
        drop(feed);
    });
    response.body(UpgradedBody(connection).boxed_unsync()).unwrap()
}

/// Response body that runs an upgraded connection.
struct UpgradedBody(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Body for UpgradedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.as_mut().poll(cx).map(|()| None)
    }
}

/// Response body that obeys commands.
struct CommandedBody {
    commands: mpsc::Receiver<BodyCommand>,
    held: Option<Incoming>,
    _dropping: oneshot::Sender<Infallible>,
}

impl Body for CommandedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.commands.poll_recv(cx).map(|command| match command? {
            BodyCommand::Send(bytes) => Some(Ok(Frame::data(bytes))),
            BodyCommand::Fail => Some(Err("commanded to fail".into())),
            BodyCommand::Panic => panic!("commanded to panic"),
        })
    }
}
