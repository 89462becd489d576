//! `forebay dev`: the sample database and page work, and nothing is left after the end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use forebay_sandbox::{Redis, free_port};
use rustix::process::{Pid, Signal, kill_process};

use crate::chromium::Chromium;
use crate::forebay_process::forebay;
use crate::serve::support::ServeFixture;
use crate::wire::{DEADLINE, HttpConnection, until};

/// A running `forebay dev`; killed when dropped.
struct DevProcess {
    child: Child,
    /// Client address.
    clients: String,
    /// Admin address.
    admin: String,
    /// `TMPDIR` of the process: holds every file that it creates.
    folder: PathBuf,
}

impl DevProcess {
    /// Starts the process without waiting.
    fn spawn(args: &[&str]) -> DevProcess {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Accessible for other users: Postgres refuses to run as root.
        let folder = std::env::temp_dir().join(format!("forebay-dev-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // left by a killed process with the same id
        fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
        let (clients, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let mut command = forebay(&["dev", "--listen", &clients, "--admin", &admin]);
        command.args(args).env("TMPDIR", &folder).stdout(Stdio::piped()).stderr(Stdio::inherit());
        DevProcess { child: command.spawn().unwrap(), clients, admin, folder }
    }

    /// Starts the process and waits for the last line of its banner. Returns the lines.
    fn start(args: &[&str]) -> (DevProcess, Vec<String>) {
        let mut dev = DevProcess::spawn(args);
        let output = BufReader::new(dev.child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut lines = Vec::new();
        for line in output {
            let is_last = line.starts_with("Ctrl-C ");
            lines.push(line);
            if is_last {
                return (dev, lines);
            }
        }
        panic!("forebay dev ended with {:?} after {lines:?}", dev.child.wait());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Returns the ids of the child processes: Postgres, if the run started one.
    fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let children =
            tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        children
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect()
    }

    /// Waits until the process has ended and returns its exit code.
    async fn wait_for_exit(&mut self) -> Option<i32> {
        let started = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < DEADLINE, "forebay dev still runs");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        self.child.wait().unwrap().code()
    }

    /// Returns the names in its temporary folder.
    fn temporary_files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for DevProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns true if the process exists and is no zombie.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(stat.rsplit(") ").next().unwrap_or_default().chars().next(), None | Some('Z' | 'X'))
}

#[tokio::test]
async fn the_sample_page_shows_live_changes_and_ctrl_c_leaves_nothing() {
    let (mut dev, lines) = DevProcess::start(&[]);
    let addresses: Vec<_> = lines.iter().filter(|line| line.contains("http://")).collect();
    assert!(addresses[0].starts_with(&format!("Clients    http://{}", dev.clients)), "{lines:#?}");
    assert!(addresses[1].starts_with(&format!("Dashboard  http://{}", dev.admin)), "{lines:#?}");

    let browser = Chromium::open(&format!("http://{}/", dev.clients), "dev");
    browser.wait_until("document.querySelectorAll('#rows tr').length > 5").await;
    // Measures the age of each change when it is shown. Browser and server share one clock.
    browser.evaluate(
        "window.delays = [], new MutationObserver(() => { const top = document.querySelector('#rows tr'); \
         if (top?.className) delays.push(Date.now() - Date.parse(top.lastChild.innerText.replace(/\\+00$/, 'Z').replace(' ', 'T'))); \
         }).observe(document.querySelector('#rows'), { childList: true })",
    );
    browser.wait_until("delays.length >= 4").await;
    let delays = browser.evaluate("delays");
    let slow = delays.as_array().unwrap().iter().filter(|delay| delay.as_f64().unwrap() > 5_000.0).count();
    assert_eq!(slow, 0, "the goal is a second, the bound five: {delays}");
    assert_eq!(browser.console_errors(), [""; 0]);
    browser.go(&format!("http://{}/", dev.admin));
    browser.wait_until("document.querySelectorAll('#conditions [data-holds=true]').length === 7").await;

    let postgres = dev.children();
    assert!(
        !postgres.is_empty() && !dev.temporary_files().is_empty(),
        "{postgres:?} in {:?}",
        dev.temporary_files()
    );
    dev.signal(Signal::INT);
    assert_eq!(dev.wait_for_exit().await, Some(0));
    assert_eq!(dev.temporary_files(), [""; 0]);
    assert!(!postgres.into_iter().any(is_running));
}

#[tokio::test]
async fn the_printed_five_line_page_works() {
    let (dev, lines) = DevProcess::start(&[]);
    let first = lines.iter().position(|line| line.starts_with("<pre")).unwrap();
    assert!(lines[first + 4].ends_with("</script>"), "{lines:#?}");
    let file = dev.folder.join("live.html");
    fs::write(&file, lines[first..first + 5].join("\n")).unwrap();
    let browser = Chromium::open(&format!("file://{}", file.display()), "dev-five-lines");
    browser.wait_until("list.innerText.includes('\"customer\":')").await;
    let before = browser.text("#list");
    until("the page changes", async || browser.text("#list") != before).await;
    assert_eq!(browser.console_errors(), [""; 0]);
}

#[tokio::test]
async fn a_signal_during_startup_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut dev = DevProcess::spawn(&[]);
        until("the first file is created", async || !dev.temporary_files().is_empty()).await;
        dev.signal(signal);
        assert_eq!(dev.wait_for_exit().await, Some(0));
        assert_eq!(dev.temporary_files(), [""; 0]);
    }
}

#[tokio::test]
async fn postgres_ends_with_a_killed_run_and_the_next_run_removes_its_files() {
    let (mut dev, _) = DevProcess::start(&[]);
    let postgres = dev.children();
    assert!(!postgres.is_empty());
    dev.signal(Signal::KILL);
    dev.wait_for_exit().await;
    until("Postgres has ended", async || !postgres.iter().copied().any(is_running)).await;
    let files = dev.temporary_files();
    assert!(!files.is_empty(), "a killed run can't remove its folder");
    let mut next = forebay(&["dev", "--listen", &dev.clients, "--admin", &dev.admin]);
    let next = next.env("TMPDIR", &dev.folder).env("FOREBAY_PG_BIN", "/nowhere").output().unwrap();
    let stderr = String::from_utf8_lossy(&next.stderr);
    assert!(next.status.code() == Some(1) && stderr.contains("apt install postgresql"), "{stderr}");
    assert_eq!(dev.temporary_files(), [""; 0], "a run that can't start also removes old folders");
}

#[tokio::test]
async fn a_given_database_is_served_and_keeps_no_slot_or_publication() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, title text); INSERT INTO items VALUES (1, 'one')",
    );
    let url = fixture.postgres.url(&fixture.database);
    let (mut dev, lines) = DevProcess::start(&["--database-url", &url]);
    assert!(lines.iter().any(|line| line.contains("table=YOUR_TABLE&offset=-1")), "{lines:#?}");
    assert!(dev.children().is_empty(), "no Postgres is started");
    let browser = Chromium::open(&format!("http://{}/?table=items", dev.clients), "dev-own");
    browser.wait_until("document.querySelector('#rows td:nth-child(2)')?.innerText === 'one'").await;
    fixture.sql("UPDATE items SET title = 'two'");
    browser.wait_until("document.querySelector('#rows td:nth-child(2)')?.innerText === 'two'").await;
    dev.signal(Signal::TERM);
    assert_eq!(dev.wait_for_exit().await, Some(0));
    assert_eq!(dev.temporary_files(), [""; 0]);
    let count = |sql: &str| fixture.query_value(sql).unwrap();
    let slots = format!("SELECT count(*) FROM pg_replication_slots WHERE database = '{}'", fixture.database);
    assert_eq!(
        (count(&slots), count("SELECT count(*) FROM pg_publication")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(
        count("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"),
        "1",
        "no sample table is created"
    );
}

#[tokio::test]
async fn with_a_redis_url_the_quota_store_is_redis() {
    let redis = Redis::start().unwrap();
    let (dev, _) = DevProcess::start(&["--redis", &redis.url()]);
    let status = HttpConnection::fetch(dev.admin.parse().unwrap(), "GET", "/v1/status", &[], "").await.json();
    assert_eq!(status["quota"]["store"], "redis");
    let browser = Chromium::open(&format!("http://{}/", dev.clients), "dev-redis");
    browser.wait_until("document.querySelectorAll('#rows tr.changed').length > 0").await;
}

#[test]
fn conflicting_flags_are_reported_before_anything_starts() {
    let output = forebay(&["dev", "--listen", "0.0.0.0:3000"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("secret"), "{stderr}");
}
