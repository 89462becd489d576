//! `forebay dev`: what a stranger sees in the first five minutes, and that nothing of it stays.

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
use crate::gate::forebay;
use crate::serve::support::ServeFixture;
use crate::wire::{Client, DEADLINE, until};

/// A run, and the folder that all it makes is in; killed when it is dropped.
struct Dev {
    child: Child,
    clients: String,
    admin: String,
    folder: PathBuf,
}

impl Dev {
    /// Doesn't wait for anything.
    fn spawn(args: &[&str]) -> Dev {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Where another user may go, too: Postgres doesn't run as root.
        let folder = std::env::temp_dir().join(format!("forebay-dev-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // of a killed process that had our number
        fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
        let (clients, admin) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let mut command = forebay(&["dev", "--listen", &clients, "--admin", &admin]);
        command.args(args).env("TMPDIR", &folder).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Dev { child: command.spawn().unwrap(), clients, admin, folder }
    }

    /// Waits until it has said all that it says: the lines.
    fn start(args: &[&str]) -> (Dev, Vec<String>) {
        let mut dev = Dev::spawn(args);
        let lines = BufReader::new(dev.child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = Vec::new();
        for line in lines {
            let is_last = line.starts_with("Ctrl-C ");
            said.push(line);
            if is_last {
                return (dev, said);
            }
        }
        panic!("it ended with {:?} after {said:?}", dev.child.wait());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// The processes that it has started: the Postgres, if there is one.
    fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let children =
            tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        children
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect()
    }

    async fn ends(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < DEADLINE, "it still runs");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        self.child.wait().unwrap().code()
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(stat.rsplit(") ").next().unwrap_or_default().chars().next(), None | Some('Z' | 'X'))
}

#[tokio::test]
async fn orders_appear_in_a_browser_and_move_on_within_a_second_and_ctrl_c_leaves_nothing() {
    let (mut dev, said) = Dev::start(&[]);
    let addresses: Vec<_> = said.iter().filter(|line| line.contains("http://")).collect();
    assert!(addresses[0].starts_with(&format!("Clients    http://{}", dev.clients)), "{said:#?}");
    assert!(addresses[1].starts_with(&format!("Dashboard  http://{}", dev.admin)), "{said:#?}");

    let browser = Chromium::open(&format!("http://{}/", dev.clients), "dev");
    browser.until("document.querySelectorAll('#rows tr').length > 5").await;
    // How old a change is when it is shown: the clocks are the same.
    browser.ask(
        "window.delays = [], new MutationObserver(() => { const top = document.querySelector('#rows tr'); \
         if (top?.className) delays.push(Date.now() - Date.parse(top.lastChild.innerText.replace(/\\+00$/, 'Z').replace(' ', 'T'))); \
         }).observe(document.querySelector('#rows'), { childList: true })",
    );
    browser.until("delays.length >= 4").await;
    let delays = browser.ask("delays");
    let slow = delays.as_array().unwrap().iter().filter(|delay| delay.as_f64().unwrap() > 5_000.0).count();
    assert_eq!(slow, 0, "a second is the aim, and five times that the bound: {delays}");
    assert_eq!(browser.complaints(), [""; 0]);
    browser.go(&format!("http://{}/", dev.admin));
    browser.until("document.querySelectorAll('#conditions [data-holds=true]').length === 7").await;

    let postgres = dev.children();
    assert!(!postgres.is_empty() && !dev.left().is_empty(), "{postgres:?} in {:?}", dev.left());
    dev.signal(Signal::INT);
    assert_eq!(dev.ends().await, Some(0));
    assert_eq!(dev.left(), [""; 0]);
    assert!(!postgres.into_iter().any(lives));
}

#[tokio::test]
async fn the_five_lines_that_it_prints_are_a_page_that_works() {
    let (dev, said) = Dev::start(&[]);
    let first = said.iter().position(|line| line.starts_with("<pre")).unwrap();
    assert!(said[first + 4].ends_with("</script>"), "{said:#?}");
    let file = dev.folder.join("live.html");
    fs::write(&file, said[first..first + 5].join("\n")).unwrap();
    let browser = Chromium::open(&format!("file://{}", file.display()), "dev-five-lines");
    browser.until("list.innerText.includes('\"customer\":')").await;
    let before = browser.text("#list");
    until("it changes", async || browser.text("#list") != before).await;
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test]
async fn an_end_in_the_middle_of_the_start_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut dev = Dev::spawn(&[]);
        until("it has begun", async || !dev.left().is_empty()).await;
        dev.signal(signal);
        assert_eq!(dev.ends().await, Some(0));
        assert_eq!(dev.left(), [""; 0]);
    }
}

#[tokio::test]
async fn postgres_ends_with_a_run_that_is_killed_and_the_next_run_tidies_up() {
    let (mut dev, _) = Dev::start(&[]);
    let postgres = dev.children();
    assert!(!postgres.is_empty());
    dev.signal(Signal::KILL);
    dev.ends().await;
    until("Postgres has ended", async || !postgres.iter().copied().any(lives)).await;
    let left = dev.left();
    assert!(!left.is_empty(), "nobody was there to remove it");
    let mut next = forebay(&["dev", "--listen", &dev.clients, "--admin", &dev.admin]);
    let next = next.env("TMPDIR", &dev.folder).env("FOREBAY_PG_BIN", "/nowhere").output().unwrap();
    let words = String::from_utf8_lossy(&next.stderr);
    assert!(next.status.code() == Some(1) && words.contains("apt install postgresql"), "{words}");
    assert_eq!(dev.left(), [""; 0], "even one that can't start");
}

#[tokio::test]
async fn an_own_database_is_served_and_keeps_neither_slot_nor_publication() {
    let place = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, title text); INSERT INTO items VALUES (1, 'one')",
    );
    let url = place.postgres.url(&place.database);
    let (mut dev, said) = Dev::start(&["--database-url", &url]);
    assert!(said.iter().any(|line| line.contains("table=YOUR_TABLE&offset=-1")), "{said:#?}");
    assert!(dev.children().is_empty(), "there is a Postgres already");
    let browser = Chromium::open(&format!("http://{}/?table=items", dev.clients), "dev-own");
    browser.until("document.querySelector('#rows td:nth-child(2)')?.innerText === 'one'").await;
    place.sql("UPDATE items SET title = 'two'");
    browser.until("document.querySelector('#rows td:nth-child(2)')?.innerText === 'two'").await;
    dev.signal(Signal::TERM);
    assert_eq!(dev.ends().await, Some(0));
    assert_eq!(dev.left(), [""; 0]);
    let count = |sql: &str| place.query_value(sql).unwrap();
    let slots = format!("SELECT count(*) FROM pg_replication_slots WHERE database = '{}'", place.database);
    assert_eq!(
        (count(&slots), count("SELECT count(*) FROM pg_publication")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(count("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "1", "no sample in it");
}

#[tokio::test]
async fn with_a_redis_it_counts_with_others() {
    let redis = Redis::start().unwrap();
    let (dev, _) = Dev::start(&["--redis", &redis.url()]);
    let status = Client::ask(dev.admin.parse().unwrap(), "GET", "/v1/status", &[], "").await.json();
    assert_eq!(status["quota"]["store"], "redis");
    let browser = Chromium::open(&format!("http://{}/", dev.clients), "dev-redis");
    browser.until("document.querySelectorAll('#rows tr.changed').length > 0").await;
}

#[test]
fn flags_that_do_not_fit_are_told_before_anything_is_started() {
    let output = forebay(&["dev", "--listen", "0.0.0.0:3000"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && words.contains("secret"), "{words}");
}
