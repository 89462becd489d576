//! `forebay check`: what is fit, what isn't, and what to do about it; against real servers.

use std::path::{Path, PathBuf};

use forebay_sandbox::{Postgres, Redis};
use serde_json::Value;

use crate::gate::forebay;
use crate::serve::support::Place;

/// A folder that isn't there yet, of this test's own.
fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("forebay-check-{name}-{}", std::process::id()))
}

/// What a check found, and its exit code.
struct Checked {
    code: Option<i32>,
    findings: Vec<Value>,
    text: String,
}

impl Checked {
    #[track_caller]
    fn is(&self, area: &str, check: &str, level: &str, parts: &[&str]) {
        let mut of =
            self.findings.iter().filter(|finding| finding["area"] == area && finding["check"] == check);
        let found = of.next().unwrap_or_else(|| panic!("no {area} {check} in {}", self.text));
        assert_eq!(found["level"], level, "{found}");
        let said = format!("{} {}", found["what"], found["advice"]);
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(level == "ok" || found["advice"].is_string(), "what to do? {found}");
    }

    fn failed(&self) -> Vec<&str> {
        let failed = self.findings.iter().filter(|finding| finding["level"] == "fail");
        failed.filter_map(|finding| finding["check"].as_str()).collect()
    }
}

fn check_in(dir: &Path, url: &str, variables: &[(&str, &str)]) -> Checked {
    let own = ["check", "--json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--storage"];
    let mut program = forebay(&own);
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
    Checked { code: output.status.code(), findings: whole["findings"].as_array().unwrap().clone(), text }
}

fn check(name: &str, url: &str, variables: &[(&str, &str)]) -> Checked {
    let folder = folder(name);
    let _ = std::fs::remove_dir_all(&folder); // of a killed process that had our number
    check_in(&folder, url, variables)
}

#[test]
fn a_good_server_is_fit_and_nothing_is_changed() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY)");
    let redis = Redis::shared();
    let everything = "SELECT (SELECT count(*) FROM pg_publication) || ' ' || \
                      (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())";
    let before = place.ask(everything);
    let checked = check("good", &place.postgres.url(&place.database), &[("FOREBAY_REDIS_URL", &redis.url())]);
    assert_eq!((checked.code, checked.failed()), (Some(0), vec![]), "{}", checked.text);
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
        checked.is(area, name, "ok", &[]);
    }
    // How quick a busy machine is, is not for a test to say.
    let latencies = checked.findings.iter().filter(|finding| finding["check"] == "latency");
    assert_eq!(latencies.count(), 2, "{}", checked.text);
    assert_eq!(place.ask(everything), before);
    assert!(!folder("good").exists(), "it was not for us to make");
}

#[test]
fn a_log_that_is_not_logical_is_named_with_the_statement_that_changes_it() {
    let server = Postgres::builder().config("wal_level", "replica").start().unwrap();
    let checked = check("replica", &server.url("postgres"), &[]);
    assert_eq!((checked.code, checked.failed()), (Some(1), vec!["wal_level"]), "{}", checked.text);
    checked.is(
        "postgres",
        "wal_level",
        "fail",
        &["wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'"],
    );
    checked.is("postgres", "version", "ok", &["PostgreSQL"]);
}

#[test]
fn a_user_without_rights_is_told_which_and_who_may_give_them() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY)");
    let role = format!("guest_{}", place.database);
    place.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 's3cr3t'"));
    let checked = check("rights", &place.postgres.url_as(&role, "s3cr3t", &place.database), &[]);
    assert_eq!(checked.code, Some(1));
    checked.is("postgres", "replication_right", "fail", &[&format!("ALTER ROLE {role} REPLICATION")]);
    checked.is("postgres", "publication", "fail", &["GRANT CREATE ON DATABASE"]);
    checked.is(
        "postgres",
        "tables",
        "warn",
        &["1 of 1 tables", "public.items", "database.manual_publication"],
    );
    checked.is("postgres", "connections", "ok", &[]);
    place.sql(&format!("DROP ROLE {role}"));
}

