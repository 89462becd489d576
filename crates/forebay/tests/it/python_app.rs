//! Test programs in Python.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forebay_testkit::python;
use serde_json::Value;

use crate::wire::{HttpConnection, until};

/// Returns the path of a script of `tests/app`.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/app").join(name)
}

/// A running script of `tests/app`; killed when dropped.
#[derive(Debug)]
pub(crate) struct PythonApp {
    child: Child,
    addr: SocketAddr,
}

impl PythonApp {
    /// Starts the FastAPI app on uvicorn.
    pub(crate) fn start() -> PythonApp {
        PythonApp::run("app.py")
    }

    /// Starts a script that prints `PORT` and its port once it listens.
    pub(crate) fn run(name: &str) -> PythonApp {
        let mut child = Command::new(python())
            .arg("-B") // leaves no compiled files beside the sources
            .arg(script(name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("PORT ").unwrap_or_else(|| panic!("the app printed {line:?}"));
        PythonApp { addr: SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())), child }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the app's state of a run. Connects directly, not through the gate.
    pub(crate) async fn state(&self, name: &str) -> Value {
        HttpConnection::fetch(self.addr, "GET", &format!("/state/{name}"), &[], "").await.json()
    }

    /// Waits until the state of a run satisfies `is_so`, and returns it.
    pub(crate) async fn wait_for(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{what} of {name}"), async || is_so(&self.state(name).await)).await;
        self.state(name).await
    }
}

impl Drop for PythonApp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
