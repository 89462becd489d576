//! Electric's environment variables, and what each means here, so that people can switch.
//!
//! Invariant: a variable that has a counterpart is that setting; one that has none, or none that could be meant for sure, has no
//! effect and is named with the reason.
//! Kept by: this table is the only place, and `docs/from-electric.md` is made of it.

use super::borrowed::Counterpart::{Missing, Similar, These};
use super::borrowed::{DATABASE_URL, Known, Said, known, text};
use super::serve::LISTEN;

/// Names, in the order of rising strength where two are the same setting.
pub(super) const KNOWN: &[Known] = &[
    known(DATABASE_URL, These(&[("database.url", text)]), ""),
    known(
        "ELECTRIC_QUERY_DATABASE_URL",
        These(&[("database.pooled_url", text)]),
        "Electric's older name of the next one",
    ),
    known("ELECTRIC_POOLED_DATABASE_URL", These(&[("database.pooled_url", text)]), ""),
    known(
        "ELECTRIC_DATABASE_CA_CERTIFICATE_FILE",
        These(&[("database.ca_file", text)]),
        "`sslmode` may also be `verify-ca` or `verify-full`",
    ),
    known("ELECTRIC_DATABASE_USE_IPV6", Missing, "every address of a name is tried, IPv6 first"),
    known("ELECTRIC_DB_POOL_SIZE", These(&[("database.pool_size", text)]), "at least 2"),
    known(
        "ELECTRIC_REPLICATION_STREAM_ID",
        These(&[("database.slot", own_name), ("database.publication", own_name)]),
        "both are named `forebay_ID`, not as Electric's are, so that the two can run side by side while you switch",
    ),
    known(
        "ELECTRIC_REPLICATION_IDLE_TIMEOUT",
        These(&[("database.idle_timeout_ms", time)]),
        "counted from the last request, not from the last change",
    ),
    known(
        "ELECTRIC_MANUAL_TABLE_PUBLISHING",
        These(&[("database.manual_publication", switch)]),
        "the publication is called `forebay` unless told otherwise",
    ),
    known(
        "CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN",
        These(&[("database.temporary_slot", switch)]),
        "all shapes start over after each reconnection",
    ),
    known(
        "ELECTRIC_TEMPORARY_REPLICATION_SLOT_USE_RANDOM_NAME",
        Missing,
        "a slot's name is the lock, so it has to be known",
    ),
    known("ELECTRIC_SECRET", These(&[("serve.secret", text)]), ""),
    known("ELECTRIC_INSECURE", These(&[("serve.insecure", switch)]), ""),
    known(
        "ELECTRIC_PORT",
        These(&[("serve.listen", every_address)]),
        "the address is `0.0.0.0:PORT`, and that needs a secret; without this variable only this machine is served",
    ),
    known(
        "ELECTRIC_LISTEN_ON_IPV6",
        These(&[("serve.listen", every_ipv6_address)]),
        "the address is `[::]:PORT`",
    ),
    known("ELECTRIC_ENABLE_INTEGRATION_TESTING", These(&[("serve.allow_delete", switch)]), ""),
    known("ELECTRIC_CACHE_MAX_AGE", These(&[("serve.max_age_s", text)]), ""),
    known("ELECTRIC_CACHE_STALE_AGE", These(&[("serve.stale_age_s", text)]), ""),
    known("ELECTRIC_LONG_POLL_TIMEOUT", These(&[("serve.long_poll_ms", time)]), ""),
    known("ELECTRIC_TCP_SEND_TIMEOUT", These(&[("http.write_timeout_ms", time)]), ""),
    known(
        "ELECTRIC_STORAGE_DIR",
        These(&[("storage.dir", own_folder)]),
        "the folder `forebay` in it, so that nothing of Electric's is touched",
    ),
    known(
        "ELECTRIC_STORAGE",
        Missing,
        "shapes are kept in files; for memory, name a folder on a tmpfs in storage.dir",
    ),
    known("ELECTRIC_PERSISTENT_STATE", Missing, "what is known of shapes is kept with them, in files"),
    known("ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD", These(&[("storage.chunk_bytes", text)]), ""),
    known(
        "ELECTRIC_EXPERIMENTAL_MAX_SHAPES",
        These(&[("storage.max_shapes", text)]),
        "Electric's older name of the next one",
    ),
    known("ELECTRIC_MAX_SHAPES", These(&[("storage.max_shapes", text)]), "holds at once, not after a minute"),
    known(
        "ELECTRIC_LOG_LEVEL",
        These(&[("log.filter", level)]),
        "`warning` is `warn`; a filter may name modules, too",
    ),
    known(
        "ELECTRIC_PROMETHEUS_PORT",
        These(&[("admin.listen", local_address)]),
        "`/metrics` on the admin address, for this machine only: say admin.listen for others",
    ),
    known(
        "ELECTRIC_INSTANCE_ID",
        Similar("quota.member"),
        "there it has to be another for each instance, and the same after a restart",
    ),
    known(
        "ELECTRIC_MAX_CONCURRENT_REQUESTS",
        Similar("admission.total"),
        "here only live requests count, over all instances together",
    ),
    known(
        "ELECTRIC_LOG_COLORS",
        Missing,
        "the log is coloured on a terminal only; `log.format = \"json\"` is for programs",
    ),
    known("ELECTRIC_LOG_OTP_REPORTS", Missing, "there is no Erlang here"),
    known(
        "ELECTRIC_OTLP_ENDPOINT",
        These(&[("otel.endpoint", text)]),
        "this one and the next two need a program that was built with the feature `otel`",
    ),
    known("ELECTRIC_OTEL_EXPORT_PERIOD", These(&[("otel.interval_ms", time)]), ""),
    known("ELECTRIC_OTEL_SAMPLING_RATIO", These(&[("otel.sample_percent", percent)]), ""),
    known("ELECTRIC_OTEL_DEBUG", Missing, "traces are sent, not printed; see log.filter"),
    known("ELECTRIC_HNY_API_KEY", Missing, "Honeycomb takes OTLP: see otel.endpoint and otel.headers"),
    known("ELECTRIC_HNY_DATASET", Missing, "Honeycomb takes OTLP: see otel.endpoint and otel.headers"),
    known("ELECTRIC_STATSD_HOST", Missing, "metrics are read from `/metrics` on the admin address"),
    known("ELECTRIC_SYSTEM_METRICS_POLL_INTERVAL", Missing, "metrics are measured when they are read"),
    known(
        "ELECTRIC_SERVICE_NAME",
        Similar("otel.service_name"),
        "whoever scrapes metrics names the service; what is sent is named by it",
    ),
    known("ELECTRIC_USAGE_REPORTING", Missing, "nothing is ever reported to anybody"),
    known("ELECTRIC_TELEMETRY_URL", Missing, "nothing is ever reported to anybody"),
    known("ELECTRIC_DATABASE_ID", Missing, "a storage directory knows which database it is of"),
    known("ELECTRIC_FEATURE_FLAGS", Missing, "subqueries in where clauses are not supported yet"),
    known("ELECTRIC_SHAPE_HIBERNATE_AFTER", Missing, "an idle shape has no process"),
    known("ELECTRIC_SHAPE_SUSPEND_CONSUMER", Missing, "an idle shape has no process"),
    known("ELECTRIC_SHAPE_DB_EXCLUSIVE_MODE", Missing, "there is no SQLite here"),
    known("ELECTRIC_SHAPE_DB_STORAGE_DIR", Missing, "there is no SQLite here; see storage.dir"),
    known(
        "ELECTRIC_SHAPE_DB_SYNCHRONOUS",
        Missing,
        "there is no SQLite here; what was acknowledged is synced",
    ),
    known("ELECTRIC_SHAPE_DB_CACHE_SIZE", Missing, "there is no SQLite here"),
    known("ELECTRIC_CLEANUP_INTERVAL_MS", Missing, "bounds hold at once"),
    known(
        "ELECTRIC_PUBLICATION_ALTER_DEBOUNCE_TIME",
        Missing,
        "tables are published when they are asked for",
    ),
    known(
        "ELECTRIC_TWEAKS_PUBLICATION_REFRESH_PERIOD",
        Missing,
        "the publication is looked at after each start",
    ),
    known("ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD", Missing, "changes of tables are seen in the stream"),
    known("ELECTRIC_IDLE_WAL_SIZE_CHECK_PERIOD", Missing, "see database.idle_timeout_ms"),
    known("ELECTRIC_IDLE_WAL_SIZE_THRESHOLD", Missing, "see database.idle_timeout_ms"),
];

