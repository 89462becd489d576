//! A browser's EventSource through the gate, in headless Chromium.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use crate::gate::Gate;
use crate::python::App;

/// A browser on one page, until dropped.
struct Browser {
    child: Child,
    profile: PathBuf,
}

impl Browser {
    fn open(url: &str, name: &str) -> Browser {
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let mut command = Command::new("chromium");
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--disable-extensions", "--no-default-browser-check"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("--remote-debugging-port=0") // stays until it is ended, rather than leave after loading
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let child = command.spawn().expect("chromium is installed (Debian: chromium)");
        Browser { child, profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The processes that it started are of its group.
        let group = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

#[tokio::test]
async fn an_event_source_gets_each_event_as_it_is_sent_and_closing_it_reaches_the_app() {
    let app = App::start();
    let gate = Gate::start(&app.url(), &["--stream-route", "GET /live/*", "--total", "5"]);

    // Each event is acknowledged by a fetch before the app sends the next.
    let browser = Browser::open(&format!("http://{}/page/whole", gate.addr), "whole");
    let state = app.wait_for("whole", "the browser's report", |state| !state["report"].is_null()).await;
    assert_eq!((&state["report"], &state["end"]), (&json!([1, 2, 3, 4, 5]), &"complete".into()), "{state}");
    drop(browser);

    let browser = Browser::open(&format!("http://{}/page/closed?leave=3", gate.addr), "closed");
    let state = app.wait_for("closed", "the end", |state| !state["end"].is_null()).await;
    assert_eq!((&state["end"], &state["sent"]), (&"cancelled".into(), &3.into()), "{state}");
    gate.empty().await; // while the browser is still there
    let state = app.wait_for("closed", "the browser's report", |state| !state["report"].is_null()).await;
    assert_eq!(state["report"], json!([1, 2, 3]));
    drop(browser);
    assert_eq!(gate.status().await["http"]["lean_begun"], 2);
}
