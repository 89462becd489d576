//! The unmodified published npm clients against the program: runs each suite of `clients/test` with
//! its own database.

use std::path::Path;
use std::process::Command;

use forebay_sandbox::{Postgres, free_port};

/// Number of ports reserved for a suite.
const PORTS: usize = 8;

fn run_suite(suite: &str) {
    run_suite_on(suite, Postgres::shared(), &[]);
}

/// Runs a suite on databases that sort text by the ICU locale `en-US`.
fn run_suite_in_english(suite: &str, version: u32) {
    run_suite_on(suite, Postgres::shared_version(version), &[("FOREBAY_TEST_ICU_LOCALE", "en-US")]);
}

fn run_suite_on(suite: &str, postgres: &Postgres, environment: &[(&str, &str)]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    assert!(clients.join("node_modules").is_dir(), "the npm packages aren't installed: run script/bootstrap");
    let output = Command::new("node")
        .arg("--test")
        .arg(format!("test/{suite}.test.mjs"))
        .current_dir(&clients)
        .env("FOREBAY_BIN", env!("CARGO_BIN_EXE_forebay"))
        .env("FOREBAY_TEST_DATABASE_URL", postgres.url("postgres"))
        .env("FOREBAY_TEST_PORTS", [(); PORTS].map(|()| free_port().to_string()).join(","))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("# pass ") && !stdout.contains("# pass 0\n"), "no test ran:\n{stdout}");
}

#[test]
fn refused_streams_wait_and_retry() {
    run_suite("backoff");
}

#[test]
fn streams_that_end_during_catch_up_lose_nothing() {
    run_suite("catchup");
}

#[test]
fn all_kinds_of_clients_converge_to_the_table() {
    run_suite("convergence");
}

#[test]
fn react_shows_a_table_in_a_browser() {
    run_suite("react");
}

#[test]
fn clients_refetch_after_a_409() {
    run_suite("refetch");
}

#[test]
fn clients_resume_after_a_restart() {
    run_suite("restart");
}

#[test]
fn shapes_are_followed_by_long_polls() {
    run_suite("shape");
}

#[test]
fn shapes_are_followed_by_server_sent_events() {
    run_suite("sse");
}

#[test]
fn subsets_are_read_alongside_the_log() {
    run_suite("subsets");
}

#[test]
fn subsets_are_read_alongside_the_log_with_an_english_collation() {
    run_suite_in_english("subsets", 18);
}

#[test]
fn a_tanstack_collection_follows_a_table_with_an_english_collation() {
    run_suite_in_english("tanstack", 15);
}

#[test]
fn a_tanstack_collection_follows_a_table() {
    run_suite("tanstack");
}

#[test]
fn values_of_every_postgres_type_arrive_unchanged() {
    run_suite("types");
}

#[test]
fn values_are_parsed_by_the_schema_and_the_clients_parsers() {
    run_suite("values");
}