fn switch(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(Some("true".to_owned())),
        "false" | "0" | "no" | "off" => Ok(Some("false".to_owned())),
        _ => Err("it must be true or false".to_owned()),
    }
}

/// Milliseconds out of `30s`, `5min`, `1.5h` or a bare number of milliseconds.
fn time(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let unit_ms = match text[number.len()..].trim() {
        "" | "ms" | "msec" => 1.0,
        "s" | "sec" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" | "hr" => 3_600_000.0,
        _ => return Err("it must be a time such as 500ms, 30s, 5min or 1h".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(count) if (0.0..1e12).contains(&count) => Ok(Some(format!("{:.0}", (count * unit_ms).floor()))),
        Ok(_) | Err(_) => Err("it must be a time such as 500ms, 30s, 5min or 1h".to_owned()),
    }
}

/// Out of a ratio, 0 to 1.
fn percent(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Some((ratio * 100.0).to_string())),
        Ok(_) | Err(_) => Err("it must be a ratio, 0 to 1".to_owned()),
    }
}

fn own_name(id: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("forebay_{}", id.to_lowercase())))
}

fn own_folder(dir: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("{}/forebay", dir.trim_end_matches('/'))))
}

fn port(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| "it must be a port, 0 to 65535".to_owned())
}

fn every_address(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("0.0.0.0:{}", port(text)?)))
}

fn every_ipv6_address(text: &str, said: &Said<'_>) -> Result<Option<String>, String> {
    if switch(text, said)?.as_deref() != Some("true") {
        return Ok(None);
    }
    let port = said("ELECTRIC_PORT").map_or(Ok(LISTEN.port()), port)?;
    Ok(Some(format!("[::]:{port}")))
}

fn local_address(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("127.0.0.1:{}", port(text)?)))
}

fn level(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    let level = match text.to_lowercase().as_str() {
        "emergency" | "alert" | "critical" | "error" => "error",
        "warning" | "warn" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        _ => return Err("it must be error, warning, info or debug".to_owned()),
    };
    Ok(Some(level.to_owned()))
}
