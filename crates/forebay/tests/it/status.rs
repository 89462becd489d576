//! `forebay status`, of real instances.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;

use forebay_sandbox::Redis;
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
    let nobody = format!("127.0.0.1:{}", forebay_sandbox::free_port());
    let output = status(&nobody, &[]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains(&nobody), "{complaint}");
    assert!(complaint.contains("is the instance running"), "{complaint}");
}

#[test]
fn the_admin_address_s_secret_comes_from_a_variable_and_goes_to_nobody_else() {
    let instance = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", instance.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in instance.incoming().map_while(Result::ok) {
            answer(socket);
        }
    });
    let ask = |secret: &str| {
        let mut program = forebay(&["status", "--once", "--url", &url]);
        program.env("FOREBAY_ADMIN_SECRET", secret).output().unwrap()
    };
    assert!(said(&ask("s3cr3t")).starts_with("forebay serve at here"));
    for wrong in ["", "wr0ng"] {
        let output = ask(wrong);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains("FOREBAY_ADMIN_SECRET") && !complaint.contains("wr0ng"), "{complaint}");
    }
}

/// As an instance with a secret does.
fn answer(mut socket: TcpStream) {
    let mut lines = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let known = head.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer s3cr3t"));
    let (status, body) = match known {
        true => ("200 OK", r#"{"command":"serve","listen":"here"}"#),
        false => ("401 Unauthorized", "{}"),
    };
    let length = body.len();
    let _ =
        write!(socket, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}

#[test]
fn over_https_only_a_server_that_the_system_trusts_is_asked() {
    // Its TLS is real, and what it says is no HTTP: a client that gets so far has trusted it.
    let server = Redis::builder().tls().start().unwrap();
    let url = format!("https://localhost:{}", server.tls_port());
    let complaint = |ca: &Path| {
        let output = forebay(&["status", "--once", "--url", &url]).env("SSL_CERT_FILE", ca).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let trusted = complaint(server.ca_path());
    assert!(trusted.contains("lost"), "{trusted}");
    let other = Redis::builder().tls().start().unwrap();
    let stranger = complaint(other.ca_path());
    assert!(stranger.contains("can't connect") && stranger.contains("certificate"), "{stranger}");
}
