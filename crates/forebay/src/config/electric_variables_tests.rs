//! Tests of Electric's variables, and of the generated table in `docs/from-electric.md`.

use std::collections::BTreeSet;

use forebay_settings::{CommandDeclaration, SettingLayers, SettingOrigin, to_toml};

use super::electric_variables::WITHOUT_EFFECT;
use super::{ServeConfig, ServeSettings, load_serve};
use crate::cli::ServeArgs;

const SERVE: CommandDeclaration = CommandDeclaration::of::<ServeSettings>();
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/from-electric.md");
const URL: (&str, &str) = ("DATABASE_URL", "postgres://me:s3cr3t@db.test:5433/shop");

fn pairs(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn layered(variables: &[(&str, &str)]) -> SettingLayers {
    let mut layers = SettingLayers::new(SERVE);
    layers.environment(pairs(variables)).unwrap();
    layers
}

fn with(variables: &[(&str, &str)]) -> Result<ServeConfig, String> {
    let all = pairs(&[&[URL], variables].concat());
    load_serve(ServeArgs::default(), all).map_err(|error| error.to_string())
}

/// Returns a setting when only this variable is set.
fn imported(name: &str, text: &str, path: &str) -> String {
    let layers = layered(&[(name, text)]);
    let (value, origin) = layers.get(path).unwrap_or_else(|| panic!("{name} does not set {path}"));
    assert_eq!(*origin, SettingOrigin::Variable(name.to_owned()));
    to_toml(value)
}

#[test]
fn each_variable_of_electric_sets_its_counterpart() {
    for (name, text, path, value) in [
        ("DATABASE_URL", "postgres://a@b/c", "database.url", "\"postgres://a@b/c\""),
        ("ELECTRIC_QUERY_DATABASE_URL", "postgres://a@b/c", "database.pooled_url", "\"postgres://a@b/c\""),
        ("ELECTRIC_POOLED_DATABASE_URL", "postgres://a@b/c", "database.pooled_url", "\"postgres://a@b/c\""),
        ("ELECTRIC_DATABASE_CA_CERTIFICATE_FILE", "/ca.pem", "database.ca_file", "\"/ca.pem\""),
        ("ELECTRIC_DB_POOL_SIZE", "7", "database.pool_size", "7"),
        ("ELECTRIC_REPLICATION_STREAM_ID", "My_App", "database.slot", "\"forebay_my_app\""),
        ("ELECTRIC_REPLICATION_STREAM_ID", "my_app", "database.publication", "\"forebay_my_app\""),
        ("ELECTRIC_REPLICATION_IDLE_TIMEOUT", "5min", "database.idle_timeout_ms", "300000"),
        ("ELECTRIC_REPLICATION_IDLE_TIMEOUT", "0", "database.idle_timeout_ms", "0"),
        ("ELECTRIC_MANUAL_TABLE_PUBLISHING", "true", "database.manual_publication", "true"),
        ("CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN", "TRUE", "database.drop_slot_on_shutdown", "true"),
        ("ELECTRIC_SECRET", "1234", "serve.secret", "\"1234\""),
        ("ELECTRIC_INSECURE", "0", "serve.insecure", "false"),
        ("ELECTRIC_PORT", "8080", "serve.listen", "\"0.0.0.0:8080\""),
        ("ELECTRIC_LISTEN_ON_IPV6", "true", "serve.listen", "\"[::]:3000\""),
        ("ELECTRIC_ENABLE_INTEGRATION_TESTING", "1", "serve.allow_delete", "true"),
        ("ELECTRIC_CACHE_MAX_AGE", "5", "serve.max_age_s", "5"),
        ("ELECTRIC_CACHE_STALE_AGE", "5", "serve.stale_age_s", "5"),
        ("ELECTRIC_LONG_POLL_TIMEOUT", "8000", "serve.long_poll_ms", "8000"),
        ("ELECTRIC_TCP_SEND_TIMEOUT", "1.5 s", "http.write_timeout_ms", "1500"),
        ("ELECTRIC_STORAGE_DIR", "/var/electric/", "storage.dir", "\"/var/electric/forebay\""),
        ("ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD", "2048", "storage.chunk_bytes", "2048"),
        ("ELECTRIC_EXPERIMENTAL_MAX_SHAPES", "7", "storage.max_shapes", "7"),
        ("ELECTRIC_MAX_SHAPES", "7", "storage.max_shapes", "7"),
        ("ELECTRIC_LOG_LEVEL", "warning", "log.filter", "\"warn\""),
        ("ELECTRIC_PROMETHEUS_PORT", "9090", "admin.listen", "\"127.0.0.1:9090\""),
    ] {
        assert_eq!(imported(name, text, path), value, "{name}");
    }
}

#[test]
fn telemetry_variables_of_electric_have_an_effect_only_with_the_otel_feature() {
    let theirs = [
        ("ELECTRIC_OTLP_ENDPOINT", "http://collector.test:4318"),
        ("ELECTRIC_OTEL_EXPORT_PERIOD", "30s"),
        ("ELECTRIC_OTEL_SAMPLING_RATIO", "0.25"),
    ];
    let config = with(&theirs).unwrap();
    assert_eq!((config.variable_notices.len(), config.otel.is_some()), (3, cfg!(feature = "otel")));
    match config.otel {
        Some(otel) => {
            assert_eq!(otel.endpoint.to_string(), "http://collector.test:4318");
            assert_eq!((otel.interval.as_secs(), otel.sample), (30, 0.25));
            let error = with(&[theirs[0], ("ELECTRIC_OTEL_SAMPLING_RATIO", "25")]).unwrap_err();
            assert!(error.contains("ELECTRIC_OTEL_SAMPLING_RATIO") && error.contains("0 to 1"), "{error}");
        }
        None => {
            let why = config.variable_notices[0].why_not.as_ref().unwrap();
            assert!(why.contains("--features otel"), "{why}");
        }
    }
}

/// Runtime variables of Electric 1.7.
const ELECTRIC_1_7: &str = "
    CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN DATABASE_URL ELECTRIC_CACHE_MAX_AGE ELECTRIC_CACHE_STALE_AGE
    ELECTRIC_CLEANUP_INTERVAL_MS ELECTRIC_CONSUMER_GC_HEAP_THRESHOLD ELECTRIC_CONSUMER_PARTITIONS
    ELECTRIC_DATABASE_CA_CERTIFICATE_FILE ELECTRIC_DATABASE_ID ELECTRIC_DATABASE_USE_IPV6 ELECTRIC_DB_POOL_SIZE
    ELECTRIC_ENABLE_INTEGRATION_TESTING ELECTRIC_EXCLUDE_SPANS ELECTRIC_EXPERIMENTAL_MAX_BATCH_SIZE
    ELECTRIC_EXPERIMENTAL_MAX_SHAPES ELECTRIC_EXPERIMENTAL_MAX_TXN_SIZE ELECTRIC_FEATURE_FLAGS
    ELECTRIC_HNY_API_KEY ELECTRIC_HNY_DATASET ELECTRIC_INSECURE ELECTRIC_INSTANCE_ID ELECTRIC_LISTEN_ON_IPV6
    ELECTRIC_LOG_COLORS ELECTRIC_LOG_LEVEL ELECTRIC_LOG_OTP_REPORTS ELECTRIC_MANUAL_TABLE_PUBLISHING
    ELECTRIC_MAX_CONCURRENT_REQUESTS ELECTRIC_MAX_SHAPES ELECTRIC_METRICS_SAMPLING_RATIO ELECTRIC_OTEL_DEBUG
    ELECTRIC_OTEL_EXPORT_PERIOD ELECTRIC_OTEL_SAMPLING_RATIO ELECTRIC_OTLP_ENDPOINT ELECTRIC_PERSISTENT_STATE
    ELECTRIC_POOLED_DATABASE_URL ELECTRIC_PORT ELECTRIC_PROCESS_SPAWN_OPTS ELECTRIC_PROFILE_WHERE_CLAUSES
    ELECTRIC_PROMETHEUS_PORT ELECTRIC_PUBLICATION_ALTER_DEBOUNCE_TIME ELECTRIC_QUERY_DATABASE_URL
    ELECTRIC_REPLICATION_IDLE_TIMEOUT ELECTRIC_REPLICATION_STREAM_ID ELECTRIC_SECRET ELECTRIC_SERVICE_NAME
    ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD ELECTRIC_SHAPE_DB_CACHE_SIZE ELECTRIC_SHAPE_DB_ENABLE_MEMORY_STATS
    ELECTRIC_SHAPE_DB_ENABLE_STATS ELECTRIC_SHAPE_DB_EXCLUSIVE_MODE ELECTRIC_SHAPE_DB_STORAGE_DIR
    ELECTRIC_SHAPE_DB_SYNCHRONOUS ELECTRIC_SHAPE_HIBERNATE_AFTER ELECTRIC_SHAPE_SUSPEND_CONSUMER
    ELECTRIC_STATSD_HOST ELECTRIC_STORAGE ELECTRIC_STORAGE_DIR ELECTRIC_SYSTEM_METRICS_POLL_INTERVAL
    ELECTRIC_TCP_SEND_TIMEOUT ELECTRIC_TELEMETRY_LONG_GC_THRESHOLD
    ELECTRIC_TELEMETRY_LONG_MESSAGE_QUEUE_DISABLE_THRESHOLD ELECTRIC_TELEMETRY_LONG_MESSAGE_QUEUE_ENABLE_THRESHOLD
    ELECTRIC_TELEMETRY_LONG_SCHEDULE_THRESHOLD ELECTRIC_TELEMETRY_TOP_PROCESS_COUNT
    ELECTRIC_TELEMETRY_TOP_PROCESS_LIMIT ELECTRIC_TELEMETRY_URL
    ELECTRIC_TEMPORARY_REPLICATION_SLOT_USE_RANDOM_NAME ELECTRIC_TWEAKS_CONN_MAX_REQUESTS
    ELECTRIC_TWEAKS_HANDLER_FULLSWEEP_AFTER ELECTRIC_TWEAKS_HTTP_API_NUM_ACCEPTORS
    ELECTRIC_TWEAKS_PROCESS_REGISTRY_PARTITIONS ELECTRIC_TWEAKS_PUBLICATION_REFRESH_PERIOD
    ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD ELECTRIC_TWEAKS_SHAPE_FILTER_MAX_DISTRIBUTED_LEAVES
    ELECTRIC_USAGE_REPORTING SENTRY_DSN";

#[test]
fn every_runtime_variable_of_electric_is_mapped_or_has_a_reason() {
    let mapped = SERVE.imported_variables();
    let mapped = mapped.iter().map(|variable| variable.name);
    let (mut names, mut reasons) = (BTreeSet::new(), String::new());
    for name in mapped.chain(WITHOUT_EFFECT.iter().map(|(name, _)| *name)) {
        assert!(names.insert(name), "{name} is listed twice");
    }
    for name in ELECTRIC_1_7.split_whitespace() {
        assert!(names.contains(name), "{name}");
    }
    for (name, reason) in WITHOUT_EFFECT {
        assert!(!reason.is_empty(), "{name} has no reason");
        reasons += &format!(" {reason} ");
    }
    let is_setting = |word: &&str| {
        let section = word.split_once('.').map_or("", |(section, _)| section);
        SERVE.sections.iter().any(|declared| declared.name == section)
    };
    let words = reasons.split([' ', ',', ';', '`', '\n']);
    for path in words.filter(is_setting) {
        assert!(SERVE.setting(path).is_some(), "{path} is no setting");
    }
}

#[test]
fn electric_variables_override_the_file_and_forebay_variables_override_them() {
    let both = [("ELECTRIC_DB_POOL_SIZE", "7"), ("FOREBAY_DATABASE_POOL_SIZE", "9")];
    assert_eq!(layered(&both).get("database.pool_size").unwrap().0.as_integer(), Some(9));
    let path = std::env::temp_dir().join(format!("forebay-electric-{}.toml", std::process::id()));
    std::fs::write(&path, "[serve]\nmax_age_s = 1\nstale_age_s = 2\n").unwrap();
    let args = ServeArgs { config: Some(path.clone()), ..ServeArgs::default() };
    let config = load_serve(args, pairs(&[URL, ("ELECTRIC_CACHE_MAX_AGE", "3")])).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!((config.backend.max_age_s, config.backend.stale_age_s), (3, 2));
    let two = [("ELECTRIC_LISTEN_ON_IPV6", "true"), ("ELECTRIC_PORT", "8080")];
    assert_eq!(layered(&two).get("serve.listen").unwrap().0.as_str(), Some("[::]:8080"));
    let two = [("ELECTRIC_LISTEN_ON_IPV6", "false"), ("ELECTRIC_PORT", "8080")];
    assert_eq!(layered(&two).get("serve.listen").unwrap().0.as_str(), Some("0.0.0.0:8080"));
}

#[test]
fn the_port_of_electric_needs_a_secret_like_any_address_that_others_can_reach() {
    let port = ("ELECTRIC_PORT", "3000");
    let error = with(&[port]).unwrap_err();
    assert!(error.contains("from ELECTRIC_PORT") && error.contains("FOREBAY_SERVE_SECRET"), "{error}");
    assert!(with(&[port, ("ELECTRIC_SECRET", "s3cr3t")]).unwrap().secret.is_some());
    assert!(with(&[port, ("ELECTRIC_INSECURE", "true")]).unwrap().secret.is_none());
    assert!(with(&[("ELECTRIC_SECRET", "s3cr3t")]).unwrap().listen.ip().is_loopback());
}

#[test]
fn variables_with_and_without_effect_are_reported_by_name() {
    let config = with(&[
        ("ELECTRIC_SECRET", "s3cr3t"),
        ("ELECTRIC_INSTANCE_ID", "s3cr3t"),
        ("ELECTRIC_STORAGE", "MEMORY"),
        ("ELECTRIC_USAGE_REPORTING", "false"),
        ("ELECTRIC_PERSISTENT_STATE", "FILE"),
        ("ELECTRIC_CACHE_MAX_AGE", ""),
        ("ELECTRIC_URL", "http://other.programs.test"),
    ])
    .unwrap();
    let names: Vec<_> = config.variable_notices.iter().map(|notice| notice.variable.as_str()).collect();
    assert_eq!(names, ["ELECTRIC_SECRET", "ELECTRIC_STORAGE", "ELECTRIC_INSTANCE_ID", "ELECTRIC_URL"]);
    assert_eq!(config.variable_notices[0].settings, ["serve.secret"]);
    assert!(config.variable_notices[1].why_not.as_ref().unwrap().contains("storage.dir"));
    assert!(config.variable_notices[2].why_not.as_ref().unwrap().contains("its counterpart is quota.member"));
    assert!(!format!("{:?}", config.variable_notices).contains("s3cr3t"));
    assert!(with(&[]).unwrap().variable_notices.is_empty(), "DATABASE_URL is too common for a notice");
}

#[test]
fn an_unknown_variable_of_electric_is_reported_with_a_suggestion() {
    let why = |name| {
        let config = with(&[(name, "s3cr3t")]).unwrap();
        let notice = config.variable_notices.into_iter().find(|notice| notice.variable == name).unwrap();
        assert!(notice.settings.is_empty());
        notice.why_not.unwrap()
    };
    assert!(why("ELECTRIC_SECERT").contains("did you mean `ELECTRIC_SECRET`?"));
    assert!(!why("ELECTRIC_OF_A_LATER_VERSION").contains("did you mean"));
    assert!(with(&[("ELECTRIC_SECERT", "")]).unwrap().variable_notices.is_empty(), "an empty variable");
}

#[test]
fn an_invalid_value_is_reported_with_its_variable() {
    for (name, value, part) in [
        ("ELECTRIC_PORT", "many", "a port"),
        ("ELECTRIC_INSECURE", "maybe", "true or false"),
        ("ELECTRIC_TCP_SEND_TIMEOUT", "soon", "30s"),
        ("ELECTRIC_TCP_SEND_TIMEOUT", "-1s", "30s"),
        ("ELECTRIC_TCP_SEND_TIMEOUT", "3 weeks", "30s"),
        ("ELECTRIC_TCP_SEND_TIMEOUT", "0", "http.write_timeout_ms"),
        ("ELECTRIC_LOG_LEVEL", "loud", "warning"),
        ("ELECTRIC_DB_POOL_SIZE", "few", "u32"),
        ("ELECTRIC_DB_POOL_SIZE", "1", "2 to 10000"),
        ("ELECTRIC_REPLICATION_STREAM_ID", "my-app", "a-z, 0-9 and _"),
    ] {
        let error = with(&[(name, value)]).unwrap_err();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}

#[test]
fn variables_of_a_kubernetes_service_named_electric_are_ignored() {
    let ours = [("ELECTRIC_SERVICE_HOST", "10.0.0.1"), ("ELECTRIC_PORT", "tcp://10.0.0.1:3000")];
    assert!(with(&ours).unwrap().listen.ip().is_loopback());
}

/// Returns the table of the page.
fn table() -> String {
    let mut table = String::from("| Electric | Forebay | remark |\n|---|---|---|\n");
    let variables = SERVE.imported_variables();
    for variable in variables
        .iter()
        .filter(|variable| !["OTEL_", "DSQL_"].iter().any(|other| variable.name.starts_with(other)))
    {
        let (name, settings) = (variable.name, &variable.settings);
        let ours =
            settings.iter().map(|(setting, _)| format!("`{}`, `{}`", setting.path, SERVE.variable(setting)));
        let remark = settings.first().map(|(_, import)| import.remark);
        table += &format!(
            "| `{name}` | {} | {} |\n",
            ours.collect::<Vec<_>>().join("; "),
            remark.unwrap_or_default()
        );
    }
    for (name, reason) in WITHOUT_EFFECT {
        table += &format!("| `{name}` | no effect | {reason} |\n");
    }
    table
}

#[test]
fn the_table_of_electric_variables_is_up_to_date() {
    crate::config::generated_page::assert_section(PAGE, "electric", &table());
}
