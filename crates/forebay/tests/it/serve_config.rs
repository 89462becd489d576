//! The settings of `forebay serve`, as the program takes them.

use std::process::Output;

use crate::gate::forebay;
use crate::startup::write;

const URL: &str = "postgres://me:s3cr3t@192.0.2.1/db";
/// An address that no machine has: a program that comes so far as to complain about it has taken everything else.
const NOWHERE: &str = "192.0.2.1:1";

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = forebay(&["serve"]);
    program.args(args).env_remove("DATABASE_URL").envs(variables.iter().copied());
    program.output().unwrap()
}

#[track_caller]
fn complains(args: &[&str], variables: &[(&str, &str)], code: i32, parts: &[&str]) {
    let output = run(args, variables);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    assert!(!said.contains("s3cr3t"), "{said}");
}

#[test]
fn help_is_enough_to_start() {
    let text = String::from_utf8(run(&["--help"], &[]).stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "DATABASE_URL=postgres://",
        "--database-url",
        "Others on this machine see flags",
        "/v1/shape?table=",
        "FOREBAY_SERVE_SECRET",
        "wal_level=logical",
        "pg_drop_replication_slot",
        "--storage",
        "--slot",
        "--publication",
        "--insecure",
        "--insecure-admin",
        "--allow-delete",
        "--redis",
        "--total",
        "--per-user",
        "--log",
        "--log-format",
        "--config",
        "--example-config",
        "127.0.0.1:3000",
        "127.0.0.1:3001",
        "/readyz",
        "SIGTERM",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn without_a_database_it_says_what_to_do() {
    complains(&[], &[], 2, &["database.url is missing", "DATABASE_URL=postgres://"]);
}

#[test]
fn the_database_s_variable_is_all_that_it_needs() {
    let elsewhere = ["--listen", NOWHERE, "--insecure", "--admin", "off"];
    complains(&elsewhere, &[("DATABASE_URL", URL)], 1, &[NOWHERE]);
    complains(&elsewhere, &[("FOREBAY_DATABASE_URL", URL)], 1, &[NOWHERE]);
}

#[test]
fn the_example_that_it_prints_is_a_file_that_it_takes() {
    let example = String::from_utf8(run(&["--example-config"], &[]).stdout).unwrap();
    let path = write("serve.example.toml", &example);
    let args = ["--config", path.to_str().unwrap(), "--listen", NOWHERE, "--insecure", "--admin", "off"];
    complains(&args, &[], 1, &[NOWHERE]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn beyond_this_machine_it_wants_a_secret() {
    let (url, listen) = (("DATABASE_URL", URL), ["--listen", "0.0.0.0:3000"]);
    let parts = ["serve.listen", "0.0.0.0:3000", "from --listen", "FOREBAY_SERVE_SECRET", "--insecure"];
    complains(&listen, &[url], 2, &parts);
    let secret = [url, ("FOREBAY_SERVE_SECRET", "s3cr3t")];
    complains(&["--listen", NOWHERE, "--admin", "off"], &secret, 1, &[NOWHERE]);
    complains(&listen, &[url, ("FOREBAY_SERVE_SECRET", "")], 2, &["serve.secret", "is empty"]);
}

#[test]
fn bad_settings_are_named_with_what_to_write() {
    let url = ("DATABASE_URL", URL);
    complains(
        &[],
        &[("DATABASE_URL", "postgres://me:s3cr3t@h:x/db")],
        2,
        &["database.url", "from DATABASE_URL"],
    );
    complains(&["--slot", "My-Slot"], &[url], 2, &["database.slot", "from --slot", "a-z, 0-9"]);
    complains(&["--per-user", "0"], &[url], 2, &["admission.per_user", "at least 1"]);
    complains(&["--admin", "0.0.0.0:1"], &[url], 2, &["--insecure-admin"]);
    complains(&["--redis", "redis://:s3cr3t@h:x"], &[url], 2, &["redis.url", "from --redis"]);
    complains(&["--databse-url", URL], &[], 2, &["--database-url"]);
    complains(&[], &[url, ("FOREBAY_SERVE_LISEN", "a")], 2, &["`FOREBAY_SERVE_LISTEN`"]);
    let path = write("serve-typo.toml", "[storage]\ndirr = \"a\"\n");
    let file = path.to_str().unwrap();
    complains(&["--config", file], &[url], 2, &[file, "line 2", "did you mean `dir`?"]);
    std::fs::remove_file(path).unwrap();
}
