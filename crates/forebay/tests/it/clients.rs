//! The published npm clients, unmodified, against the program: the suites of `clients/test`, each on a Postgres of its own.

use std::path::Path;
use std::process::Command;

use forebay_sandbox::{Postgres, free_port};

/// How many ports a suite may take.
const PORTS: usize = 8;

fn passes(suite: &str) {
    passes_on(suite, Postgres::shared(), &[]);
}

/// On databases that order texts by the rules of a language.
fn passes_in_english(suite: &str, version: u32) {
    passes_on(suite, Postgres::shared_version(version), &[("FOREBAY_TEST_ICU_LOCALE", "en-US")]);
}

fn passes_on(suite: &str, postgres: &Postgres, more: &[(&str, &str)]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    assert!(clients.join("node_modules").is_dir(), "the clients aren't installed: run script/bootstrap");
    let output = Command::new("node")
        .arg("--test")
        .arg(format!("test/{suite}.test.mjs"))
        .current_dir(&clients)
        .env("FOREBAY_BIN", env!("CARGO_BIN_EXE_forebay"))
        .env("FOREBAY_TEST_DATABASE_URL", postgres.url("postgres"))
        .env("FOREBAY_TEST_PORTS", [(); PORTS].map(|()| free_port().to_string()).join(","))
        .envs(more.iter().copied())
        .output()
        .unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains("# pass ") && !said.contains("# pass 0\n"), "nothing was tested:\n{said}");
}

#[test]
fn streams_wait_and_come_again_when_they_are_refused() {
    passes("backoff");
}

#[test]
fn streams_that_end_while_clients_catch_up_lose_nothing() {
    passes("catchup");
}

#[test]
fn clients_of_all_kinds_see_what_the_table_has() {
    passes("convergence");
}

#[test]
fn react_shows_a_table_in_a_browser() {
    passes("react");
}

#[test]
fn clients_start_over_when_they_must() {
    passes("refetch");
}

#[test]
fn clients_go_on_where_they_were_after_a_restart() {
    passes("restart");
}

#[test]
fn shapes_are_followed_by_long_polls() {
    passes("shape");
}

#[test]
fn shapes_are_followed_by_server_sent_events() {
    passes("sse");
}

#[test]
fn subsets_are_read_beside_the_log() {
    passes("subsets");
}

#[test]
fn subsets_are_read_beside_the_log_where_texts_are_in_english() {
    passes_in_english("subsets", 18);
}

#[test]
fn a_tanstack_collection_follows_a_table_where_texts_are_in_english() {
    passes_in_english("tanstack", 15);
}

#[test]
fn a_tanstack_collection_follows_a_table() {
    passes("tanstack");
}

#[test]
fn every_type_of_postgres_survives_the_trip() {
    passes("types");
}

#[test]
fn values_are_parsed_as_clients_ask() {
    passes("values");
}
