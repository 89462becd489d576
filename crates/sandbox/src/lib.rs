//! Throwaway servers for tests: Redis, Postgres, PgBouncer, or a DynamoDB emulator.
//!
//! Each server has a private port and folder, and stops when its handle is dropped.
//!
//! Invariant: a server outlives neither its handle nor the process that started it.
//! Enforced by: dropping the handle kills and reaps the server and removes its folder. The kernel
//! signals the server when the process ends (`spawn.rs`). The next start removes the folders of
//! killed processes (`folder.rs`).
//! Out of scope: tokio, clients, test fixtures. The crate is for Linux only: it reads `/proc` and
//! uses the parent-death signal.
//!
//! ```
//! use forebay_sandbox::{Postgres, Redis};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::builder().password("secret").tls().start()?;
//! let url = redis.tls_url(); // rediss://localhost:PORT; its authority: redis.ca_pem()
//!
//! redis.kill(); // like a crash
//! redis.revive()?; // with the same ports and files
//!
//! let postgres = Postgres::start()?;
//! let database = postgres.create_database("orders")?;
//! let url = postgres.url(&database);
//!
//! let primary = Postgres::builder().version(18).start()?;
//! let standby = primary.standby().failover_slots().start()?; // streams, and serves reads
//! primary.kill();
//! standby.promote()?; // accepts writes now
//! # drop(url);
//! # Ok(())
//! # }
//! ```
//!
//! | guarantee | test |
//! |---|---|
//! | Dropping a handle ends the server and removes its folder. | `dropping_a_handle_ends_the_process_and_removes_the_folder` |
//! | When a process is killed, its servers end. | `servers_end_with_a_killed_owner_and_the_next_start_removes_its_folders` |
//! | No port is returned twice. | `no_port_is_returned_twice` |
//!
//! | topic | file |
//! |---|---|
//! | start, stop, kill, freeze, restart of any server | `server_process.rs` |
//! | spawning servers that end with this process | `spawn.rs` |
//! | temporary folders, ports, users | `folder.rs`, `port.rs`, `system_user.rs` |
//! | Postgres: versions, clusters, settings | `postgres/programs.rs`, `postgres/cluster.rs`, `postgres/builder.rs` |
//! | Postgres: standbys, backups, point-in-time recovery | `postgres/standby.rs`, `postgres/backup.rs`, `postgres/recovery.rs` |
//! | Redis, PgBouncer, DynamoDB | `redis.rs`, `pgbouncer.rs`, `dynamodb.rs` |

mod certificate;
mod copy_folder;
mod dynamodb;
mod error;
mod folder;
mod pg_connection;
mod pgbouncer;
mod port;
mod postgres;
mod proc;
mod program;
mod redis;
mod server_process;
mod spawn;
mod system_user;

pub use crate::dynamodb::DynamoDb;
pub use crate::error::StartError;
pub use crate::folder::TempFolder;
pub use crate::pgbouncer::{PgBouncer, PgBouncerBuilder};
pub use crate::port::free_port;
pub use crate::postgres::{Backup, Postgres, PostgresBuilder, RecoveryTarget, StandbyBuilder};
pub use crate::redis::{Redis, RedisBuilder};
