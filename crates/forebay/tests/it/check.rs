//! `forebay check` against real servers: findings, advice and exit codes.

use std::path::{Path, PathBuf};

use forebay_sandbox::{Postgres, Redis};
use serde_json::Value;

use crate::forebay_process::forebay;
use crate::serve::support::ServeFixture;

/// Returns the path of a folder that doesn't exist yet and belongs to this test.
fn folder_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("forebay-check-{name}-{}", std::process::id()))
}

/// Exit code and findings of one run of `forebay check`.
struct CheckReport {
    code: Option<i32>,
    findings: Vec<Value>,
    /// Standard output.
    text: String,
}

impl CheckReport {
    /// Fails unless the check has this level, and its text and advice contain all `parts`.
    #[track_caller]
    fn assert_finding(&self, area: &str, check: &str, level: &str, parts: &[&str]) {
        let mut matching =
            self.findings.iter().filter(|finding| finding["area"] == area && finding["check"] == check);
        let found = matching.next().unwrap_or_else(|| panic!("no {area} {check} in {}", self.text));
        assert_eq!(found["level"], level, "{found}");
        let finding_text = format!("{} {}", found["what"], found["advice"]);
        for part in parts {
            assert!(finding_text.contains(part), "{part:?} is not in {finding_text}");
        }
        assert!(level == "ok" || found["advice"].is_string(), "without advice: {found}");
    }

    /// Returns the names of the failed checks.
    fn failed(&self) -> Vec<&str> {
        let failed = self.findings.iter().filter(|finding| finding["level"] == "fail");
        failed.filter_map(|finding| finding["check"].as_str()).collect()
    }
}

fn run_check_in(dir: &Path, url: &str, variables: &[(&str, &str)]) -> CheckReport {
    let args = ["check", "--json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--storage"];
    let mut program = forebay(&args);
    program
        .arg(dir)
        .env("DATABASE_URL", url)
        .env("FOREBAY_HTTP_MAX_CONNECTIONS", "100")
        .env("FOREBAY_DATABASE_POOL_SIZE", "4")
        .envs(variables.iter().copied());
    let output = program.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let whole: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error} in {text:?} {}", String::from_utf8_lossy(&output.stderr)));
    assert!(!text.contains("s3cr3t"), "{text}");
    CheckReport { code: output.status.code(), findings: whole["findings"].as_array().unwrap().clone(), text }
}

fn run_check(name: &str, url: &str, variables: &[(&str, &str)]) -> CheckReport {
    let folder = folder_path(name);
    let _ = std::fs::remove_dir_all(&folder); // left by a killed process with the same id
    run_check_in(&folder, url, variables)
}

#[test]
fn check_passes_on_a_suitable_server_and_changes_nothing() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let redis = Redis::shared();
    let counts = "SELECT (SELECT count(*) FROM pg_publication) || ' ' || \
                      (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())";
    let before = fixture.query_value(counts);
    let report =
        run_check("good", &fixture.postgres.url(&fixture.database), &[("FOREBAY_REDIS_URL", &redis.url())]);
    assert_eq!((report.code, report.failed()), (Some(0), vec![]), "{}", report.text);
    for (area, name) in [
        ("postgres", "reachable"),
        ("postgres", "version"),
        ("postgres", "wal_level"),
        ("postgres", "replication_right"),
        ("postgres", "slots"),
        ("postgres", "senders"),
        ("postgres", "connections"),
        ("postgres", "tls"),
        ("postgres", "clock"),
        ("postgres", "tables"),
        ("postgres", "slot"),
        ("postgres", "publication"),
        ("redis", "reachable"),
        ("redis", "version"),
        ("redis", "eviction"),
        ("redis", "clock"),
        ("storage", "writable"),
        ("machine", "address"),
    ] {
        report.assert_finding(area, name, "ok", &[]);
    }
    // The latency depends on the load of the machine, so only its presence is checked.
    let latencies = report.findings.iter().filter(|finding| finding["check"] == "latency");
    assert_eq!(latencies.count(), 2, "{}", report.text);
    assert_eq!(fixture.query_value(counts), before);
    assert!(!folder_path("good").exists(), "check creates no storage folder");
}

#[test]
fn a_wrong_wal_level_is_reported_with_the_statement_that_fixes_it() {
    let server = Postgres::builder().config("wal_level", "replica").start().unwrap();
    let report = run_check("replica", &server.url("postgres"), &[]);
    assert_eq!((report.code, report.failed()), (Some(1), vec!["wal_level"]), "{}", report.text);
    report.assert_finding(
        "postgres",
        "wal_level",
        "fail",
        &["wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'"],
    );
    report.assert_finding("postgres", "version", "ok", &["PostgreSQL"]);
}

#[test]
fn missing_rights_are_reported_with_the_statements_that_grant_them() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let role = format!("guest_{}", fixture.database);
    fixture.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 's3cr3t'"));
    let report = run_check("rights", &fixture.postgres.url_as(&role, "s3cr3t", &fixture.database), &[]);
    assert_eq!(report.code, Some(1));
    report.assert_finding(
        "postgres",
        "replication_right",
        "fail",
        &[&format!("ALTER ROLE {role} REPLICATION")],
    );
    report.assert_finding("postgres", "publication", "fail", &["GRANT CREATE ON DATABASE"]);
    report.assert_finding(
        "postgres",
        "tables",
        "warn",
        &["1 of 1 tables", "public.items", "database.manual_publication"],
    );
    report.assert_finding("postgres", "connections", "ok", &[]);
    fixture.sql(&format!("DROP ROLE {role}"));
}

