//! Ready Postgres connections: opened in the background under a rate and a budget that all processes share, lent in an
//! instant, replaced before they end.
//!
//! Invariants: there are never more connections than `max`, wherever they are, and one is counted until the server has closed
//! its end or [`close_timeout`](ReservoirConfig::close_timeout) is over; what is lent is open, clean, and not at its end;
//! whoever waits is served in the order of coming; every connection, lease and place comes back exactly once.
//! Kept by: one ledger that is pure (`core/ledger.rs`), one short lock around it (`shared.rs`), and tasks that tell it when they
//! end, however they end.
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_reservoir::{Limits, PostgresConnect, Reservoir, ReservoirConfig};
//!
//! let connect = PostgresConnect::new("postgres://app@db.internal/shop")?;
//! let reservoir = Reservoir::start(connect, ReservoirConfig::new(16), Limits::local())?;
//! let client = reservoir.checkout().await?;
//! let rows = client.query("SELECT name FROM products", &[]).await?;
//! # drop(rows);
//! # Ok(())
//! # }
//! ```

#[cfg(any(feature = "bb8", feature = "deadpool"))]
mod adapters;
mod config;
mod connect;
mod core;
mod credentials;
mod dialing;
mod env;
mod error;
mod guard;
mod keeper;
pub mod metrics;
#[cfg(feature = "postgres")]
mod postgres;
mod reservoir;
mod retiring;
mod shared;
mod status;

pub use crate::config::{ConfigError, DEFAULT_RATE, Limits, ReservoirConfig, Reset};
pub use crate::connect::{Connect, ConnectError, ConnectErrorKind, Connection, DialSlot};
#[cfg(feature = "dsql")]
pub use crate::credentials::DsqlToken;
pub use crate::credentials::{
    Asking, Cached, Password, PasswordCommand, PasswordEnv, PasswordFile, Secret, Token, TokenError,
    TokenProvider,
};
pub use crate::env::{Environment, LeaseSettings, LeaseStore};
pub use crate::error::{CheckoutError, FillError, Shortage};
pub use crate::guard::Guard;
#[cfg(feature = "postgres")]
pub use crate::postgres::{
    ChannelBinding, PostgresCancelToken, PostgresClient, PostgresConfigError, PostgresConnect,
    PostgresConnectBuilder, PostgresError, PostgresStart, PostgresStream, PostgresTerms, PostgresTls,
    ServerError, SessionCheck, SslMode,
};
pub use crate::reservoir::{Reservoir, View};
pub use crate::status::{Counts, Discard, Filling, LifeStatus, MAX_LISTED, Status, ViewStatus};
#[cfg(feature = "postgres")]
pub use tokio_postgres;
