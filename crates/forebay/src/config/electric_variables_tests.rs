//! Tests of Electric's variables, and of the generated table in `docs/from-electric.md`.

use std::collections::BTreeSet;

use super::electric_variables::ELECTRIC_VARIABLES;
use super::imported_variables::{Counterpart, KnownVariable};
use super::serve_file::ServeFile;
use super::setting_layers::{SettingLayers, variable};
use super::setting_origin::SettingOrigin;
use super::settings_file::SettingsFile as _;
use super::{ServeConfig, load_serve};
use crate::cli::ServeArgs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/from-electric.md");
const URL: (&str, &str) = ("DATABASE_URL", "postgres://me:s3cr3t@db.test:5433/shop");

fn pairs(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn layered(variables: &[(&str, &str)]) -> SettingLayers<ServeFile> {
    let mut layers = SettingLayers::default();
    layers.environment(pairs(variables)).unwrap();
    layers
}

fn with(variables: &[(&str, &str)]) -> Result<ServeConfig, String> {
    let all = pairs(&[&[URL], variables].concat());
    load_serve(ServeArgs::default(), all).map_err(|error| error.to_string())
}

/// Returns a setting when only this variable is set.
fn imported(name: &str, text: &str, section: &str, key: &str) -> String {
    let layers = layered(&[(name, text)]);
    let (value, origin) =
        layers.get(section, key).unwrap_or_else(|| panic!("{name} does not set {section}.{key}"));
    assert_eq!(*origin, SettingOrigin::Variable(name.to_owned()));
    super::effective_settings::to_toml(value)
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
        ("CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN", "TRUE", "database.temporary_slot", "true"),
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
        let (section, key) = path.split_once('.').unwrap();
        assert_eq!(imported(name, text, section, key), value, "{name}");
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

#[test]
fn every_counterpart_is_a_key_of_the_config_file() {
    let sections = ServeFile::sections().into_iter();
    let keys: BTreeSet<String> =
        sections.flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{key}"))).collect();
    let mut names = BTreeSet::new();
    for KnownVariable { name, counterpart, remark } in ELECTRIC_VARIABLES {
        assert!(names.insert(name), "{name} is listed twice");
        match counterpart {
            Counterpart::Settings(settings) => {
                settings.iter().for_each(|(path, _)| assert!(keys.contains(*path), "{path}"))
            }
            Counterpart::Similar(path) => assert!(keys.contains(*path) && !remark.is_empty(), "{path}"),
            Counterpart::Nothing => assert!(!remark.is_empty(), "{name} has no reason"),
        }
    }
}

#[test]
fn electric_variables_override_the_file_and_forebay_variables_override_them() {
    let both = [("ELECTRIC_DB_POOL_SIZE", "7"), ("FOREBAY_DATABASE_POOL_SIZE", "9")];
    assert_eq!(layered(&both).get("database", "pool_size").unwrap().0.as_integer(), Some(9));
    let path = std::env::temp_dir().join(format!("forebay-electric-{}.toml", std::process::id()));
    std::fs::write(&path, "[serve]\nmax_age_s = 1\nstale_age_s = 2\n").unwrap();
    let args = ServeArgs { config: Some(path.clone()), ..ServeArgs::default() };
    let config = load_serve(args, pairs(&[URL, ("ELECTRIC_CACHE_MAX_AGE", "3")])).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!((config.max_age_s, config.stale_age_s), (3, 2));
    let two = [("ELECTRIC_LISTEN_ON_IPV6", "true"), ("ELECTRIC_PORT", "8080")];
    assert_eq!(layered(&two).get("serve", "listen").unwrap().0.as_str(), Some("[::]:8080"));
    let two = [("ELECTRIC_LISTEN_ON_IPV6", "false"), ("ELECTRIC_PORT", "8080")];
    assert_eq!(layered(&two).get("serve", "listen").unwrap().0.as_str(), Some("0.0.0.0:8080"));
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
    let names: Vec<_> = config.variable_notices.iter().map(|notice| notice.variable).collect();
    assert_eq!(names, ["ELECTRIC_SECRET", "ELECTRIC_STORAGE", "ELECTRIC_INSTANCE_ID"]);
    assert_eq!(config.variable_notices[0].settings, ["serve.secret"]);
    assert!(config.variable_notices[1].why_not.as_ref().unwrap().contains("storage.dir"));
    assert!(config.variable_notices[2].why_not.as_ref().unwrap().contains("its counterpart is quota.member"));
    assert!(!format!("{:?}", config.variable_notices).contains("s3cr3t"));
    assert!(with(&[]).unwrap().variable_notices.is_empty(), "DATABASE_URL is too common for a notice");
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
    for KnownVariable { name, counterpart, remark } in ELECTRIC_VARIABLES {
        let key = |path: &str| {
            let (section, key) = path.split_once('.').unwrap();
            format!("`{path}`, `{}`", variable(section, key))
        };
        let ours = match counterpart {
            Counterpart::Settings(settings) => {
                settings.iter().map(|(path, _)| key(path)).collect::<Vec<_>>().join("; ")
            }
            Counterpart::Similar(path) => format!("no effect; similar: {}", key(path)),
            Counterpart::Nothing => "none".to_owned(),
        };
        table += &format!("| `{name}` | {ours} | {remark} |\n");
    }
    table
}

#[test]
fn the_table_of_electric_variables_is_up_to_date() {
    crate::config::generated_page::assert_section(PAGE, "electric", &table());
}