#[test]
fn an_unreachable_server_is_one_finding_and_the_other_checks_continue() {
    let port = std::net::SocketAddr::from(([127, 0, 0, 1], forebay_sandbox::free_port()));
    let variables = [("FOREBAY_REDIS_URL", format!("redis://:s3cr3t@{port}"))];
    let variables = [(variables[0].0, variables[0].1.as_str())];
    let report = run_check("down", &format!("postgres://me:s3cr3t@{port}/db"), &variables);
    assert_eq!((report.code, report.failed()), (Some(1), vec!["reachable", "reachable"]), "{}", report.text);
    report.assert_finding("postgres", "reachable", "fail", &[&port.to_string(), "database.url"]);
    report.assert_finding("redis", "reachable", "fail", &[&port.to_string(), "redis.url"]);
    report.assert_finding("storage", "writable", "ok", &[]);
    report.assert_finding("machine", "descriptors", "ok", &[]);
}

#[test]
fn tls_passes_only_with_a_verified_certificate() {
    let server = Postgres::builder().tls().start().unwrap();
    let url = server.url("postgres").replace("127.0.0.1", "localhost");
    let verified =
        run_check("tls", &url, &[("FOREBAY_DATABASE_CA_FILE", server.ca_path().to_str().unwrap())]);
    verified.assert_finding("postgres", "tls", "ok", &["encrypted (TLS", "verified"]);
    let unverified = run_check("no-ca", &format!("{url}?sslmode=require"), &[]);
    unverified.assert_finding(
        "postgres",
        "tls",
        "warn",
        &["was not verified", "verify-full", "database.ca_file"],
    );
    let wrong = run_check(
        "wrong-ca",
        &url,
        &[("FOREBAY_DATABASE_CA_FILE", server.wrong_ca_path().to_str().unwrap())],
    );
    wrong.assert_finding("postgres", "reachable", "fail", &["certificate"]);
}

#[test]
fn a_wrong_password_is_reported_and_never_printed() {
    let server = Postgres::builder().password("right").start().unwrap();
    let report = run_check("password", &server.url_as("postgres", "s3cr3t", "postgres"), &[]);
    assert_eq!((report.code, report.failed()), (Some(1), vec!["reachable"]), "{}", report.text);
    report.assert_finding("postgres", "reachable", "fail", &["password"]);
}

#[test]
fn a_redis_that_evicts_keys_fails_the_check() {
    let redis = Redis::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .config("maxmemory", "100mb")
        .start()
        .unwrap();
    let fixture = ServeFixture::new("");
    let report = run_check(
        "eviction",
        &fixture.postgres.url(&fixture.database),
        &[("FOREBAY_REDIS_URL", &redis.url())],
    );
    assert_eq!((report.code, report.failed()), (Some(1), vec!["eviction"]), "{}", report.text);
    report.assert_finding("redis", "eviction", "fail", &["allkeys-lru", "noeviction"]);
}

#[test]
fn the_password_of_redis_may_be_in_a_file() {
    let redis = Redis::builder().password("s3cr3t").start().unwrap();
    let fixture = ServeFixture::new("");
    let url = fixture.postgres.url(&fixture.database);
    let file = folder_path("redis-password");
    for (content, failed) in [("s3cr3t\n", vec![]), ("wrong", vec!["reachable"])] {
        std::fs::write(&file, content).unwrap();
        let path = file.to_str().unwrap();
        let variables = [("FOREBAY_REDIS_URL", &*redis.url()), ("FOREBAY_REDIS_PASSWORD_FILE", path)];
        let report = run_check("redis-file", &url, &variables);
        assert_eq!(report.failed(), failed, "{}", report.text);
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn the_slot_lock_and_addresses_of_a_running_instance_are_reported() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = fixture.serve().await;
    serve.reader(&[("table", "items")]).await;
    let (listen, admin) = (serve.addr.to_string(), serve.admin.to_string());
    let mut program =
        forebay(&["check", "--slot", &fixture.slot, "--publication", &fixture.slot, "--listen", &listen]);
    program.args(["--admin", &admin, "--storage"]).arg(&fixture.dir);
    program
        .env("DATABASE_URL", fixture.postgres.url(&fixture.database))
        .env("FOREBAY_DATABASE_POOL_SIZE", "4");
    let output = program.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        format!("the slot {} is used by a running instance", fixture.slot),
        format!("the publication {} exists", fixture.slot),
        format!("a running instance uses the directory (process {})", serve.pid()),
        "a store that this version can read".to_owned(),
        format!("{listen} is in use (--listen)"),
        format!("{admin} is in use (--admin)"),
        "ready, with ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "colours without a terminal");
}

#[test]
fn an_unusable_storage_folder_is_reported() {
    let fixture = ServeFixture::new("");
    let file = folder_path("file");
    std::fs::write(&file, "not a folder").unwrap();
    let url = fixture.postgres.url(&fixture.database);
    let report = run_check_in(&file, &url, &[]);
    report.assert_finding("storage", "writable", "fail", &["not a directory", "storage.dir"]);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("catalog"), "nonsense").unwrap();
    let report = run_check_in(&file, &url, &[]);
    report.assert_finding("storage", "store", "fail", &["catalog", "damaged"]);
    assert_eq!(report.failed(), ["store"], "the folder is writable");
    let left = std::fs::read_dir(&file).unwrap().count();
    assert_eq!(left, 1, "the probe file is removed");
    std::fs::remove_dir_all(&file).unwrap();
}

#[test]
fn invalid_settings_end_check_with_exit_code_2() {
    let output =
        forebay(&["check", "--slot", "My-Slot"]).env("DATABASE_URL", "postgres://me@h/db").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("database.slot"));
}
