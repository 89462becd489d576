//! `forebay status`, of real instances.

use std::process::Output;

use serde_json::Value;

use crate::gate::{Gate, forebay};
use crate::serve::support::Place;

fn status(admin: &str, args: &[&str]) -> Output {
    forebay(&["status", "--url", &format!("http://{admin}")]).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn a_server_tells_its_phase_its_conditions_and_its_shapes() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = place.serve().await;
    serve.reader(&[("table", "items")]).await;
    let admin = serve.admin.to_string();
    let output = status(&admin, &[]);
    let text = said(&output);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        format!("forebay serve at {}", serve.addr),
        "state      ready".into(),
        "phase      running, streaming for ".into(),
        "yes pg_lock_acquired".into(),
        "yes shape_log_collector_ready".into(),
        "pools      metadata ready, snapshots ready".into(),
        "of 10,000 streams, healthy".into(),
        "shapes     1, ".into(),
        "this instance writes".into(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours, and once, without a terminal");
    let json: Value = serde_json::from_str(&said(&status(&admin, &["--json"]))).unwrap();
    assert_eq!(json["database"]["phase"], "running");
    let output = status(&serve.addr.to_string(), &["--once"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains("--url"), "{complaint}");
}

#[tokio::test]
async fn a_gate_has_a_state_too() {
    let gate = Gate::start("http://127.0.0.1:1", &[]);
    let text = said(&status(&gate.admin.to_string(), &["--once"]));
    for part in [
        format!("forebay gate at {}", gate.addr),
        "upstream   http://127.0.0.1:1".into(),
        "0 of 10,000 streams".into(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn without_an_instance_it_says_what_to_look_at() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = status(&nobody, &[]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains(&nobody), "{complaint}");
    assert!(complaint.contains("is it running"), "{complaint}");
}
