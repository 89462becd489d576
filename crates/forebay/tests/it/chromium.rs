//! Headless Chromium, controlled with the DevTools protocol over a pipe.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::wire::{DEADLINE, until};

/// Browser with one page; ended when dropped.
pub(crate) struct Chromium {
    child: Child,
    profile: PathBuf,
    commands: Mutex<ChildStdin>,
    inbox: Arc<DevToolsInbox>,
    session: String,
    next: AtomicU64,
}

/// Messages received from the browser.
#[derive(Default)]
struct DevToolsInbox {
    state: Mutex<State>,
    updated: Condvar,
}

#[derive(Default)]
struct State {
    /// Responses by the id of their command.
    responses: HashMap<u64, Value>,
    /// Events, in order of arrival.
    events: Vec<Value>,
}

impl Chromium {
    /// Opens a page. `name` must be unique among the browsers of one test process.
    pub(crate) fn open(url: &str, name: &str) -> Chromium {
        let browser = Chromium::blank(name);
        browser.go(url);
        browser
    }

    /// Starts a browser with an empty page.
    pub(crate) fn blank(name: &str) -> Chromium {
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let mut command = Command::new("sh");
        command
            // Chromium reads commands from descriptor 3 and writes responses to descriptor 4.
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", "chromium"])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--disable-extensions", "--no-default-browser-check"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("--remote-debugging-pipe")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().expect("chromium is installed (Debian: chromium)");
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let inbox = Arc::new(DevToolsInbox::default());
        let receiving_inbox = Arc::clone(&inbox);
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let message: Value = serde_json::from_slice(&message).unwrap();
                let mut state = receiving_inbox.state.lock();
                match message["id"].as_u64() {
                    Some(id) => drop(state.responses.insert(id, message)),
                    None => state.events.push(message),
                }
                receiving_inbox.updated.notify_all();
            }
        });
        let (commands, next) = (Mutex::new(commands), AtomicU64::new(1));
        let mut browser = Chromium { child, profile, commands, inbox, session: String::new(), next };
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        // As on a phone; screenshots show no scrollbars.
        browser.command("Emulation.setScrollbarsHidden", json!({"hidden": true}));
        browser
    }

    /// Navigates to a URL, without waiting until it is loaded.
    pub(crate) fn go(&self, url: &str) {
        self.command("Page.navigate", json!({"url": url}));
    }

    /// Sends a command of the DevTools protocol and returns its result.
    #[track_caller]
    pub(crate) fn command(&self, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        let mut line = serde_json::to_vec(&command).unwrap();
        line.push(0);
        self.commands.lock().write_all(&line).expect("the browser runs");
        let started = Instant::now();
        let mut state = self.inbox.state.lock();
        loop {
            if let Some(mut response) = state.responses.remove(&id) {
                assert!(response.get("error").is_none(), "{method}: {response}");
                return response["result"].take();
            }
            assert!(started.elapsed() < DEADLINE, "no response to {method}");
            self.inbox.updated.wait_for(&mut state, DEADLINE);
        }
    }

    /// Evaluates a script and returns its value as JSON. Awaits a promise.
    #[track_caller]
    pub(crate) fn evaluate(&self, script: &str) -> Value {
        let params = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let mut response = self.command("Runtime.evaluate", params);
        assert!(response.get("exceptionDetails").is_none(), "{script}: {response}");
        response["result"]["value"].take()
    }

    /// Returns the text of the first element that matches.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let selector = serde_json::to_string(selector).unwrap();
        let text = self.evaluate(&format!("document.querySelector({selector})?.innerText ?? ''"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until a script returns true. A script that throws counts as false.
    pub(crate) async fn wait_until(&self, script: &str) {
        let guarded = format!("(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()");
        until(script, async || self.evaluate(&guarded) == true).await;
    }

    /// Presses and releases a key.
    pub(crate) fn press(&self, key: &str) {
        let code = if key == "Tab" { 9 } else { 0 };
        for kind in ["rawKeyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.command("Input.dispatchKeyEvent", params);
        }
    }

    /// Returns the events received for a method.
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        let state = self.inbox.state.lock();
        state.events.iter().filter(|event| event["method"] == method).cloned().collect()
    }

    /// Returns exceptions, console errors and log entries of level `error`, failed requests
    /// included.
    pub(crate) fn console_errors(&self) -> Vec<String> {
        let mut all = self.events("Runtime.exceptionThrown");
        let called = self.events("Runtime.consoleAPICalled");
        all.extend(called.into_iter().filter(|event| event["params"]["type"] == "error"));
        let logged = self.events("Log.entryAdded");
        all.extend(logged.into_iter().filter(|event| event["params"]["entry"]["level"] == "error"));
        all.iter().map(ToString::to_string).collect()
    }

    /// Returns a PNG of the whole page.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let mut clip = self.command("Page.getLayoutMetrics", json!({}))["cssContentSize"].take();
        clip["scale"] = 1.into();
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let screenshot = self.command("Page.captureScreenshot", params);
        STANDARD.decode(screenshot["data"].as_str().unwrap()).unwrap()
    }

    /// Returns the URLs of all requests, except `data:` URLs.
    pub(crate) fn requested_urls(&self) -> Vec<String> {
        let requests = self.events("Network.requestWillBeSent");
        let urls =
            requests.iter().map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned());
        urls.filter(|url| !url.starts_with("data:")).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Its child processes belong to its process group.
        let group = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
