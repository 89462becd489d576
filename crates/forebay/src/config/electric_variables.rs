//! Electric's environment variables, so that users can switch: parsers of their values, and the
//! variables that have no effect. The declarations of the settings (`sections/`) have the others.
//!
//! The variables are those of Electric 1.7, and some of older versions. Any other variable with its
//! prefix is reported, too. `docs/from-electric.md` is generated from them.

use forebay_settings::VariableLookup;

/// Prefix of Electric's variables.
pub(super) const ELECTRIC: &str = "ELECTRIC_";
/// Port that Electric listens on by default.
const DEFAULT_PORT: u16 = 3000;

/// Variables that have no effect, and why.
pub(super) const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("ELECTRIC_DATABASE_USE_IPV6", "all addresses of a host name are tried, IPv6 first"),
    (
        "ELECTRIC_TEMPORARY_REPLICATION_SLOT_USE_RANDOM_NAME",
        "the name of the slot is the lock, so it must be fixed",
    ),
    (
        "ELECTRIC_STORAGE",
        "shapes are stored in files; to use memory, set storage.dir to a directory on a tmpfs",
    ),
    ("ELECTRIC_PERSISTENT_STATE", "the state of shapes is stored with them, in files"),
    (
        "ELECTRIC_INSTANCE_ID",
        "its counterpart is quota.member, which must be unique for each instance, and the same after a restart",
    ),
    (
        "ELECTRIC_MAX_CONCURRENT_REQUESTS",
        "its counterpart is admission.total, which counts only live requests, of all instances together",
    ),
    (
        "ELECTRIC_TWEAKS_CONN_MAX_REQUESTS",
        "a connection may carry any number of requests; see http.idle_timeout_ms",
    ),
    ("ELECTRIC_TWEAKS_HTTP_API_NUM_ACCEPTORS", "the number of tasks that accept connections is fixed"),
    ("ELECTRIC_LOG_COLORS", "the log has colors only on a terminal; `log.format = \"json\"` is for programs"),
    ("ELECTRIC_LOG_OTP_REPORTS", "Forebay does not use Erlang"),
    ("ELECTRIC_PROFILE_WHERE_CLAUSES", "where clauses are not profiled"),
    ("ELECTRIC_OTEL_DEBUG", "traces are exported, not printed; see log.filter"),
    ("ELECTRIC_OTEL_PER_PROCESS_METRICS", "Forebay does not use Erlang"),
    ("ELECTRIC_EXCLUDE_SPANS", "spans are not selected by name; see otel.sample_percent"),
    ("ELECTRIC_HNY_API_KEY", "Honeycomb accepts OTLP: see otel.endpoint and otel.headers"),
    ("ELECTRIC_HNY_DATASET", "Honeycomb accepts OTLP: see otel.endpoint and otel.headers"),
    ("ELECTRIC_STATSD_HOST", "metrics are scraped from `/metrics` on the admin address"),
    ("ELECTRIC_SYSTEM_METRICS_POLL_INTERVAL", "metrics are measured when they are scraped"),
    ("ELECTRIC_METRICS_SAMPLING_RATIO", "metrics count every event"),
    (
        "ELECTRIC_SERVICE_NAME",
        "its counterpart is otel.service_name, which names exported telemetry; the scraper names the service of \
         scraped metrics",
    ),
    ("SENTRY_DSN", "errors are in the log; Forebay sends no reports to Sentry"),
    ("ELECTRIC_USAGE_REPORTING", "Forebay never reports usage"),
    ("ELECTRIC_TELEMETRY_URL", "Forebay never reports usage"),
    ("ELECTRIC_TELEMETRY_TOP_PROCESS_LIMIT", "Forebay does not use Erlang"),
    ("ELECTRIC_TELEMETRY_TOP_PROCESS_COUNT", "Forebay does not use Erlang"),
    ("ELECTRIC_TELEMETRY_LONG_GC_THRESHOLD", "Forebay has no garbage collector"),
    ("ELECTRIC_TELEMETRY_LONG_SCHEDULE_THRESHOLD", "Forebay does not use Erlang"),
    (
        "ELECTRIC_TELEMETRY_LONG_MESSAGE_QUEUE_ENABLE_THRESHOLD",
        "Forebay does not use Erlang; its queues are bounded",
    ),
    (
        "ELECTRIC_TELEMETRY_LONG_MESSAGE_QUEUE_DISABLE_THRESHOLD",
        "Forebay does not use Erlang; its queues are bounded",
    ),
    ("ELECTRIC_DATABASE_ID", "the storage directory contains the id of its database"),
    ("ELECTRIC_FEATURE_FLAGS", "subqueries in where clauses are not supported yet"),
    ("ELECTRIC_SHAPE_HIBERNATE_AFTER", "an idle shape has no process"),
    ("ELECTRIC_SHAPE_SUSPEND_CONSUMER", "an idle shape has no process"),
    ("ELECTRIC_CONSUMER_PARTITIONS", "a shape has no process"),
    ("ELECTRIC_CONSUMER_GC_HEAP_THRESHOLD", "Forebay has no garbage collector"),
    ("ELECTRIC_PROCESS_SPAWN_OPTS", "Forebay does not use Erlang"),
    ("ELECTRIC_TWEAKS_PROCESS_REGISTRY_PARTITIONS", "Forebay does not use Erlang"),
    ("ELECTRIC_TWEAKS_HANDLER_FULLSWEEP_AFTER", "Forebay has no garbage collector"),
    (
        "ELECTRIC_TWEAKS_SHAPE_FILTER_MAX_DISTRIBUTED_LEAVES",
        "the limits of the index over where clauses are fixed",
    ),
    ("ELECTRIC_SHAPE_DB_EXCLUSIVE_MODE", "Forebay does not use SQLite"),
    ("ELECTRIC_SHAPE_DB_STORAGE_DIR", "Forebay does not use SQLite; see storage.dir"),
    ("ELECTRIC_SHAPE_DB_SYNCHRONOUS", "Forebay does not use SQLite; acknowledged changes are synced"),
    ("ELECTRIC_SHAPE_DB_CACHE_SIZE", "Forebay does not use SQLite"),
    ("ELECTRIC_SHAPE_DB_ENABLE_STATS", "Forebay does not use SQLite"),
    ("ELECTRIC_SHAPE_DB_ENABLE_MEMORY_STATS", "Forebay does not use SQLite"),
    ("ELECTRIC_CLEANUP_INTERVAL_MS", "limits are applied at once"),
    ("ELECTRIC_EXPERIMENTAL_MAX_TXN_SIZE", "a transaction may have any size; it is stored in parts"),
    ("ELECTRIC_EXPERIMENTAL_MAX_BATCH_SIZE", "it is for tests of Electric"),
    ("ELECTRIC_TEST_LOG_LEVEL", "it is for tests of Electric; see log.filter"),
    (
        "ELECTRIC_PUBLICATION_ALTER_DEBOUNCE_TIME",
        "tables are added to the publication when they are requested",
    ),
    ("ELECTRIC_TWEAKS_PUBLICATION_REFRESH_PERIOD", "the publication is verified after each start"),
    ("ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD", "schema changes are detected in the replication stream"),
    ("ELECTRIC_IDLE_WAL_SIZE_CHECK_PERIOD", "see database.idle_timeout_ms"),
    ("ELECTRIC_IDLE_WAL_SIZE_THRESHOLD", "see database.idle_timeout_ms"),
];

