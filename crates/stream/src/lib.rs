//! An HTTP server for thousands of live streams that are idle most of the time.
//!
//! A response that is marked [`Live`] takes its socket with it: what is left is one small task with the socket and the response's
//! body. Ten thousand of them take about as many kilobytes. Requests of plain HTTP/1.1 without a body are read and answered here,
//! and hold no buffer while they wait; hyper does the rest.
//!
//! What always holds:
//! - A stream's body is dropped as soon as its client leaves, and whatever it holds (a permit, a subscription) with it.
//! - A body that ends with an error, or panics, closes the connection without the last chunk: the client sees a broken
//!   stream, never a complete one. HTTP/2 resets the stream; HTTP/1.0, which has no chunks, the connection.
//! - Every wait for a client has a deadline, and every buffer a bound; see [`HttpServerConfig`].
//! - What is streamed is written as soon as it is there, with what else is ready, up to a batch.
//! - A drain answers requests that are on their way: connections in the listener's backlog are accepted, and those without a
//!   request stay open for [`HttpServerConfig::drain_grace`].
//!
//! ```
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # use tokio::net::{TcpListener, TcpStream};
//! use forebay_stream::{Incoming, LiveBody, HttpServerConfig, HttpServer, Topic, service_fn};
//! use http::{Request, Response};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let news = Topic::new(64); // keeps 64 events for clients that are behind
//! let topic = news.clone();
//! let service = service_fn(move |_request: Request<Incoming>| {
//!     let mut response = Response::new(topic.subscribe());
//!     response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
//!     response.extensions_mut().insert(LiveBody);
//!     std::future::ready(response)
//! });
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! let server = HttpServer::new(listener, service, HttpServerConfig::default());
//! # let stats = server.stats();
//! # let shutdown = async {
//! #     let mut client = TcpStream::connect(address).await.unwrap();
//! #     client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
//! #     while news.subscribers() == 0 { tokio::task::yield_now().await }
//! news.publish("data: hello\n\n"); // to whoever streams by now
//! #     news.close();
//! #     let mut all = String::new();
//! #     client.read_to_string(&mut all).await.unwrap();
//! #     assert!(all.ends_with("\r\n\r\nd\r\ndata: hello\n\n\r\n0\r\n\r\n"), "{all}");
//! # };
//! let summary = server.run(shutdown).await;
//! # assert_eq!((summary.cut, stats.counts().live_started), (0, 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Which path a response takes
//! LiveStream: marked [`Live`], HTTP/1.1, not the answer to a HEAD, and the request's body has been read. Brief: the answer to a GET or HEAD
//! without a body over plain HTTP/1.1, as long as no request of the connection was anything else. All else goes through hyper, HTTP/2
//! always; a live stream there ends with its client too, and only costs more memory. On the lean path the connection closes with the
//! stream; trailers are left out there, and on the brief one.
//!
//! Not here: TLS, which whoever has it may [wrap](Wrap) connections in (they take the ordinary path then); routing; counting and
//! limiting streams.

mod backlog;
mod config;
mod connection_task;
mod dispatch;
mod error;
mod h1;
mod hyper;
mod incoming;
mod live;
mod protocol;
mod server;
mod service;
mod service_fn;
mod socket;
mod stall_timer;
mod stats;
mod task_registry;

use std::net::SocketAddr;

pub use config::HttpServerConfig;
pub use h1::spare_headers::spare_headers;
pub use incoming::Incoming;
pub use live::tail::{Lagged, LastEvent, Tail};
pub use live::topic::Topic;
pub use server::{DrainSummary, HttpServer};
pub use service_fn::{ServiceFn, ServiceFnFuture, service_fn};
pub use stats::{ServerCounts, ServerStats};

pub use self::hyper::transport::{Handshake, HandshakeFuture, NegotiatedTransport, Transport};

/// Marks a response whose body is a live stream: put it into the response's extensions.
///
/// On plain HTTP/1.1 it then becomes one small task with its socket; over HTTP/2 or [wrapped](Wrap) it takes the ordinary path.
#[derive(Debug, Clone, Copy)]
pub struct LiveBody;

/// The address of the peer, in every request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);