#[test]
fn a_server_that_is_down_is_one_line_and_the_rest_goes_on() {
    let port = std::net::SocketAddr::from(([127, 0, 0, 1], forebay_sandbox::free_port()));
    let variables = [("FOREBAY_REDIS_URL", format!("redis://:s3cr3t@{port}"))];
    let variables = [(variables[0].0, variables[0].1.as_str())];
    let checked = check("down", &format!("postgres://me:s3cr3t@{port}/db"), &variables);
    assert_eq!(
        (checked.code, checked.failed()),
        (Some(1), vec!["reachable", "reachable"]),
        "{}",
        checked.text
    );
    checked.is("postgres", "reachable", "fail", &[&port.to_string(), "database.url"]);
    checked.is("redis", "reachable", "fail", &[&port.to_string(), "redis.url"]);
    checked.is("storage", "writable", "ok", &[]);
    checked.is("machine", "descriptors", "ok", &[]);
}

#[test]
fn tls_is_fit_if_the_server_was_verified() {
    let server = Postgres::builder().tls().start().unwrap();
    let url = server.url("postgres").replace("127.0.0.1", "localhost");
    let verified = check("tls", &url, &[("FOREBAY_DATABASE_CA_FILE", server.ca_path().to_str().unwrap())]);
    verified.is("postgres", "tls", "ok", &["encrypted (TLS", "verified"]);
    let unverified = check("no-ca", &format!("{url}?sslmode=require"), &[]);
    unverified.is("postgres", "tls", "warn", &["was not verified", "verify-full", "database.ca_file"]);
    let wrong =
        check("wrong-ca", &url, &[("FOREBAY_DATABASE_CA_FILE", server.wrong_ca_path().to_str().unwrap())]);
    wrong.is("postgres", "reachable", "fail", &["certificate"]);
}

#[test]
fn a_wrong_password_is_said_to_be_one_and_not_shown() {
    let server = Postgres::builder().password("right").start().unwrap();
    let checked = check("password", &server.url_as("postgres", "s3cr3t", "postgres"), &[]);
    assert_eq!((checked.code, checked.failed()), (Some(1), vec!["reachable"]), "{}", checked.text);
    checked.is("postgres", "reachable", "fail", &["password"]);
}

#[test]
fn a_redis_that_drops_counts_is_no_place_to_meet() {
    let redis = Redis::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .config("maxmemory", "100mb")
        .start()
        .unwrap();
    let place = Place::new("");
    let checked =
        check("eviction", &place.postgres.url(&place.database), &[("FOREBAY_REDIS_URL", &redis.url())]);
    assert_eq!((checked.code, checked.failed()), (Some(1), vec!["eviction"]), "{}", checked.text);
    checked.is("redis", "eviction", "fail", &["allkeys-lru", "noeviction"]);
}

#[tokio::test]
async fn beside_a_running_instance_its_slot_its_lock_and_its_addresses_are_seen() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = place.serve().await;
    serve.reader(&[("table", "items")]).await;
    let (listen, admin) = (serve.addr.to_string(), serve.admin.to_string());
    let mut program =
        forebay(&["check", "--slot", &place.slot, "--publication", &place.slot, "--listen", &listen]);
    program.args(["--admin", &admin, "--storage"]).arg(&place.dir);
    program.env("DATABASE_URL", place.postgres.url(&place.database)).env("FOREBAY_DATABASE_POOL_SIZE", "4");
    let output = program.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        format!("the slot {} is used by a running instance", place.slot),
        format!("the publication {} exists", place.slot),
        format!("a running instance uses the directory (process {})", serve.pid()),
        "a store that this version can read".to_owned(),
        format!("{listen} is in use (--listen)"),
        format!("{admin} is in use (--admin)"),
        "ready, with ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours without a terminal");
}

#[test]
fn a_folder_that_can_not_be_used_is_told() {
    let place = Place::new("");
    let file = folder("file");
    std::fs::write(&file, "no folder").unwrap();
    let url = place.postgres.url(&place.database);
    let checked = check_in(&file, &url, &[]);
    checked.is("storage", "writable", "fail", &["not a directory", "storage.dir"]);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("catalog"), "nonsense").unwrap();
    let checked = check_in(&file, &url, &[]);
    checked.is("storage", "store", "fail", &["catalog", "damaged"]);
    assert_eq!(checked.failed(), ["store"], "it can be written");
    let left = std::fs::read_dir(&file).unwrap().count();
    assert_eq!(left, 1, "the file that was written is gone");
    std::fs::remove_dir_all(&file).unwrap();
}

#[test]
fn settings_that_can_not_be_end_it_with_2() {
    let output =
        forebay(&["check", "--slot", "My-Slot"]).env("DATABASE_URL", "postgres://me@h/db").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("database.slot"));
}
