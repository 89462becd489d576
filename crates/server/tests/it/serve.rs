//! `forebay serve`, over HTTP, before a real Postgres.

mod oracle;
pub(crate) mod support;

mod collapse;
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
mod protocol;
mod rolling;
mod shapes;
mod tls;
mod tokens;
mod upgrades;
