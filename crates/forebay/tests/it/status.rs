//! `forebay status` of running instances.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;

use forebay_sandbox::Redis;
use serde_json::Value;

use crate::forebay_process::{ForebayProcess, forebay};
use crate::serve::support::ServeFixture;

fn status(admin: &str, args: &[&str]) -> Output {
    forebay(&["status", "--url", &format!("http://{admin}")]).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn status_of_serve_shows_phase_conditions_and_shapes() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = fixture.serve().await;
    serve.reader(&[("table", "items")]).await;
    let admin = serve.admin.to_string();
    let output = status(&admin, &[]);
    let text = stdout(&output);
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
    assert!(!text.contains('\x1b'), "colours without a terminal");
    let json: Value = serde_json::from_str(&stdout(&status(&admin, &["--json"]))).unwrap();
    assert_eq!(json["database"]["phase"], "running");
    let output = status(&serve.addr.to_string(), &["--once"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("--url"), "{stderr}");
}

#[tokio::test]
async fn status_of_a_gate_shows_upstream_and_streams() {
    let gate = ForebayProcess::start_gate("http://127.0.0.1:1", &[]);
    let text = stdout(&status(&gate.admin.to_string(), &["--once"]));
    for part in [
        format!("forebay gate at {}", gate.addr),
        "upstream   http://127.0.0.1:1".into(),
        "0 of 10,000 streams".into(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn without_an_instance_status_reports_the_address_it_tried() {
    let unused_address = format!("127.0.0.1:{}", forebay_sandbox::free_port());
    let output = status(&unused_address, &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains(&unused_address), "{stderr}");
    assert!(stderr.contains("is the instance running"), "{stderr}");
}

#[test]
fn status_takes_the_admin_secret_from_a_variable_and_never_prints_it() {
    let instance = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", instance.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in instance.incoming().map_while(Result::ok) {
            respond(socket);
        }
    });
    let run = |secret: &str| {
        let mut program = forebay(&["status", "--once", "--url", &url]);
        program.env("FOREBAY_ADMIN_SECRET", secret).output().unwrap()
    };
    assert!(stdout(&run("s3cr3t")).starts_with("forebay serve at here"));
    for wrong in ["", "wr0ng"] {
        let output = run(wrong);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("FOREBAY_ADMIN_SECRET") && !stderr.contains("wr0ng"), "{stderr}");
    }
}

/// Responds like an instance with an admin secret.
fn respond(mut socket: TcpStream) {
    let mut lines = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let is_authorized = head.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer s3cr3t"));
    let (status, body) = match is_authorized {
        true => ("200 OK", r#"{"command":"serve","listen":"here"}"#),
        false => ("401 Unauthorized", "{}"),
    };
    let length = body.len();
    let _ =
        write!(socket, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}

#[test]
fn over_https_only_certificates_of_the_system_store_are_accepted() {
    // A Redis with TLS: its reply isn't HTTP, so a client that fails with it has accepted the
    // certificate.
    let server = Redis::builder().tls().start().unwrap();
    let url = format!("https://localhost:{}", server.tls_port());
    let run_with_ca = |ca: &Path| {
        let output = forebay(&["status", "--once", "--url", &url]).env("SSL_CERT_FILE", ca).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let trusted = run_with_ca(server.ca_path());
    assert!(trusted.contains("lost"), "{trusted}");
    let other = Redis::builder().tls().start().unwrap();
    let untrusted = run_with_ca(other.ca_path());
    assert!(untrusted.contains("can't connect") && untrusted.contains("certificate"), "{untrusted}");
}
