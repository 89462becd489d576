//! Settings of `forebay serve`: flags, variables and the file.

use std::process::Output;

use crate::forebay_process::forebay;
use crate::startup::write_temp_file;

const URL: &str = "postgres://me:s3cr3t@192.0.2.1/db";
/// Address that can't be bound. A program that fails with it has accepted all other settings.
const UNBINDABLE: &str = "192.0.2.1:1";

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = forebay(&["serve"]);
    program.args(args).env_remove("DATABASE_URL").envs(variables.iter().copied());
    program.output().unwrap()
}

/// Fails unless the program exits with `code` and prints all `parts`, and no secret.
#[track_caller]
fn assert_fails(args: &[&str], variables: &[(&str, &str)], code: i32, parts: &[&str]) {
    let output = run(args, variables);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
    }
    assert!(!stderr.contains("s3cr3t"), "{stderr}");
}

#[test]
fn the_help_names_everything_needed_to_start() {
    let text = String::from_utf8(run(&["--help"], &[]).stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "DATABASE_URL=postgres://",
        "--database-url",
        "Other users of this machine can see flags",
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
fn a_missing_database_url_is_reported_with_an_example() {
    assert_fails(&[], &[], 2, &["database.url is missing", "DATABASE_URL=postgres://"]);
}

#[test]
fn the_database_url_variable_is_sufficient() {
    let unbindable = ["--listen", UNBINDABLE, "--insecure", "--admin", "off"];
    assert_fails(&unbindable, &[("DATABASE_URL", URL)], 1, &[UNBINDABLE]);
    assert_fails(&unbindable, &[("FOREBAY_DATABASE_URL", URL)], 1, &[UNBINDABLE]);
}

#[test]
fn the_printed_example_config_is_accepted() {
    let example = String::from_utf8(run(&["--example-config"], &[]).stdout).unwrap();
    let path = write_temp_file("serve.example.toml", &example);
    let args = ["--config", path.to_str().unwrap(), "--listen", UNBINDABLE, "--insecure", "--admin", "off"];
    assert_fails(&args, &[], 1, &[UNBINDABLE]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_public_address_requires_a_secret() {
    let (url, listen) = (("DATABASE_URL", URL), ["--listen", "0.0.0.0:3000"]);
    let parts = ["serve.listen", "0.0.0.0:3000", "from --listen", "FOREBAY_SERVE_SECRET", "--insecure"];
    assert_fails(&listen, &[url], 2, &parts);
    let secret = [url, ("FOREBAY_SERVE_SECRET", "s3cr3t")];
    assert_fails(&["--listen", UNBINDABLE, "--admin", "off"], &secret, 1, &[UNBINDABLE]);
    assert_fails(&listen, &[url, ("FOREBAY_SERVE_SECRET", "")], 2, &["serve.secret", "is empty"]);
}

#[test]
fn invalid_settings_are_reported_with_the_expected_form() {
    let url = ("DATABASE_URL", URL);
    assert_fails(
        &[],
        &[("DATABASE_URL", "postgres://me:s3cr3t@h:x/db")],
        2,
        &["database.url", "from DATABASE_URL"],
    );
    assert_fails(&["--slot", "My-Slot"], &[url], 2, &["database.slot", "from --slot", "a-z, 0-9"]);
    assert_fails(&["--per-user", "0"], &[url], 2, &["admission.per_user", "at least 1"]);
    assert_fails(&["--admin", "0.0.0.0:1"], &[url], 2, &["--insecure-admin"]);
    assert_fails(&["--redis", "redis://:s3cr3t@h:x"], &[url], 2, &["redis.url", "from --redis"]);
    assert_fails(&["--databse-url", URL], &[], 2, &["--database-url"]);
    assert_fails(&[], &[url, ("FOREBAY_SERVE_LISEN", "a")], 2, &["`FOREBAY_SERVE_LISTEN`"]);
    let path = write_temp_file("serve-typo.toml", "[storage]\ndirr = \"a\"\n");
    let file = path.to_str().unwrap();
    assert_fails(&["--config", file], &[url], 2, &[file, "line 2", "did you mean `dir`?"]);
    std::fs::remove_file(path).unwrap();
}
