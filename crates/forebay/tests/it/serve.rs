//! `forebay serve`, over HTTP, before a real Postgres.

mod oracle;
pub(crate) mod support;

mod catching_up;
mod collapse;
mod crowd;
mod ddl;
mod failures;
mod handoff;
mod hostile;
mod identity;
mod instances;
mod large;
mod live;
mod losses;
mod metrics;
mod operations;
mod partitions;
mod protocol;
mod publishing;
mod rewrites;
mod rolling;
mod shapes;
mod subsets;
mod tls;
mod tokens;
mod upgrades;
