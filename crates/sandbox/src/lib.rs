//! Throwaway servers: a real Redis, Postgres or PgBouncer, or a DynamoDB emulator, on a private port, for as long as a
//! value lives.
//!
//! Invariant: a server outlives neither its handle nor the process that started it, however that process ends.
//! Kept by: dropping the handle kills and reaps the server and removes its folder; the kernel signals the server when
//! the process is gone (`process.rs`); folders that a killed process left behind are swept by the next start
//! (`folder.rs`).
//! Not here: tokio, clients, test fixtures. Linux only: it reads `/proc` and uses the parent-death signal.
//!
//! ```
//! use forebay_sandbox::{Postgres, Redis};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::builder().password("secret").tls().start()?;
//! let url = redis.tls_url(); // rediss://localhost:PORT, to be verified against redis.ca_pem()
//!
//! redis.kill(); // as a crash would
//! redis.revive()?; // the same ports and files again
//!
//! let postgres = Postgres::start()?;
//! let database = postgres.create_database("orders")?;
//! let url = postgres.url(&database);
//!
//! let primary = Postgres::builder().version(18).start()?;
//! let standby = primary.standby().failover_slots().start()?; // it streams, and answers reads
//! primary.kill();
//! standby.promote()?; // and now it writes
//! # drop(url);
//! # Ok(())
//! # }
//! ```

mod certificate;
mod copy;
mod dynamodb;
mod error;
mod folder;
mod pgbouncer;
mod port;
mod postgres;
mod proc;
mod process;
mod program;
mod redis;
mod server;
mod user;
mod wire;

pub use crate::dynamodb::DynamoDb;
pub use crate::error::StartError;
pub use crate::folder::Folder;
pub use crate::pgbouncer::{PgBouncer, PgBouncerBuilder};
pub use crate::port::free_port;
pub use crate::postgres::{Backup, Postgres, PostgresBuilder, RecoveryTarget, StandbyBuilder};
pub use crate::redis::{Redis, RedisBuilder};
