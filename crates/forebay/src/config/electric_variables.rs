//! Electric's environment variables and their settings, so that users can switch.
//!
//! Invariant: a variable with a counterpart sets it. A variable without one, or whose counterpart
//! needs a decision, has no effect and is reported with the reason.
//! Enforced by: this table is the only list, and `docs/from-electric.md` is generated from it.

use super::imported_variables::Counterpart::{Nothing, Settings, Similar};
use super::imported_variables::{DATABASE_URL, KnownVariable, VariableLookup, known_variable, text};
use super::serve::LISTEN;

/// The variables. Where two set the same key, the later one overrides the earlier one.
pub(super) const ELECTRIC_VARIABLES: &[KnownVariable] = &[
    known_variable(DATABASE_URL, Settings(&[("database.url", text)]), ""),
    known_variable(
        "ELECTRIC_QUERY_DATABASE_URL",
        Settings(&[("database.pooled_url", text)]),
        "the older name of the next variable",
    ),
    known_variable("ELECTRIC_POOLED_DATABASE_URL", Settings(&[("database.pooled_url", text)]), ""),
    known_variable(
        "ELECTRIC_DATABASE_CA_CERTIFICATE_FILE",
        Settings(&[("database.ca_file", text)]),
        "`sslmode` may also be `verify-ca` or `verify-full`",
    ),
    known_variable(
        "ELECTRIC_DATABASE_USE_IPV6",
        Nothing,
        "all addresses of a host name are tried, IPv6 first",
    ),
    known_variable("ELECTRIC_DB_POOL_SIZE", Settings(&[("database.pool_size", text)]), "at least 2"),
    known_variable(
        "ELECTRIC_REPLICATION_STREAM_ID",
        Settings(&[("database.slot", own_name), ("database.publication", own_name)]),
        "both are named `forebay_ID`, unlike those of Electric, so that both can run side by side during a migration",
    ),
    known_variable(
        "ELECTRIC_REPLICATION_IDLE_TIMEOUT",
        Settings(&[("database.idle_timeout_ms", time)]),
        "measured from the last request, not from the last change",
    ),
    known_variable(
        "ELECTRIC_MANUAL_TABLE_PUBLISHING",
        Settings(&[("database.manual_publication", switch)]),
        "the default name of the publication is `forebay`",
    ),
    known_variable(
        "CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN",
        Settings(&[("database.temporary_slot", switch)]),
        "all shapes start over after each reconnection",
    ),
    known_variable(
        "ELECTRIC_TEMPORARY_REPLICATION_SLOT_USE_RANDOM_NAME",
        Nothing,
        "the name of the slot is the lock, so it must be fixed",
    ),
    known_variable("ELECTRIC_SECRET", Settings(&[("serve.secret", text)]), ""),
    known_variable("ELECTRIC_INSECURE", Settings(&[("serve.insecure", switch)]), ""),
    known_variable(
        "ELECTRIC_PORT",
        Settings(&[("serve.listen", any_ipv4_address)]),
        "the address is `0.0.0.0:PORT`, which needs a secret; without this variable, only clients on this machine can connect",
    ),
    known_variable(
        "ELECTRIC_LISTEN_ON_IPV6",
        Settings(&[("serve.listen", any_ipv6_address)]),
        "the address is `[::]:PORT`",
    ),
    known_variable("ELECTRIC_ENABLE_INTEGRATION_TESTING", Settings(&[("serve.allow_delete", switch)]), ""),
    known_variable("ELECTRIC_CACHE_MAX_AGE", Settings(&[("serve.max_age_s", text)]), ""),
    known_variable("ELECTRIC_CACHE_STALE_AGE", Settings(&[("serve.stale_age_s", text)]), ""),
    known_variable("ELECTRIC_LONG_POLL_TIMEOUT", Settings(&[("serve.long_poll_ms", time)]), ""),
    known_variable("ELECTRIC_TCP_SEND_TIMEOUT", Settings(&[("http.write_timeout_ms", time)]), ""),
    known_variable(
        "ELECTRIC_STORAGE_DIR",
        Settings(&[("storage.dir", own_directory)]),
        "the directory `forebay` in it, so that the files of Electric are not changed",
    ),
    known_variable(
        "ELECTRIC_STORAGE",
        Nothing,
        "shapes are stored in files; to use memory, set storage.dir to a directory on a tmpfs",
    ),
    known_variable("ELECTRIC_PERSISTENT_STATE", Nothing, "the state of shapes is stored with them, in files"),
    known_variable("ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD", Settings(&[("storage.chunk_bytes", text)]), ""),
    known_variable(
        "ELECTRIC_EXPERIMENTAL_MAX_SHAPES",
        Settings(&[("storage.max_shapes", text)]),
        "the older name of the next variable",
    ),
    known_variable(
        "ELECTRIC_MAX_SHAPES",
        Settings(&[("storage.max_shapes", text)]),
        "applied at once, not after a minute",
    ),
    known_variable(
        "ELECTRIC_LOG_LEVEL",
        Settings(&[("log.filter", level)]),
        "`warning` is `warn`; a filter may also name modules",
    ),
    known_variable(
        "ELECTRIC_PROMETHEUS_PORT",
        Settings(&[("admin.listen", loopback_address)]),
        "`/metrics` on the admin address, for this machine only; for other machines, set admin.listen",
    ),
    known_variable(
        "ELECTRIC_INSTANCE_ID",
        Similar("quota.member"),
        "that must be unique for each instance, and the same after a restart",
    ),
    known_variable(
        "ELECTRIC_MAX_CONCURRENT_REQUESTS",
        Similar("admission.total"),
        "that counts only live requests, of all instances together",
    ),
    known_variable(
        "ELECTRIC_LOG_COLORS",
        Nothing,
        "the log has colors only on a terminal; `log.format = \"json\"` is for programs",
    ),
    known_variable("ELECTRIC_LOG_OTP_REPORTS", Nothing, "Forebay does not use Erlang"),
    known_variable(
        "ELECTRIC_OTLP_ENDPOINT",
        Settings(&[("otel.endpoint", text)]),
        "this variable and the next two need a build with the feature `otel`",
    ),
    known_variable("ELECTRIC_OTEL_EXPORT_PERIOD", Settings(&[("otel.interval_ms", time)]), ""),
    known_variable("ELECTRIC_OTEL_SAMPLING_RATIO", Settings(&[("otel.sample_percent", percent)]), ""),
    known_variable("ELECTRIC_OTEL_DEBUG", Nothing, "traces are exported, not printed; see log.filter"),
    known_variable(
        "ELECTRIC_HNY_API_KEY",
        Nothing,
        "Honeycomb accepts OTLP: see otel.endpoint and otel.headers",
    ),
    known_variable(
        "ELECTRIC_HNY_DATASET",
        Nothing,
        "Honeycomb accepts OTLP: see otel.endpoint and otel.headers",
    ),
    known_variable(
        "ELECTRIC_STATSD_HOST",
        Nothing,
        "metrics are scraped from `/metrics` on the admin address",
    ),
    known_variable(
        "ELECTRIC_SYSTEM_METRICS_POLL_INTERVAL",
        Nothing,
        "metrics are measured when they are scraped",
    ),
    known_variable(
        "ELECTRIC_SERVICE_NAME",
        Similar("otel.service_name"),
        "the scraper names the service of scraped metrics; that setting names exported telemetry",
    ),
    known_variable("ELECTRIC_USAGE_REPORTING", Nothing, "Forebay never reports usage"),
    known_variable("ELECTRIC_TELEMETRY_URL", Nothing, "Forebay never reports usage"),
    known_variable("ELECTRIC_DATABASE_ID", Nothing, "the storage directory contains the id of its database"),
    known_variable("ELECTRIC_FEATURE_FLAGS", Nothing, "subqueries in where clauses are not supported yet"),
    known_variable("ELECTRIC_SHAPE_HIBERNATE_AFTER", Nothing, "an idle shape has no process"),
    known_variable("ELECTRIC_SHAPE_SUSPEND_CONSUMER", Nothing, "an idle shape has no process"),
    known_variable("ELECTRIC_SHAPE_DB_EXCLUSIVE_MODE", Nothing, "Forebay does not use SQLite"),
    known_variable("ELECTRIC_SHAPE_DB_STORAGE_DIR", Nothing, "Forebay does not use SQLite; see storage.dir"),
    known_variable(
        "ELECTRIC_SHAPE_DB_SYNCHRONOUS",
        Nothing,
        "Forebay does not use SQLite; acknowledged changes are synced",
    ),
    known_variable("ELECTRIC_SHAPE_DB_CACHE_SIZE", Nothing, "Forebay does not use SQLite"),
    known_variable("ELECTRIC_CLEANUP_INTERVAL_MS", Nothing, "limits are applied at once"),
    known_variable(
        "ELECTRIC_PUBLICATION_ALTER_DEBOUNCE_TIME",
        Nothing,
        "tables are added to the publication when they are requested",
    ),
    known_variable(
        "ELECTRIC_TWEAKS_PUBLICATION_REFRESH_PERIOD",
        Nothing,
        "the publication is verified after each start",
    ),
    known_variable(
        "ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD",
        Nothing,
        "schema changes are detected in the replication stream",
    ),
    known_variable("ELECTRIC_IDLE_WAL_SIZE_CHECK_PERIOD", Nothing, "see database.idle_timeout_ms"),
    known_variable("ELECTRIC_IDLE_WAL_SIZE_THRESHOLD", Nothing, "see database.idle_timeout_ms"),
];

