//! A Redis client whose connection is one actor.
//!
//! One task owns the socket; callers hold a [`Client`], which is cheap to clone and works from any thread and any tokio
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
//! use forebay_redis::Client;
//!
//! let client = Client::connect(url).await?;
//! client.exec::<()>(("SET", "greeting", "hello")).await?;
//! let greeting: Option<String> = client.exec(("GET", "greeting")).await?;
//! assert_eq!(greeting.as_deref(), Some("hello"));
//!
//! let (visits, missing) = client.pipeline::<(i64, Option<String>)>((("INCR", "visits"), ("GET", "none"))).await?;
//! assert_eq!((visits?, missing?), (1, None));
//! # Ok(())
//! # }
//! ```

mod client;
mod command;
mod config;
mod connect;
mod core;
mod dedicated;
mod error;
mod exec;
mod guard;
mod hooks;
mod inbox;
mod known;
mod reply;
mod scan;
mod script;
mod slot;
mod status;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
mod topics;
mod worker;

pub use client::Client;
pub use command::{ArgWriter, Batch, Cmd, Command, ToArgs, cmd};
pub use config::{Address, Config, IntoConfig, Password, Protocol};
pub use core::backoff::Backoff;
pub use core::frame::Limits;
pub use core::link::State;
pub use dedicated::Dedicated;
pub use error::{
    ConfigError, ConnectError, ExecError, Loss, Mismatch, PathStep, ProtocolError, Refusal, ReplyError,
    RequestError, Retry, ServerError,
};
pub use exec::Exec;
pub use hooks::{Hooks, Outcome, RequestReport};
#[cfg(feature = "serde")]
pub use reply::Serde;
pub use reply::{
    Attributed, BigNumber, Decoder, FromReplies, FromReply, Items, Reader, Token, Value, Verbatim,
};
pub use scan::{Scan, Scanning};
pub use script::Script;
pub use status::{Changes, Stats, Status};
pub use subscription::{Event, Gap, Message, Pushes, Subscription};
#[cfg(feature = "tls")]
pub use tls::Tls;
