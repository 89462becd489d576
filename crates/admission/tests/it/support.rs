//! What these tests share: a streaming server with the layer on, and a client that speaks just enough HTTP.

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use bytes::Bytes;
use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Identify, Visitor};
use forebay_quota::Quota;
pub(crate) use forebay_testkit::{eventually, within};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) fn house(total: u32, per_user: u32) -> Admission {
    Admission::builder().total(total).per_user(per_user).build(Quota::local())
}

pub(crate) fn user(id: &str) -> Visitor {
    Visitor::user(id).unwrap()
}

/// Users by the header `X-User-ID`, which loopback is trusted to set.
pub(crate) fn by_header() -> Identify {
    Identify::new().trusted_proxies(["127.0.0.0/8".parse().unwrap()]).trusted_header()
}

/// Users by the key `key-of-NAME`.
pub(crate) fn by_key(names: &[&str]) -> Identify {
    let add = |keys: ApiKeys, name: &&str| keys.key(&format!("key-of-{name}"), name);
    Identify::new().api_keys(names.iter().fold(ApiKeys::new(), add))
}

/// Waits until nothing is open, here and in the quota's own counts. A user's ends only when the store was told, some batches
/// of settlements after the last stream: until then its account is in memory, here and in the store.
pub(crate) async fn empties(admission: &Admission) {
    let users = || admission.status().quota.keyed.iter().map(|keyed| keyed.keys).sum::<usize>();
    let ask = async || (admission.open(), admission.statistics().total_connections, users());
    eventually("all permits are given back", (0, 0, 0), ask).await;
}

/// A server with the layer on: `/endless` sends one event and then nothing, `/stalled` not even a head, `/busy` events without
/// end, `/short` one event and the end, `/echo` its thread id and user as it got them.
pub(crate) async fn serve(admission: &Admission, identify: Identify) -> SocketAddr {
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
    let user = request.extensions().get::<forebay_admission::User>().map(|user| user.id().to_owned());
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
pub(crate) struct Client {
    socket: TcpStream,
    received: Vec<u8>,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Client {
    /// Sends a request, without waiting for anything.
    pub(crate) async fn send(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut socket = TcpStream::connect(to).await.unwrap();
        let mut text = format!("GET {path} HTTP/1.1\r\nhost: test\r\n");
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        // A server may refuse before it has read everything.
        let _ = socket.write_all(text.as_bytes()).await;
        Client { socket, received: Vec::new() }
    }

    /// Sends a request, and reads the head of the response.
    pub(crate) async fn get(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (Head, Self) {
        let mut client = Self::send(to, path, headers).await;
        let head = within("the head of a response", client.head()).await;
        (head, client)
    }

    pub(crate) async fn head(&mut self) -> Head {
        self.until(b"\r\n\r\n").await;
        let end = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let text = String::from_utf8(self.received.drain(..end).collect()).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        Head { status, text }
    }

    /// Reads on until these bytes have come.
    pub(crate) async fn until(&mut self, wanted: &[u8]) {
        while !self.received.windows(wanted.len()).any(|bytes| bytes == wanted) {
            let read = self.socket.read_buf(&mut self.received).await.unwrap();
            assert_ne!(read, 0, "closed before {:?}", String::from_utf8_lossy(wanted));
        }
    }

    /// A body of known length, as JSON.
    pub(crate) async fn json(&mut self, head: &Head) -> Value {
        let length: usize = head.header("content-length").expect("a length").parse().unwrap();
        while self.received.len() < length {
            assert_ne!(self.socket.read_buf(&mut self.received).await.unwrap(), 0);
        }
        serde_json::from_slice(&self.received[..length]).unwrap()
    }
}

/// Whom the server refuses: status and body.
pub(crate) async fn refusal(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> (Head, Value) {
    let (head, mut client) = Client::get(to, path, headers).await;
    let body = within("the body of a refusal", client.json(&head)).await;
    (head, body)
}
