//! `script/bootstrap`, `script/server`, the systemd unit and the Dockerfile.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_sandbox::free_port;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::forebay_process::{PROGRAM, forebay};
use crate::wire::{DEADLINE, HttpConnection};

/// Returns the root of the repository.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text of a file of the repository.
fn file(name: &str) -> String {
    fs::read_to_string(workspace().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Folder with fake `rustc` and `cargo` programs and a built `forebay`; removed when dropped. The
/// fake cargo appends its arguments to the file `cargo_arguments`.
struct FakeToolchain(PathBuf);

impl FakeToolchain {
    fn new(name: &str, rust: &str) -> FakeToolchain {
        let folder = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        // Accessible for other users: Postgres refuses to run as root.
        let _ = fs::remove_dir_all(&folder); // left by a killed process with the same id
        fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
        let toolchain = FakeToolchain(folder);
        toolchain.program("rustc", &format!("echo 'rustc {rust} (of a test)'"));
        toolchain.program("cargo", "echo \"$@\" >> \"$HOME/cargo_arguments\"");
        fs::create_dir_all(toolchain.0.join("target/debug")).unwrap();
        symlink(PROGRAM, toolchain.0.join("target/debug/forebay")).unwrap();
        toolchain
    }

    /// Writes an executable shell script.
    fn program(&self, name: &str, script: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns a command that runs a script of the repository with the fake programs.
    fn script(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(workspace().join("script").join(name));
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
        command.args(args).env("PATH", path).env("HOME", &self.0).env("TMPDIR", &self.0);
        command.env("CARGO_TARGET_DIR", self.0.join("target"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }
}

impl Drop for FakeToolchain {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bootstrap_rejects_an_old_rust() {
    let toolchain = FakeToolchain::new("old-rust", "1.94.1");
    let output = toolchain.script("bootstrap", &["server"]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && output_text.contains("1.94.1") && output_text.contains("rustup update"),
        "{output_text}"
    );
    for new in ["1.95.0", "1.100.0", "1.96.0-nightly"] {
        toolchain.program("rustc", &format!("echo 'rustc {new} (of a test)'"));
        let output = toolchain.script("bootstrap", &["server"]).output().unwrap();
        assert!(output.status.success(), "{new}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn script_server_starts_everything_and_ctrl_c_ends_it() {
    let toolchain = FakeToolchain::new("one-command", "1.95.0");
    let (clients, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let mut command = toolchain.script("server", &["--listen", &clients, "--admin", &admin]);
    let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
    let group = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        lines.push(line);
        if lines.last().unwrap().starts_with("Ctrl-C ") {
            break;
        }
    }
    let text = lines.join("\n");
    for address in [&clients, &admin] {
        assert!(text.contains(&format!("http://{address}")), "{text}");
    }
    let cargo_arguments = fs::read_to_string(toolchain.0.join("cargo_arguments")).unwrap();
    assert_eq!(cargo_arguments.trim(), "build --package forebay --bin forebay");
    let page = HttpConnection::fetch(clients.parse().unwrap(), "GET", "/", &[], "").await;
    assert_eq!(page.head.status, 200);
    // Like a terminal, which signals the whole process group.
    kill_process_group(group, Signal::INT).unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < DEADLINE, "script/server still runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(status.success(), "{status:?}");
    let left: BTreeSet<_> =
        fs::read_dir(&toolchain.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        left,
        ["cargo_arguments", "cargo", "rustc", "target"].map(Into::into).into(),
        "no other file is left"
    );
}

/// Returns the help of a command.
fn help(command: &str) -> String {
    String::from_utf8(forebay(&[command, "--help"]).output().unwrap().stdout).unwrap()
}

#[test]
fn the_unit_and_the_image_name_only_existing_flags_variables_and_files() {
    let (unit, image, config) = (file("ops/forebay.service"), file("ops/Dockerfile"), file("docs/config.md"));
    let start =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("the unit has ExecStart");
    let mut words = start.split_whitespace();
    assert_eq!(words.next(), Some("/usr/local/bin/forebay"), "the same path as in the image");
    assert!(image.contains("/usr/local/bin/forebay\n"));
    let help = help(words.next().expect("a command"));
    for flag in words.filter(|word| word.starts_with("--")) {
        assert!(help.contains(&format!("{flag} ")), "{flag} isn't in the help");
    }
    for text in [&unit, &image] {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for variable in words.filter(|word| word.starts_with("FOREBAY_")) {
            assert!(config.contains(&format!("`{variable}`")), "{variable} isn't in docs/config.md");
        }
    }
    let is_at = |text: &str| text.contains("/var/lib/forebay");
    assert!(is_at(start) && is_at(&image) && unit.contains("StateDirectory=forebay\n"), "the storage folder");
    let seconds = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
        line.parse::<u32>().unwrap()
    };
    assert!(seconds("TimeoutStopSec=") > 25, "shorter than the drain timeout");
    let built = image
        .lines()
        .find_map(|line| line.strip_prefix("RUN cargo build "))
        .expect("the image builds the program");
    assert!(built.contains("--bin forebay") && image.contains("/source/target/release/forebay "), "{built}");
    for line in image.lines().filter_map(|line| line.strip_prefix("# docker build ")) {
        let path = line.split_whitespace().nth(1).unwrap();
        assert!(workspace().join(path).is_file(), "{path}");
    }
}
