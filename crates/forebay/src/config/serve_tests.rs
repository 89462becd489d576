//! Tests of the settings of `forebay serve`: every key has an effect, and invalid values are
//! refused by name.

use std::collections::BTreeSet;

use clap::Parser as _;
use forebay_settings::{CommandDeclaration, Setting, SettingKind};
use http::{HeaderMap, HeaderValue};

use super::{ConfigError, GateSettings, ServeConfig, ServeSettings, load_gate, load_serve};
use crate::cli::{Cli, Command, GateArgs, ServeArgs};

const SERVE: CommandDeclaration = CommandDeclaration::of::<ServeSettings>();
const GATE: CommandDeclaration = CommandDeclaration::of::<GateSettings>();
const URL: (&str, &str) = ("DATABASE_URL", "postgres://me:s3cr3t@db.test:5433/shop");

fn pairs(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with(variables: &[(&str, &str)]) -> Result<ServeConfig, ConfigError> {
    load_serve(ServeArgs::default(), pairs(&[&[URL], variables].concat()))
}

fn with_flags(flags: &[&str], variables: &[(&str, &str)]) -> Result<ServeConfig, ConfigError> {
    let cli = Cli::try_parse_from(["forebay", "serve"].iter().chain(flags)).unwrap();
    let Command::Serve(args) = cli.command else { panic!("another command") };
    load_serve(args, pairs(variables))
}

fn from_file(name: &str, text: &str, variables: &[(&str, &str)]) -> Result<ServeConfig, ConfigError> {
    let path = std::env::temp_dir().join(format!("forebay-serve-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let loaded = with_flags(&["--config", path.to_str().unwrap()], variables);
    std::fs::remove_file(path).unwrap();
    loaded
}

/// Returns the variable of a `section.key`.
fn variable(key: &str) -> String {
    format!("FOREBAY_{}", key.replacen('.', "_", 1).to_uppercase())
}

/// Returns the lines of the `Debug` output, each with the path of its field: `store.chunk_bytes:
/// 10485760`.
fn lines(config: &ServeConfig) -> BTreeSet<String> {
    let (mut path, mut lines) = (Vec::new(), BTreeSet::new());
    for line in format!("{config:#?}").lines() {
        let line = line.trim().trim_end_matches(',');
        match line.strip_suffix(['{', '(', '[']) {
            Some(opens) => path.push(opens.split(':').next().unwrap_or_default().trim().to_owned()),
            None if matches!(line, "}" | ")" | "]") => drop(path.pop()),
            None => drop(lines.insert(format!("{}.{line}", path[1..].join(".")))),
        }
    }
    lines
}

fn endpoint(config: &ServeConfig) -> String {
    let endpoint = lines(config).into_iter().find_map(|line| {
        line.strip_prefix("manager.connect.endpoint: ").map(|endpoint| endpoint.trim_matches('"').to_owned())
    });
    endpoint.unwrap()
}

#[test]
fn the_database_url_is_the_only_required_setting() {
    let config = with(&[]).unwrap();
    assert_eq!(endpoint(&config), "db.test:5433");
    assert_eq!(config.listen.to_string(), "127.0.0.1:3000");
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:3001");
    assert!(config.secret.is_none() && !config.allow_delete);
    assert_eq!(config.store.dir.to_str(), Some("./forebay-data"));
    let backend = &config.backend;
    let times = [backend.long_poll, backend.sse_keep_alive, backend.sse_timeout, config.drain_timeout];
    assert_eq!(times.map(|time| time.as_secs()), [20, 21, 60, 25]);
    assert_eq!((backend.max_age_s, backend.stale_age_s, backend.snapshots), (60, 300, 16));
    assert_eq!((config.admission.total, config.admission.per_user), (10_000, None));
    let all = lines(&config);
    for line in [
        "manager.slot: \"forebay\"",
        "manager.publication: \"forebay\"",
        "manager.pool_size: 20",
        "manager.pooled: None",
        "manager.idle_after: None",
        "admission.builder.per_user: 100",
        "admission.builder.name: \"shapes\"",
        "http.drain_timeout: 25s",
        "quota.redis: None",
    ] {
        assert!(all.contains(line), "{line} is not in {all:#?}");
    }
}

#[test]
fn a_missing_database_url_is_an_error_with_an_example() {
    for variables in [&[][..], &[("DATABASE_URL", "")]] {
        let error = with_flags(&[], variables).unwrap_err().to_string();
        for part in ["database.url is missing", "DATABASE_URL=postgres://", "forebay serve"] {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn forebay_variables_override_database_url_and_flags_override_both() {
    let file = "[database]\nurl = \"postgres://me@file\"\n";
    let own = ("FOREBAY_DATABASE_URL", "postgres://me@own");
    assert_eq!(endpoint(&from_file("url", file, &[]).unwrap()), "file:5432");
    assert_eq!(endpoint(&from_file("empty", file, &[("DATABASE_URL", "")]).unwrap()), "file:5432");
    assert_eq!(endpoint(&from_file("borrowed", file, &[URL]).unwrap()), "db.test:5433");
    assert_eq!(endpoint(&from_file("own", file, &[own, URL]).unwrap()), "own:5432");
    assert_eq!(endpoint(&with_flags(&[], &[URL, own]).unwrap()), "own:5432");
    let flag = ["--database-url", "postgres://me@flag"];
    assert_eq!(endpoint(&with_flags(&flag, &[own, URL]).unwrap()), "flag:5432");
}

/// Key, a value other than the default, and the resulting line of the `Debug` output.
const KEYS_WITH_LINES: &[(&str, &str, &str)] = &[
    ("database.url", "postgres://me@other", "manager.connect.endpoint: \"other:5432\""),
    (
        "database.pooled_url",
        "postgres://me@pooler:6432",
        "manager.pooled.PostgresConnect.endpoint: \"pooler:6432\"",
    ),
    ("database.slot", "other", "manager.slot: \"other\""),
    ("database.temporary_slot", "true", "manager.temporary_slot: true"),
    ("database.failover_slot", "true", "manager.failover_slot: true"),
    ("database.publication", "Other one", "manager.publication: \"Other one\""),
    ("database.manual_publication", "true", "manager.manual_publication: true"),
    ("database.unpublish_after_ms", "7000", "backend.unpublish_after.7s"),
    ("database.pool_size", "8", "manager.pool_size: 8"),
    ("database.pool_low_watermark", "7", "manager.pool_low_watermark.7"),
    ("database.pool_lifetime_ms", "700000", "manager.pool_lifetime.700s"),
    ("database.pool_lifetime_jitter_ms", "7000", "manager.pool_lifetime_jitter.7s"),
    ("database.pool_guard_window_ms", "7000", "manager.pool_guard_window.7s"),
    ("database.max_connections", "40", "max_connections.40"),
    ("database.connections_per_second", "7", ".connections_per_second: 7"),
    ("database.idle_timeout_ms", "7000", "manager.idle_after.7s"),
    ("database.lock_check_ms", "7000", "manager.lock_timeouts.check_interval: 7s"),
    ("database.lock_silence_ms", "7000", "manager.lock_timeouts.silence_timeout: 7s"),
    ("admission.user_hash_key", "s3cr3t", "admission.builder.salted: true"),
    ("serve.listen", "[::1]:7", ".listen: [::1]:7"),
    ("serve.secret", "s3cr3t", "secret.Secret(…)"),
    ("serve.allow_delete", "true", ".allow_delete: true"),
    ("serve.long_poll_ms", "7000", "backend.long_poll: 7s"),
    ("serve.sse_keep_alive_ms", "7000", "backend.sse_keep_alive: 7s"),
    ("serve.sse_timeout_ms", "7000", "backend.sse_timeout: 7s"),
    ("serve.max_age_s", "7", "backend.max_age_s: 7"),
    ("serve.stale_age_s", "0", "backend.stale_age_s: 0"),
    ("serve.snapshots", "7", "backend.snapshots: 7"),
    ("serve.request_idle_timeout_ms", "7000", "http.body_read_timeout: 7s"),
    ("serve.drain_timeout_ms", "7000", ".drain_timeout: 7s"),
    ("storage.dir", "/elsewhere", "store.dir: \"/elsewhere\""),
    ("storage.chunk_bytes", "2048", "store.chunk_bytes: 2048"),
    ("storage.max_shapes", "7", "store.max_shapes: 7"),
    ("storage.max_bytes", "7000000", "store.max_bytes.7000000"),
    ("storage.unwritten_bytes", "7000000", "store.unwritten_bytes: 7000000"),
    ("storage.wal_bytes", "7000000", "store.wal_bytes: 7000000"),
    ("storage.compact_bytes", "7", "store.compact_bytes: 7"),
    ("storage.open_files", "7", "store.open_files: 7"),
    ("storage.small_snapshot_bytes", "0", "store.small_snapshot_bytes: 0"),
    ("storage.held_bytes", "7000000", "store.held_bytes: 7000000"),
    ("storage.queued_bytes", "7000000", "store.queued_bytes: 7000000"),
    ("http.max_connections", "7", "http.max_connections: 7"),
    ("http.header_timeout_ms", "7000", "http.header_read_timeout: 7s"),
    ("http.max_header_bytes", "9000", "http.max_header_bytes: 9000"),
    ("http.max_headers", "7", "http.max_headers: 7"),
    ("http.write_timeout_ms", "7000", "http.write_timeout: 7s"),
    ("http.idle_timeout_ms", "7000", "http.idle_timeout: 7s"),
    ("http.drain_grace_ms", "7000", "http.drain_grace: 7s"),
    ("admission.total", "7", "admission.builder.total: 7"),
    ("admission.per_user", "7", "admission.builder.per_user: 7"),
    ("admission.degraded_percent", "7", "admission.builder.thresholds.degraded: 7"),
    ("admission.critical_percent", "77", "admission.builder.thresholds.critical: 77"),
    ("admission.class_percent", "{ guest = 7 }", "admission.shares.\"guest\": 7"),
    ("admission.wait_ms", "7000", "admission.builder.wait: 7s"),
    ("admission.max_waiting", "7", "admission.builder.max_waiting: 7"),
    ("admission.max_waiting_per_user", "7", "admission.builder.max_waiting_per_user: 7"),
    ("admission.max_memory_percent", "50", "admission.builder.memory.0.5"),
    ("admission.max_cpu_percent", "50", "admission.builder.cpu.0.5"),
    ("admission.adaptive_floor", "7", "admission.builder.adaptive..7"),
    ("identity.by_address", "true", "identity.methods.\"address\""),
    ("redis.namespace", "other", "quota.namespace: \"other\""),
    ("quota.member", "seven", "quota.member.\"seven\""),
    ("quota.policy", "closed", "quota.policy: Closed"),
    ("quota.beat_ms", "1000", "quota.beat: 1s"),
    ("quota.ttl_ms", "7000", "quota.ttl: 7s"),
    ("admin.listen", "127.0.0.1:7", "admin.127.0.0.1:7"),
    ("admin.secret", "s3cr3t", "admin_secret.Secret(…)"),
    ("log.format", "json", "log.format: Json"),
    ("log.filter", "debug", "log.filter: \"debug\""),
    ("log.stages", "info", "log.stages: Info"),
];

/// Keys without a line of their own in the `Debug` output. Each has its own test.
const KEYS_WITH_OWN_TESTS: &[&str] = &[
    "database.auth",
    "database.aws_region",
    "quota.table",
    "database.password_file",
    "database.password_command",
    "database.ca_file",
    "serve.tls_cert_file",
    "serve.tls_key_file",
    "serve.tokens",
    "serve.tokens_claim",
    "serve.insecure",
    "serve.trusted_proxies",
    "serve.forwarded_by",
    "redis.url",
    "redis.password_file",
    "admin.insecure",
    "otel.endpoint",
    "otel.headers",
    "otel.service_name",
    "otel.interval_ms",
    "otel.sample_percent",
];

#[test]
fn every_key_sets_its_field() {
    let before = lines(&with(&[]).unwrap());
    for (key, value, line) in KEYS_WITH_LINES {
        assert!(!before.contains(*line), "{key}: {line} is the default");
        let after = lines(&with(&[(&variable(key), value)]).unwrap());
        let new: Vec<_> = after.difference(&before).collect();
        assert!(after.contains(*line), "{key} = {value} changed {new:?}, not {line:?}");
    }
    let tested = |path: &str| {
        let mut rows = KEYS_WITH_LINES.iter().map(|(key, ..)| *key);
        // The gate has the same identity keys; its tests cover them.
        rows.any(|key| key == path) || KEYS_WITH_OWN_TESTS.contains(&path) || path.starts_with("identity.")
    };
    for setting in SERVE.settings().filter(|setting| !tested(setting.path)) {
        let value = other_value(setting, "serve");
        let after = lines(&with(&[(&SERVE.variable(setting), &value)]).unwrap());
        assert_ne!(after, before, "{} = {value} has no effect", setting.path);
    }
    for (key, ..) in KEYS_WITH_LINES {
        assert!(SERVE.setting(key).is_some(), "{key}");
    }
}

/// Returns a value of a number or a switch other than the default of the command.
fn other_value(setting: &Setting, command: &str) -> String {
    let default = setting.default_of(command).unwrap_or_else(|| panic!("{} needs a row", setting.path));
    match setting.kind {
        SettingKind::Number => (default.as_integer().unwrap() + 1).to_string(),
        SettingKind::Switch => (!default.as_bool().unwrap()).to_string(),
        kind => panic!("{} needs a row in KEYS_WITH_LINES: its kind is {kind}", setting.path),
    }
}

#[test]
fn every_number_and_switch_of_the_gate_has_an_effect() {
    let gate = |variable: Option<(String, String)>| {
        let upstream = ("FOREBAY_GATE_UPSTREAM".to_owned(), "http://127.0.0.1:8000".to_owned());
        let variables = [upstream].into_iter().chain(variable);
        format!("{:#?}", load_gate(GateArgs::default(), variables).unwrap())
    };
    let before = gate(None);
    let is_tested = |setting: &&Setting| {
        matches!(setting.kind, SettingKind::Number | SettingKind::Switch)
            && setting.default_of("gate").is_some()
            && !KEYS_WITH_OWN_TESTS.contains(&setting.path)
    };
    for setting in GATE.settings().filter(is_tested) {
        let value = other_value(setting, "gate");
        let after = gate(Some((GATE.variable(setting), value.clone())));
        assert_ne!(after, before, "{} = {value} has no effect", setting.path);
    }
}

#[test]
fn zero_disables_a_limit() {
    for (key, field) in [
        ("database.idle_timeout_ms", "manager.idle_after: None"),
        ("database.unpublish_after_ms", "backend.unpublish_after: None"),
        ("storage.max_bytes", "store.max_bytes: None"),
    ] {
        let text =
            format!("[{}]\n{} = 7000000\n", key.split_once('.').unwrap().0, key.split_once('.').unwrap().1);
        let config = from_file("zero", &text, &[URL, (&variable(key), "0")]).unwrap();
        assert!(lines(&config).contains(field), "{key}");
    }
}

#[track_caller]
fn assert_error(key: &str, value: &str, parts: &[&str]) {
    let variable = variable(key);
    let error = with(&[(&variable, value)]).unwrap_err().to_string();
    for part in parts.iter().copied().chain([variable.as_str()]) {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn an_error_names_the_key_and_the_origin_of_an_invalid_value() {
    for (key, value, part) in [
        ("database.url", "mysql://me@h/db", "postgres"),
        ("database.url", "postgres://h/db", "user: it must be given"),
        ("database.url", "postgres://me@h/db?sslmode=maybe", "verify-full"),
        ("database.pooled_url", "postgres://me@h:0/db", "port: a number"),
        ("database.password_file", "/nowhere/password", "can't be read"),
        ("database.ca_file", "/nowhere/ca.pem", "can't be read"),
        ("database.slot", "My-Slot", "1 to 63 of a-z, 0-9 and _"),
        ("database.slot", "", "1 to 63"),
        ("database.publication", "", "1 to 63 bytes"),
        ("database.pool_size", "1", "2 to 10000"),
        ("database.pool_size", "10001", "2 to 10000"),
        ("database.idle_timeout_ms", "86400001", "1 to 86400000"),
        ("database.unpublish_after_ms", "86400001", "1 to 86400000"),
        ("database.lock_check_ms", "99", "at least 100"),
        ("database.lock_silence_ms", "99", "at least 100"),
        ("serve.listen", "localhost:3000", "such as 127.0.0.1:3000"),
        ("serve.secret", "", "is empty"),
        ("serve.secret", "s3cr3t\n", "white space"),
        ("serve.long_poll_ms", "0", "1 to 86400000"),
        ("serve.sse_keep_alive_ms", "0", "1 to 86400000"),
        ("serve.sse_timeout_ms", "0", "1 to 86400000"),
        ("serve.max_age_s", "31536001", "0 to 31536000"),
        ("serve.stale_age_s", "31536001", "0 to 31536000"),
        ("serve.snapshots", "0", "at least 1"),
        ("serve.snapshots", "17", "the 16 that database.pool_size"),
        ("serve.trusted_proxies", "10.0.0.0/99", "10.0.0.0/99"),
        ("serve.forwarded_by", "via", "`x-forwarded-for` or `forwarded`"),
        ("serve.request_idle_timeout_ms", "0", "1 to 86400000"),
        ("serve.drain_timeout_ms", "0", "1 to 86400000"),
        ("storage.dir", "", "such as ./forebay-data"),
        ("storage.chunk_bytes", "1023", "1024 to 1073741824 bytes"),
        ("storage.max_shapes", "0", "1 to 10000000"),
        ("storage.max_bytes", "1", "1048576 to"),
        ("storage.unwritten_bytes", "1", "65536 to"),
        ("storage.wal_bytes", "1", "1048576 to"),
        ("storage.open_files", "0", "1 to 1000000"),
        ("storage.small_snapshot_bytes", "67108865", "0 to 67108864 bytes"),
        ("storage.held_bytes", "1", "65536 to"),
        ("storage.queued_bytes", "1", "65536 to"),
        ("admission.per_user", "0", "at least 1"),
        ("redis.url", "http://h", "redis://"),
        ("redis.password_file", "/nowhere/password", "can't be read"),
        ("redis.password_file", "/proc/self/cmdline", "has no effect without redis.url"),
        ("identity.user_header", "X-User-ID", "serve.trusted_proxies"),
        ("log.format", "xml", "`text` or `json`"),
        ("serve.tls_cert_file", "/nowhere/tls.crt", "serve.tls_key_file"),
        ("serve.tls_key_file", "/nowhere/tls.key", "serve.tls_cert_file"),
        ("serve.tokens", "optional", "`off` or `required`"),
        ("serve.tokens", "required", "identity.jwt_secret_file"),
        ("serve.tokens_claim", "grants", "serve.tokens is \"required\""),
    ] {
        assert_error(key, value, &[key, part]);
    }
}

#[test]
fn an_error_names_the_variable_of_a_value_with_the_wrong_type() {
    for setting in SERVE.settings() {
        if matches!(setting.kind, SettingKind::Number | SettingKind::Switch) {
            assert_error(setting.path, "maybe", &["has an invalid value"]);
        }
    }
    assert_error("database.manual_publication", "maybe", &["has an invalid value", "a boolean"]);
    assert_error("database.pool_size", "-1", &["u32"]);
}

#[test]
fn snapshots_have_the_connections_that_the_budget_leaves_them() {
    for (budget, snapshots) in [("0", 16), ("40", 16), ("20", 15), ("4", 2), ("2", 1)] {
        assert_eq!(
            with(&[("FOREBAY_DATABASE_MAX_CONNECTIONS", budget)]).unwrap().backend.snapshots,
            snapshots
        );
    }
}

#[test]
fn a_slot_can_not_be_both_temporary_and_a_failover_slot() {
    let both = [("FOREBAY_DATABASE_TEMPORARY_SLOT", "true"), ("FOREBAY_DATABASE_FAILOVER_SLOT", "true")];
    let error = with(&both).unwrap_err().to_string();
    assert!(error.contains("database.failover_slot") && error.contains("database.temporary_slot"), "{error}");
}

#[test]
fn an_unreadable_certificate_is_an_error_with_its_key() {
    let files = [
        ("FOREBAY_SERVE_TLS_CERT_FILE", "/nowhere/tls.crt"),
        ("FOREBAY_SERVE_TLS_KEY_FILE", "/nowhere/tls.key"),
    ];
    let error = with(&files).unwrap_err().to_string();
    assert!(error.contains("serve.tls_cert_file") && error.contains("No such file"), "{error}");
}

#[test]
fn tokens_allow_a_public_address_but_not_deletion() {
    let path = std::env::temp_dir().join(format!("forebay-tokens-{}.secret", std::process::id()));
    std::fs::write(&path, [b'x'; 40]).unwrap();
    let keys = ("FOREBAY_IDENTITY_JWT_SECRET_FILE", path.to_str().unwrap());
    let required = [keys, ("FOREBAY_SERVE_TOKENS", "required"), ("FOREBAY_SERVE_LISTEN", "0.0.0.0:3000")];
    assert_eq!(with(&required).unwrap().backend.tokens_claim.as_deref(), Some("shapes"));
    assert_eq!(with(&[keys]).unwrap().backend.tokens_claim, None);
    let claim = ("FOREBAY_SERVE_TOKENS_CLAIM", "https://forebay.example/shapes");
    assert_eq!(
        with(&[&required[..], &[claim]].concat()).unwrap().backend.tokens_claim.as_deref(),
        Some(claim.1)
    );
    assert!(with(&[&required[..], &[(claim.0, " ")]].concat()).is_err(), "a blank claim");
    let deletes = [&required[..], &[("FOREBAY_SERVE_ALLOW_DELETE", "true")]].concat();
    let error = with(&deletes).unwrap_err().to_string();
    assert!(error.contains("serve.allow_delete") && error.contains("serve.secret"), "{error}");
    assert!(with(&[&deletes[..], &[("FOREBAY_SERVE_SECRET", "s3cr3t")]].concat()).unwrap().allow_delete);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_public_address_needs_a_secret_or_the_insecure_flag() {
    for address in ["0.0.0.0:3000", "[::]:3000", "192.0.2.1:3000"] {
        assert_error("serve.listen", address, &[address, "FOREBAY_SERVE_SECRET", "--insecure"]);
        let listen = ("FOREBAY_SERVE_LISTEN", address);
        let config = with(&[listen, ("FOREBAY_SERVE_SECRET", "s3cr3t")]).unwrap();
        assert!(config.secret.is_some());
        let config = with(&[listen, ("FOREBAY_SERVE_INSECURE", "true")]).unwrap();
        assert!(config.secret.is_none() && config.listen.to_string() == address);
        with_flags(&["--listen", address, "--insecure"], &[URL]).unwrap();
        assert!(with_flags(&["--listen", address, "--insecure-admin"], &[URL]).is_err());
    }
    for address in ["127.0.0.1:3000", "127.9.9.9:3000", "[::1]:3000"] {
        with(&[("FOREBAY_SERVE_LISTEN", address)]).unwrap();
    }
}

#[test]
fn a_public_admin_address_needs_a_secret_or_the_insecure_flag() {
    assert_error("admin.listen", "0.0.0.0:3001", &["admin.listen", "--insecure-admin"]);
    with_flags(&["--admin", "0.0.0.0:3001", "--insecure-admin"], &[URL]).unwrap();
    with_flags(&["--admin", "0.0.0.0:3001"], &[URL, ("FOREBAY_ADMIN_SECRET", "s3cr3t")]).unwrap();
    assert_error("admin.secret", "", &["admin.secret", "empty"]);
    with(&[("FOREBAY_ADMIN_LISTEN", "0.0.0.0:3001"), ("FOREBAY_ADMIN_INSECURE", "true")]).unwrap();
    assert!(
        with_flags(&["--admin", "0.0.0.0:3001", "--insecure"], &[URL]).is_err(),
        "that flag is for the clients' address"
    );
    assert_eq!(with_flags(&["--admin", "off"], &[URL]).unwrap().admin, None);
}

#[tokio::test]
async fn only_headers_of_trusted_proxies_identify_a_client() {
    let proxies = ("FOREBAY_SERVE_TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.1");
    let by = ("FOREBAY_SERVE_FORWARDED_BY", "forwarded");
    let header = ("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID");
    let address = ("FOREBAY_IDENTITY_BY_ADDRESS", "true");
    let config = with(&[proxies, by, header, address]).unwrap();
    assert_eq!(config.identity.methods, ["trusted_header", "address"]);
    assert_eq!(config.admission.share(&forebay_admission::Class::ANONYMOUS), 90);
    let who = async |name: &'static str, value: &'static str, peer: &str| {
        let headers = HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))]);
        let visitor = config.identity.identify.identify(&headers, Some(peer.parse().unwrap())).await;
        visitor.unwrap().as_user().unwrap().id().to_owned()
    };
    assert_eq!(who("x-user-id", "ada", "10.1.2.3").await, "ada");
    assert_eq!(who("x-user-id", "ada", "192.0.2.1").await, "ada");
    assert_eq!(who("x-user-id", "ada", "203.0.113.7").await, "203.0.113.7");
    assert_eq!(who("forwarded", "for=203.0.113.7", "10.1.2.3").await, "203.0.113.7");
    assert_eq!(
        who("x-forwarded-for", "203.0.113.7", "10.1.2.3").await,
        "10.1.2.3",
        "the proxies do not write this header"
    );
}

#[test]
fn each_flag_overrides_its_variable() {
    let flags = [
        (
            "--database-url",
            "postgres://me@flag",
            "FOREBAY_DATABASE_URL",
            "manager.connect.endpoint: \"flag:5432\"",
        ),
        ("--slot", "flag", "FOREBAY_DATABASE_SLOT", "manager.slot: \"flag\""),
        ("--publication", "flag", "FOREBAY_DATABASE_PUBLICATION", "manager.publication: \"flag\""),
        ("--storage", "/flag", "FOREBAY_STORAGE_DIR", "store.dir: \"/flag\""),
        ("--listen", "[::1]:7", "FOREBAY_SERVE_LISTEN", ".listen: [::1]:7"),
        ("--total", "7", "FOREBAY_ADMISSION_TOTAL", "admission.builder.total: 7"),
        ("--per-user", "7", "FOREBAY_ADMISSION_PER_USER", "admission.builder.per_user: 7"),
        ("--admin", "[::1]:8", "FOREBAY_ADMIN_LISTEN", "admin.[::1]:8"),
        ("--log", "debug", "FOREBAY_LOG_FILTER", "log.filter: \"debug\""),
        ("--log-format", "json", "FOREBAY_LOG_FORMAT", "log.format: Json"),
        ("--redis", "redis://cache:7", "FOREBAY_REDIS_URL", "quota.redis.Config.address.port: 7"),
    ];
    for (flag, value, variable, line) in flags {
        // The variable alone would be an error or another value.
        let weaker = if flag == "--total" || flag == "--per-user" { "9" } else { "text" };
        let all = lines(&with_flags(&[flag, value], &[URL, (variable, weaker)]).unwrap());
        assert!(all.contains(line), "{flag}: {line} is not in {all:#?}");
    }
    assert!(with_flags(&["--allow-delete"], &[URL]).unwrap().allow_delete);
}

#[test]
fn passwords_and_secrets_are_never_printed() {
    let config = with(&[
        ("FOREBAY_SERVE_SECRET", "s3cr3t"),
        ("FOREBAY_REDIS_URL", "redis://:s3cr3t@h"),
        ("FOREBAY_DATABASE_POOLED_URL", "postgres://me:s3cr3t@pooler"),
    ]);
    let shown = format!("{:?}", config.unwrap());
    assert!(!shown.contains("s3cr3t"), "{shown}");
    let flags = ["forebay", "serve", "--database-url", URL.1, "--redis", "redis://:s3cr3t@h"];
    let shown = format!("{:?}", Cli::try_parse_from(flags).unwrap());
    assert!(shown.contains("--database-url") && !shown.contains("s3cr3t"), "{shown}");
    for (key, value) in [
        ("database.url", "postgres://me:s3cr3t@h:port/db"),
        ("database.url", "postgres://me:s3c/r3t@h/db"),
        ("database.url", "user=me password=s3cr3t s3cr3t=1 host=h"),
        ("database.url", "s3cr3t"),
        ("database.url", "mysql://me:s3cr3t@h/db"),
        ("database.pooled_url", "postgres://me:s3cr3t@h/db?sslrootcert=/nowhere"),
        ("database.pooled_url", "postgres://me:s3cr3t@h/db?sslmode=s3cr3t"),
        ("serve.secret", " s3cr3t"),
        ("redis.url", "redis://:s3cr3t@h:port"),
    ] {
        let error = with(&[(&variable(key), value)]).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(key) && !shown.contains("s3cr3t") && !shown.contains("r3t"), "{shown}");
    }
    let kinds = [
        "[serve]\nsecret = 53637233\n",
        "[database]\nurl = 53637233\n",
        "[serve]\nsecret = [\"53637233\"]\n",
    ];
    for text in kinds {
        let error = from_file("kind", text, &[]).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("line 2") && !shown.contains("53637233"), "{shown}");
    }
}

#[test]
fn an_unknown_key_or_variable_is_reported_with_a_suggestion() {
    let error = from_file("slip", "[serve]\nlisen = \"a\"\n", &[URL]).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("did you mean `listen`?"), "{error}");
    let error = from_file("section", "[databse]\n", &[URL]).unwrap_err().to_string();
    assert!(error.contains("did you mean `database`?"), "{error}");
    let error = with(&[("FOREBAY_STORAGE_DIRECTORY", "a")]).unwrap_err().to_string();
    assert!(error.contains("FOREBAY_STORAGE_DIRECTORY"), "{error}");
    let error = with(&[("FOREBAY_DATABASE_SLOTS", "a")]).unwrap_err().to_string();
    assert!(error.contains("did you mean `FOREBAY_DATABASE_SLOT`?"), "{error}");
}

#[test]
fn variables_of_the_gate_are_ignored_and_its_section_is_unknown() {
    for setting in GATE.settings().filter(|setting| setting.path.starts_with("gate.")) {
        with(&[(&GATE.variable(setting), "x")]).expect("a gate may run in the same environment");
    }
    let error = with(&[("FOREBAY_DATABSE_URL", "x")]).unwrap_err().to_string();
    assert!(error.contains("`FOREBAY_DATABASE_URL`"), "{error}");
    let error = from_file("gate", "[gate]\nlisten = \"a\"\n", &[URL]).unwrap_err().to_string();
    assert!(error.contains("unknown field `gate`"), "{error}");
}

#[test]
#[cfg(not(feature = "aws"))]
fn without_the_aws_feature_its_settings_are_refused_with_its_name() {
    for (key, value) in
        [("database.auth", "rds-iam"), ("database.auth", "dsql-iam"), ("quota.table", "leases")]
    {
        assert_error(key, value, &[key, "--features aws"]);
    }
}

#[test]
#[cfg(feature = "aws")]
fn iam_tokens_and_the_table_are_checked_with_the_settings_that_they_exclude() {
    const HOST: &str = "postgres://app@shop.abc.eu-central-1.rds.amazonaws.com/shop";
    let url = &format!("{HOST}?sslmode=require");
    let (auth, table) = (("FOREBAY_DATABASE_AUTH", "rds-iam"), ("FOREBAY_QUOTA_TABLE", "leases"));
    let on = |url: &str, variables: &[(&str, &str)]| with_flags(&["--database-url", url], variables);
    let config = on(url, &[auth, table]).unwrap();
    assert_eq!((config.quota.table.as_deref(), config.quota.redis.is_none()), (Some("leases"), true));
    let leases =
        [("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", "1"), ("DSQL_DISTRIBUTED_CONN_LEASE_TABLE", "others")];
    assert_eq!(on(url, &leases).unwrap().quota.table.as_deref(), Some("others"));
    assert_eq!(on(url, &leases[1..]).unwrap().quota.table, None, "the shared limit is off");
    let command = ("FOREBAY_DATABASE_PASSWORD_COMMAND", "pass");
    for (url, variables, part) in [
        (url.as_str(), vec![auth, command], "set only one of the three"),
        (HOST, vec![auth], "needs TLS"),
        ("postgres://app@db.test/shop?sslmode=require", vec![auth], "database.aws_region"),
        (url, vec![("FOREBAY_DATABASE_AWS_REGION", "eu-west-1")], "unless database.auth"),
        (url, vec![table, ("FOREBAY_REDIS_URL", "redis://cache")], "conflicts with redis.url"),
    ] {
        let error = on(url, &variables).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