/// Parses a boolean.
pub(super) fn switch(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(Some("true".to_owned())),
        "false" | "0" | "no" | "off" => Ok(Some("false".to_owned())),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Parses a duration, such as `30s`, `5min`, `1.5h` or a number of milliseconds. Returns
/// milliseconds.
pub(super) fn time(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
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
pub(super) fn percent(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Some((ratio * 100.0).to_string())),
        Ok(_) | Err(_) => Err("must be a ratio, 0 to 1".to_owned()),
    }
}

/// Returns the name of the slot and of the publication for a stream id.
pub(super) fn own_name(id: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("forebay_{}", id.to_lowercase())))
}

/// Returns our directory inside Electric's storage directory.
pub(super) fn own_directory(dir: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("{}/forebay", dir.trim_end_matches('/'))))
}

fn port(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| "must be a port, 0 to 65535".to_owned())
}

/// Returns the IPv4 wildcard address with a port.
pub(super) fn any_ipv4_address(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("0.0.0.0:{}", port(text)?)))
}

/// Returns the IPv6 wildcard address with Electric's port, or `None` if IPv6 is off.
pub(super) fn any_ipv6_address(text: &str, lookup: &VariableLookup<'_>) -> Result<Option<String>, String> {
    if switch(text, lookup)?.as_deref() != Some("true") {
        return Ok(None);
    }
    let port = lookup("ELECTRIC_PORT").map_or(Ok(DEFAULT_PORT), port)?;
    Ok(Some(format!("[::]:{port}")))
}

/// Returns the loopback address with a port.
pub(super) fn loopback_address(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(format!("127.0.0.1:{}", port(text)?)))
}

/// Converts a log level of Electric.
pub(super) fn level(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let level = match text.to_lowercase().as_str() {
        "emergency" | "alert" | "critical" | "error" => "error",
        "warning" | "warn" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        _ => return Err("must be error, warning, info or debug".to_owned()),
    };
    Ok(Some(level.to_owned()))
}
