//! `forebay serve` as a process, with HTTP clients and a real Postgres.
//!
//! `support.rs` has the fixture and the clients. `oracle.rs` is the consistency oracle: random
//! histories, compared with Postgres. Each other file has the tests of one subject.

mod oracle;
pub(crate) mod support;

mod catching_up;
mod cleanup;
mod collapse;
mod column_types;
mod crowd;
mod ddl;
mod failures;
mod handoff;
mod hostile;
mod instances;
mod large;
mod live;
mod losses;
mod metrics;
mod operations;
mod partitions;
mod pool;
mod postgres_clause_limits;
mod postgres_clauses;
mod posts;
mod protocol;
mod publishing;
mod rewrites;
mod rolling;
mod row_identity;
mod shapes;
mod subsets;
mod tls;
mod tokens;
mod unfit;
mod upgrades;
