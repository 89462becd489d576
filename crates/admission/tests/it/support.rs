//! Test fixtures: a streaming server with the layer, and a minimal HTTP client.

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use bytes::Bytes;
use forebay_admission::{Admission, AdmissionLayer, ApiKeys, ClientIdentity, Identifier};
use forebay_quota::Quota;
pub(crate) use forebay_testkit::{eventually, within};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An admission with these limits, counted in this process.
pub(crate) fn admission_of(total: u32, per_user: u32) -> Admission {
    Admission::builder().total(total).per_user(per_user).build(Quota::local())
}

pub(crate) fn user(id: &str) -> ClientIdentity {
    ClientIdentity::user(id).unwrap()
}

/// Identifies users by the header `X-User-ID` from loopback.
pub(crate) fn by_header() -> Identifier {
    Identifier::new().trusted_proxies(["127.0.0.0/8".parse().unwrap()]).trusted_header()
}

/// Identifies users by the API key `key-of-NAME`.
pub(crate) fn by_key(names: &[&str]) -> Identifier {
    let add = |keys: ApiKeys, name: &&str| keys.key(&format!("key-of-{name}"), name);
    Identifier::new().api_keys(names.iter().fold(ApiKeys::new(), add))
}

/// Waits until no stream is open, here and in the quota's counts. A user's account stays in memory
/// until the store has confirmed the release, some settlement batches after the last stream.
pub(crate) async fn wait_until_released(admission: &Admission) {
    let users = || admission.status().quota.keyed.iter().map(|keyed| keyed.keys).sum::<usize>();
    let counts = async || (admission.open_streams(), admission.statistics().total_connections, users());
    eventually("all permits are released", (0, 0, 0), counts).await;
}

/// Starts a server with the layer. `/endless` sends one event and stays open, `/stalled` sends no
/// response head, `/busy` sends events endlessly, `/short` sends one event and ends, `/echo`
/// returns its thread id and user.
pub(crate) async fn serve(admission: &Admission, identify: Identifier) -> SocketAddr {
    let layer = AdmissionLayer::new(admission.clone(), identify)
        .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    let app = Router::new()
        .route("/endless", any(async || events(stream::iter([event()]).chain(stream::pending()))))
        .route("/busy", any(async || events(stream::repeat_with(event))))
        .route("/stalled", any(std::future::pending::<Body>))
        .route("/short", any(async || "data: hello\n\n"))
        .route("/echo", any(echo))
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

async fn echo(request: axum::extract::Request) -> String {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let thread = request.extensions().get::<forebay_admission::ThreadId>().map(ToString::to_string);
    let user = request.extensions().get::<forebay_admission::UserId>().map(|user| user.id().to_owned());
    let echo = serde_json::json!({
        "thread_header": header("x-thread-id"),
        "thread": thread,
        "user": user,
        "user_header": header("x-user-id"),
        "forwarded": header("x-forwarded-for"),
    });
    echo.to_string()
}

fn event() -> Result<Bytes, Infallible> {
    Ok(Bytes::from_static(b"data: hello\n\n"))
}

fn events(stream: impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Body {
    Body::from_stream(stream)
}

/// One connection to a server.
pub(crate) struct RawHttpClient {
    socket: TcpStream,
    received: Vec<u8>,
}

/// Head of a response.
#[derive(Debug)]
pub(crate) struct RawResponseHead {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl RawResponseHead {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl RawHttpClient {
    /// Sends a request without waiting for a response.
    pub(crate) async fn send(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut socket = TcpStream::connect(to).await.unwrap();
        let mut text = format!("GET {path} HTTP/1.1\r\nhost: test\r\n");
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        // A server may reject a request before it has read everything.
        let _ = socket.write_all(text.as_bytes()).await;
        RawHttpClient { socket, received: Vec::new() }
    }

    /// Sends a request and reads the head of the response.
    pub(crate) async fn get(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (RawResponseHead, Self) {
        let mut client = Self::send(to, path, headers).await;
        let head = within("the head of a response", client.head()).await;
        (head, client)
    }

    pub(crate) async fn head(&mut self) -> RawResponseHead {
        self.until(b"\r\n\r\n").await;
        let end = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let text = String::from_utf8(self.received.drain(..end).collect()).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        RawResponseHead { status, text }
    }

    /// Reads until these bytes have arrived.
    pub(crate) async fn until(&mut self, wanted: &[u8]) {
        while !self.received.windows(wanted.len()).any(|bytes| bytes == wanted) {
            let read = self.socket.read_buf(&mut self.received).await.unwrap();
            assert_ne!(read, 0, "closed before {:?}", String::from_utf8_lossy(wanted));
        }
    }

    /// Reads a body with a content-length as JSON.
    pub(crate) async fn json(&mut self, head: &RawResponseHead) -> Value {
        let length: usize = head.header("content-length").expect("a length").parse().unwrap();
        while self.received.len() < length {
            assert_ne!(self.socket.read_buf(&mut self.received).await.unwrap(), 0);
        }
        serde_json::from_slice(&self.received[..length]).unwrap()
    }
}

/// Sends a request and returns head and JSON body of the response.
pub(crate) async fn refusal(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> (RawResponseHead, Value) {
    let (head, mut client) = RawHttpClient::get(to, path, headers).await;
    let body = within("the body of a refusal", client.json(&head)).await;
    (head, body)
}
