//! A Redis client whose connection is one actor.
//!
//! CommandSpec task owns the socket; callers hold a [`RedisClient`], which is cheap to clone and works from any thread and any tokio
//! runtime. Requests of all callers share the connection and are pipelined by themselves.
//!
//! What always holds:
//! - Requests are answered in the order in which they were submitted, each exactly once: by its reply or by a reason. A
//!   command that Redis may not answer with one reply is refused; one that Redis 7 doesn't have is verified.
//! - Nothing is ever sent twice. What was open when the connection was lost fails; whether to repeat it is up to you, and
//!   [`ExecError::retry`] tells what is known.
//! - Nothing waits for ever: a request has a deadline unless you take it away, every queue has a bound, and while the
//!   connection is down requests are rejected at once.
//! - No code of yours runs in the connection's task: replies are decoded where they are awaited.
//! - A server that can't serve (`READONLY`, `LOADING`, `MASTERDOWN`) is left, unless [`Config::leave_unfit_server`] is off.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = forebay_sandbox::Redis::start()?;
//! # let url = server.url();
//! use forebay_redis::RedisClient;
//!
//! let client = RedisClient::connect(url).await?;
//! client.exec::<()>(("SET", "greeting", "hello")).await?;
//! let greeting: Option<String> = client.exec(("GET", "greeting")).await?;
//! assert_eq!(greeting.as_deref(), Some("hello"));
//!
//! let (visits, missing) = client.pipeline::<(i64, Option<String>)>((("INCR", "visits"), ("GET", "none"))).await?;
//! assert_eq!((visits?, missing?), (1, None));
//! # Ok(())
//! # }
//! ```

mod args;
mod client;
mod command;
mod config;
mod connect;
mod core;
mod dedicated_connection;
mod error;
mod request_future;
mod command_guard;
mod hooks;
mod inbox;
mod command_table;
mod reply;
mod scan;
mod script;
mod reply_slot;
mod status;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
mod topic_registry;
mod worker;

pub use client::RedisClient;
pub use args::{ArgWriter, ToArgs};
pub use command::{Cmd, CommandBatch, RedisCommand, cmd};
pub use config::{Address, Config, IntoConfig, RedisPassword, Protocol};
pub use core::backoff::ReconnectBackoff;
pub use core::frame::ReplyLimits;
pub use core::link::State;
pub use dedicated_connection::DedicatedConnection;
pub use error::{
    RedisConfigError, RedisConnectError, ExecError, ConnectionLoss, TypeMismatch, PathStep, ProtocolError, ServerRefusal, ReplyError,
    RequestError, Retry, RedisServerError,
};
pub use request_future::RequestFuture;
pub use hooks::{Hooks, RequestOutcome, RequestReport};
#[cfg(feature = "serde")]
pub use reply::Serde;
pub use reply::{
    WithAttributes, BigNumber, RespDecoder, FromReplies, FromReply, RemainingItems, ReplyReader, ReplyToken, RespValue, VerbatimString,
};
pub use scan::{ScanCommand, ScanStream};
pub use script::LuaScript;
pub use status::{StatusStream, ClientStats, Status};
pub use subscription::{Event, Gap, PubSubMessage, PushStream, Subscription};
#[cfg(feature = "tls")]
pub use tls::RedisTls;
