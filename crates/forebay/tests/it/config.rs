//! `forebay config`: every setting, where it came from, and nothing that is secret.

use std::process::Output;

use serde_json::json;

use crate::gate::forebay;
use crate::serve::support::ServeFixture;
use crate::startup::write;

fn config(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = forebay(&["config"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ELECTRIC_")) {
        program.env_remove(name);
    }
    program.args(args).env_remove("DATABASE_URL").envs(variables.iter().copied());
    program.output().unwrap()
}

#[track_caller]
fn says(text: &str, left: &str, right: &str) {
    let found = text.lines().any(|line| {
        line.split_once(" # ").is_some_and(|(key, origin)| key.trim() == left && origin == right)
    });
    assert!(found, "no {left:?} from {right:?} in:\n{text}");
}

#[test]
fn every_value_says_where_it_came_from_and_secrets_stay_hidden() {
    let path =
        write("effective.toml", "[serve]\nlong_poll_ms = 7\n[redis]\nurl = \"redis://:s3cr3t@cache:7\"\n");
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
    says(&text, "long_poll_ms = 7", &format!("file {file}"));
    says(&text, "url = \"(hidden): cache:7\"", &format!("file {file}"));
    says(&text, "url = \"(hidden): me at db.test:5433, database shop\"", "variable DATABASE_URL");
    says(&text, "secret = \"(hidden)\"", "variable ELECTRIC_SECRET");
    says(&text, "pool_size = 8", "variable FOREBAY_DATABASE_POOL_SIZE");
    says(&text, "listen = \"[::1]:7\"", "flag --listen");
    says(&text, "allow_delete = true", "flag --allow-delete");
    says(&text, "slot = \"forebay\"", "default");
    says(&text, "snapshots = 6", "default");
    says(&text, "class_percent = { anonymous = 100 }", "default");
    says(&text, "# password_file", "not set");
    assert!(text.contains("# ELECTRIC_STORAGE has no effect: "), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn settings_that_can_not_be_are_shown_and_complained_about() {
    let output = config(&["serve"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("database.url is missing"), "{said}");
    says(&String::from_utf8(output.stdout).unwrap(), "# url", "not set");
    let output = config(&[], &[("FOREBAY_SERVE_LISEN", "a")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("`FOREBAY_SERVE_LISTEN`"), "{said}");
}

#[test]
fn the_gate_has_settings_of_its_own() {
    let output = config(&["gate", "--upstream", "http://127.0.0.1:8000"], &[("ELECTRIC_PORT", "1")]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    says(&text, "upstream = \"http://127.0.0.1:8000\"", "flag --upstream");
    says(&text, "stream_routes = []", "default");
    assert!(!text.contains("[database]") && !text.contains("ELECTRIC"), "{text}");
}

#[tokio::test]
async fn a_server_says_at_its_start_which_variables_of_electric_it_understands() {
    let place = ServeFixture::new("");
    let serve = place.spawn(&[("ELECTRIC_SECRET", "s3cr3t"), ("ELECTRIC_HNY_API_KEY", "s3cr3t")]);
    let understood = serve.wait_for_log("a variable of another program is understood");
    assert_eq!(
        (&understood["variable"], &understood["settings"]),
        (&json!("ELECTRIC_SECRET"), &json!("serve.secret"))
    );
    let without = serve.wait_for_log("a variable of another program has no effect");
    assert_eq!((&without["variable"], &without["level"]), (&json!("ELECTRIC_HNY_API_KEY"), &json!("WARN")));
    assert_eq!(serve.get(&[("table", "x"), ("offset", "-1")]).await.head.status, 401, "it holds");
    assert!(!serve.log().contains("s3cr3t"));
}
