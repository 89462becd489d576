//! `forebay config`: prints every setting with its source, and no secrets.

use std::process::Output;

use serde_json::json;

use crate::forebay_process::forebay;
use crate::serve::support::ServeFixture;
use crate::startup::write_temp_file;

fn config(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = forebay(&["config"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ELECTRIC_")) {
        program.env_remove(name);
    }
    program.args(args).env_remove("DATABASE_URL").envs(variables.iter().copied());
    program.output().unwrap()
}

/// Fails unless a line has this setting and this source.
#[track_caller]
fn assert_setting(text: &str, setting: &str, source: &str) {
    let found = text.lines().any(|line| {
        line.split_once(" # ")
            .is_some_and(|(key, found_source)| key.trim() == setting && found_source == source)
    });
    assert!(found, "no {setting:?} from {source:?} in:\n{text}");
}

#[test]
fn every_value_is_printed_with_its_source_and_secrets_are_hidden() {
    let path = write_temp_file(
        "effective.toml",
        "[serve]\nlong_poll_ms = 7\n[redis]\nurl = \"redis://:s3cr3t@cache:7\"\n",
    );
    let file = path.to_str().unwrap();
    let variables = [
        ("DATABASE_URL", "postgres://me:s3cr3t@db.test:5433/shop"),
        ("ELECTRIC_SECRET", "s3cr3t"),
        ("ELECTRIC_STORAGE", "MEMORY"),
        ("FOREBAY_DATABASE_POOL_SIZE", "8"),
    ];
    let output = config(&["--config", file, "--listen", "[::1]:7", "--allow-delete"], &variables);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_setting(&text, "long_poll_ms = 7", &format!("file {file}"));
    assert_setting(&text, "url = \"(hidden): cache:7\"", &format!("file {file}"));
    assert_setting(&text, "url = \"(hidden): me at db.test:5433, database shop\"", "variable DATABASE_URL");
    assert_setting(&text, "secret = \"(hidden)\"", "variable ELECTRIC_SECRET");
    assert_setting(&text, "pool_size = 8", "variable FOREBAY_DATABASE_POOL_SIZE");
    assert_setting(&text, "listen = \"[::1]:7\"", "flag --listen");
    assert_setting(&text, "allow_delete = true", "flag --allow-delete");
    assert_setting(&text, "slot = \"forebay\"", "default");
    assert_setting(&text, "snapshots = 6", "default");
    assert_setting(&text, "class_percent = { anonymous = 100 }", "default");
    assert_setting(&text, "# password_file", "not set");
    assert!(text.contains("# ELECTRIC_STORAGE has no effect: "), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn invalid_settings_are_printed_and_reported() {
    let output = config(&["serve"], &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("database.url is missing"), "{stderr}");
    assert_setting(&String::from_utf8(output.stdout).unwrap(), "# url", "not set");
    let output = config(&[], &[("FOREBAY_SERVE_LISEN", "a")]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && stderr.contains("`FOREBAY_SERVE_LISTEN`"), "{stderr}");
}

#[test]
fn the_gate_has_its_own_settings() {
    let output = config(&["gate", "--upstream", "http://127.0.0.1:8000"], &[("ELECTRIC_PORT", "1")]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_setting(&text, "upstream = \"http://127.0.0.1:8000\"", "flag --upstream");
    assert_setting(&text, "stream_routes = []", "default");
    assert!(!text.contains("[database]") && !text.contains("ELECTRIC"), "{text}");
}

#[tokio::test]
async fn electric_variables_are_logged_at_start_as_mapped_or_without_effect() {
    let fixture = ServeFixture::new("");
    let serve = fixture.spawn(&[("ELECTRIC_SECRET", "s3cr3t"), ("ELECTRIC_HNY_API_KEY", "s3cr3t")]);
    let understood = serve.wait_for_log("environment variable mapped");
    assert_eq!(
        (&understood["variable"], &understood["settings"]),
        (&json!("ELECTRIC_SECRET"), &json!("serve.secret"))
    );
    let without = serve.wait_for_log("environment variable ignored");
    assert_eq!((&without["variable"], &without["level"]), (&json!("ELECTRIC_HNY_API_KEY"), &json!("WARN")));
    assert_eq!(
        serve.get(&[("table", "x"), ("offset", "-1")]).await.head.status,
        401,
        "the mapped secret is required"
    );
    assert!(!serve.log().contains("s3cr3t"));
}
