//! A program with settings, for unit tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::imported_variables::verbatim;
use crate::{ImportSource, OptionalAddress, Reload, SecretText, SettingChoice};

/// Another program, whose users may switch to this one.
pub(crate) const STALL: ImportSource = ImportSource::new("STALL_")
    .without_effect(&[("STALL_THREADS", "the number of threads is fixed")])
    .report_unknown("it is not among the variables of Stall that Shop maps")
    .is_common(|name| name == "DATABASE_URL")
    .requests_fixed_behavior(|_, value| value == "0")
    .why_unavailable(|setting| {
        (setting.key() == "toll_percent").then(|| "this build has no tolls".to_owned())
    });

/// Whether clients may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorState {
    Open,
    Closed,
}

impl SettingChoice for DoorState {
    const CHOICES: &'static [(&'static str, DoorState)] =
        &[("open", DoorState::Open), ("closed", DoorState::Closed)];
}

crate::settings! {
    /// The gate.
    GateSection: "gate" {
        /// Address for clients. Others can't connect.
        listen: SocketAddr = "127.0.0.1:8080",
            default_for("audit", || "127.0.0.1:9090".into()),
            flag("--listen", "IP:PORT");

        /// URL of the service.
        upstream: String, required("set the URL"), example("http://127.0.0.1:1"), rule(not_empty);

        /// Routes of streams.
        stream_routes: Vec<String> = Vec::<String>::new(), flag("--stream-route", "ROUTE");

        /// Header with the user.
        forward_user_header: Option<String>, unset("none, it is not passed"), example("X-User");

        /// Time until the end.
        drain_timeout_ms: Duration = 25_000, or_zero(), flag("--drain-timeout-ms", "MS");

        /// Whether clients may enter: `open` or `closed`.
        door: DoorState = "open", reload(Reload::Applied("at once"));

        /// Toll on each sale.
        toll_percent: f64 = 7.5, bounds(0, 100), import(&STALL, "STALL_TOLL", verbatim, "");
    }
}

crate::settings! {
    /// Limits.
    AdmissionSection: "admission" {
        /// Maximum number of streams.
        total: u32 = 10_000,
            bounds(1, 20_000),
            reason("more would exceed the memory"),
            flag("--total", "N"),
            import(&STALL, "STALL_STREAMS", verbatim, "all instances together");

        /// Shares of classes.
        class_percent: Option<BTreeMap<String, u8>>, example("{ user = 90 }"), bounds(0, 100);
    }
}

crate::settings! {
    /// The store.
    RedisSection: "redis" {
        /// URL of the store.
        url: Option<SecretText>,
            example("redis://127.0.0.1"),
            flag("--redis", "URL"),
            import(&STALL, "DATABASE_URL", verbatim, "");
    }
}

crate::settings! {
    /// Operators.
    AdminSection: "admin" {
        /// Address for operators, or `off`.
        listen: OptionalAddress = "127.0.0.1:8081";

        /// Allows any address.
        insecure: bool = false, flag("--insecure-admin", "");
    }
}

crate::command_settings! {
    /// Settings of `shop gate`.
    GateSettings: "shop" "gate", imports(&STALL) {
        gate: GateSection,
        admission: AdmissionSection,
        redis: RedisSection,
        admin: AdminSection,
    }
}

crate::command_settings! {
    /// Settings of `shop audit`, without the variables of other programs.
    AuditSettings: "shop" "audit" {
        admission: AdmissionSection,
        gate: GateSection,
    }
}

fn not_empty(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
}
