//! The FastAPI app and whatever else runs in Python.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forebay_testkit::python;
use serde_json::Value;

use crate::wire::{Client, until};

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/app").join(name)
}

/// The app, on uvicorn.
#[derive(Debug)]
pub(crate) struct App {
    child: Child,
    addr: SocketAddr,
}

impl App {
    pub(crate) fn start() -> App {
        App::run("app.py")
    }

    /// Any of the scripts that listen and say so by their port.
    pub(crate) fn run(name: &str) -> App {
        let mut child = Command::new(python())
            .arg("-B") // leaves no compiled files beside the sources
            .arg(script(name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("PORT ").unwrap_or_else(|| panic!("the app says {line:?}"));
        App { addr: SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())), child }
    }

    #[cfg(feature = "otel")]
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What the app knows of a run; asked directly, not through the gate.
    pub(crate) async fn state(&self, name: &str) -> Value {
        Client::ask(self.addr, "GET", &format!("/state/{name}"), &[], "").await.json()
    }

    pub(crate) async fn wait_for(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{what} of {name}"), async || is_so(&self.state(name).await)).await;
        self.state(name).await
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
