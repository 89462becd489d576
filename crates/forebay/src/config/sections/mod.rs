//! All settings, one file for each section of the config file.
//!
//! To add a setting, add its declaration to its section and use its field. CONTRIBUTING.md has the
//! steps.

mod admin;
mod admission;
mod database;
mod gate;
mod http;
mod identity;
mod log;
mod otel;
mod quota;
mod redis;
mod serve;
mod storage;

pub(super) use admin::AdminSection;
pub(super) use admission::AdmissionSection;
pub(super) use database::{DatabaseAuth, DatabaseSection};
pub(super) use gate::{GateSection, HostHeader};
pub(super) use http::HttpSection;
pub(super) use identity::IdentitySection;
pub(super) use log::LogSection;
pub(super) use otel::OtelSection;
pub(super) use quota::QuotaSection;
pub(super) use redis::RedisSection;
pub(super) use serve::{ServeSection, TokenMode};
pub(super) use storage::StorageSection;

use forebay_settings::command_settings;

use super::imported_variables::{DSQL_VARIABLES, ELECTRIC_VARIABLES, OPENTELEMETRY_VARIABLES};

/// Default of a list.
const EMPTY: Vec<String> = Vec::new();

command_settings! {
    /// Checked values of `forebay serve`.
    ServeSettings: "forebay" "serve",
    imports(&OPENTELEMETRY_VARIABLES, &ELECTRIC_VARIABLES, &DSQL_VARIABLES) {
        database: DatabaseSection,
        serve: ServeSection,
        storage: StorageSection,
        http: HttpSection,
        admission: AdmissionSection,
        identity: IdentitySection,
        redis: RedisSection,
        quota: QuotaSection,
        admin: AdminSection,
        log: LogSection,
        otel: OtelSection,
    }
}

command_settings! {
    /// Checked values of `forebay gate`.
    GateSettings: "forebay" "gate", imports(&OPENTELEMETRY_VARIABLES) {
        gate: GateSection,
        http: HttpSection,
        admission: AdmissionSection,
        identity: IdentitySection,
        redis: RedisSection,
        quota: QuotaSection,
        admin: AdminSection,
        log: LogSection,
        otel: OtelSection,
    }
}
