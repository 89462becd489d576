//! A headless Chromium, driven over its pipe: pages as a person has them, and what they did.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::wire::{DEADLINE, until};

/// A browser on one page, until dropped.
pub(crate) struct Chromium {
    child: Child,
    profile: PathBuf,
    orders: Mutex<ChildStdin>,
    heard: Arc<Heard>,
    session: String,
    next: AtomicU64,
}

/// What the browser has told.
#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    grew: Condvar,
}

#[derive(Default)]
struct State {
    answers: HashMap<u64, Value>,
    events: Vec<Value>,
}

impl Chromium {
    /// Opens a page; `name` tells browsers of one test process apart.
    pub(crate) fn open(url: &str, name: &str) -> Chromium {
        let browser = Chromium::blank(name);
        browser.go(url);
        browser
    }

    /// A browser on an empty page.
    pub(crate) fn blank(name: &str) -> Chromium {
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let mut command = Command::new("sh");
        command
            // Chromium takes its orders from the descriptor 3, and answers on 4.
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
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let heard = Arc::new(Heard::default());
        let hearing = Arc::clone(&heard);
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let message: Value = serde_json::from_slice(&message).unwrap();
                let mut state = hearing.state.lock().unwrap();
                match message["id"].as_u64() {
                    Some(id) => drop(state.answers.insert(id, message)),
                    None => state.events.push(message),
                }
                hearing.grew.notify_all();
            }
        });
        let (orders, next) = (Mutex::new(orders), AtomicU64::new(1));
        let mut browser = Chromium { child, profile, orders, heard, session: String::new(), next };
        let target = browser.order("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.order("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.order(&format!("{domain}.enable"), json!({}));
        }
        // As on a phone, and as pictures want it.
        browser.order("Emulation.setScrollbarsHidden", json!({"hidden": true}));
        browser
    }

    pub(crate) fn go(&self, url: &str) {
        self.order("Page.navigate", json!({"url": url}));
    }

    /// Any order of the DevTools protocol, and its answer.
    #[track_caller]
    pub(crate) fn order(&self, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut order = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        let mut line = serde_json::to_vec(&order).unwrap();
        line.push(0);
        self.orders.lock().unwrap().write_all(&line).expect("the browser is there");
        let begun = Instant::now();
        let mut state = self.heard.state.lock().unwrap();
        loop {
            if let Some(mut answer) = state.answers.remove(&id) {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            assert!(begun.elapsed() < DEADLINE, "{method} isn't answered");
            (state, _) = self.heard.grew.wait_timeout(state, DEADLINE).unwrap();
        }
    }

    /// What a script comes to, as JSON; a promise is waited for.
    #[track_caller]
    pub(crate) fn ask(&self, script: &str) -> Value {
        let params = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.order("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].take()
    }

    /// The text of the first element that fits.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let selector = serde_json::to_string(selector).unwrap();
        let text = self.ask(&format!("document.querySelector({selector})?.innerText ?? ''"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until a script comes to true; what it looks for may not be there yet.
    pub(crate) async fn until(&self, script: &str) {
        let tried = format!("(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()");
        until(script, async || self.ask(&tried) == true).await;
    }

    pub(crate) fn press(&self, key: &str) {
        let code = if key == "Tab" { 9 } else { 0 };
        for kind in ["rawKeyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.order("Input.dispatchKeyEvent", params);
        }
    }

    /// What was told of this kind.
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        let state = self.heard.state.lock().unwrap();
        state.events.iter().filter(|event| event["method"] == method).cloned().collect()
    }

    /// Everything that a console shows in red, requests that failed included.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = self.events("Runtime.exceptionThrown");
        let called = self.events("Runtime.consoleAPICalled");
        all.extend(called.into_iter().filter(|event| event["params"]["type"] == "error"));
        let logged = self.events("Log.entryAdded");
        all.extend(logged.into_iter().filter(|event| event["params"]["entry"]["level"] == "error"));
        all.iter().map(ToString::to_string).collect()
    }

    /// All of the page as it looks now, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let mut clip = self.order("Page.getLayoutMetrics", json!({}))["cssContentSize"].take();
        clip["scale"] = 1.into();
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.order("Page.captureScreenshot", params);
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// The addresses of all requests that were made, but for data inside of the page.
    pub(crate) fn requested(&self) -> Vec<String> {
        let requests = self.events("Network.requestWillBeSent");
        let urls =
            requests.iter().map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned());
        urls.filter(|url| !url.starts_with("data:")).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The processes that it started are of its group.
        let group = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