/// Parses a boolean.
fn switch(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(Some("true".to_owned())),
        "false" | "0" | "no" | "off" => Ok(Some("false".to_owned())),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Parses a duration, such as `30s`, `5min`, `1.5h` or a number of milliseconds. Returns
/// milliseconds.
fn time(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let unit_ms = match text[number.len()..].trim() {
        "" | "ms" | "msec" => 1.0,
        "s" | "sec" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" | "hr" => 3_600_000.0,
        _ => return Err("must be a time such as 500ms, 30s, 5min or 1h".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(count) if (0.0..1e12).contains(&count) => Ok(Some(format!("{:.0}", (count * unit_ms).floor()))),
        Ok(_) | Err(_) => Err("must be a time such as 500ms, 30s, 5min or 1h".to_owned()),
    }
}

/// Converts a ratio of 0 to 1 to a percentage.
fn percent(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Some((ratio * 100.0).to_string())),
        Ok(_) | Err(_) => Err("must be a ratio, 0 to 1".to_owned()),
    }
}

/// Returns the name of the slot and of the publication for a stream id.
fn own_name(id: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("forebay_{}", id.to_lowercase())))
}

/// Returns our directory inside Electric's storage directory.
fn own_directory(dir: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("{}/forebay", dir.trim_end_matches('/'))))
}

fn port(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| "must be a port, 0 to 65535".to_owned())
}

fn any_ipv4_address(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("0.0.0.0:{}", port(text)?)))
}

/// Returns the IPv6 wildcard address with Electric's port, or `None` if IPv6 is off.
fn any_ipv6_address(text: &str, lookup: &VariableLookup<'_>) -> Result<Option<String>, String> {
    if switch(text, lookup)?.as_deref() != Some("true") {
        return Ok(None);
    }
    let port = lookup("ELECTRIC_PORT").map_or(Ok(LISTEN.port()), port)?;
    Ok(Some(format!("[::]:{port}")))
}

fn loopback_address(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("127.0.0.1:{}", port(text)?)))
}

/// Converts a log level of Electric.
fn level(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let level = match text.to_lowercase().as_str() {
        "emergency" | "alert" | "critical" | "error" => "error",
        "warning" | "warn" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        _ => return Err("must be error, warning, info or debug".to_owned()),
    };
    Ok(Some(level.to_owned()))
}
