//! A process that is told to terminate, as an orchestrator does.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{Manager, ManagerConfig, Step};
use forebay_sandbox::Postgres;
use forebay_testkit::within;

use super::{End, holder};
use crate::journal::Journal;
use crate::support::Followed;

const SERVE: &str = "FOREBAY_TEST_SERVE";

/// A service in a process of its own: this test binary again. It says at which step it is.
struct Service {
    child: Child,
}

impl Service {
    async fn start(followed: &Followed<'_>, until: Step) -> Self {
        let journal = followed.journal();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "shutdown::process::a_service_ends_on_sigterm",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(SERVE, format!("{} {} {}", followed.url(), followed.slot, journal.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let waiting = tokio::task::spawn_blocking(move || {
            let found = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with(&format!("@{until}")));
            assert!(found, "the service ended before {until}");
            lines
        });
        let mut lines = within("the service gets there", waiting).await.unwrap();
        // What it says later must have somewhere to go.
        tokio::task::spawn_blocking(move || lines.by_ref().map_while(Result::ok).for_each(drop));
        Service { child }
    }

    async fn terminate(mut self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let ended = tokio::task::spawn_blocking(move || self.child.wait().unwrap());
        let status = within("it ends", ended).await.unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// Does nothing unless it was started as a child by the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_ends_on_sigterm() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(orders) = std::env::var(SERVE) else { return };
    let [url, slot, journal] = orders.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    let config = ManagerConfig::new(PostgresConnect::new(url).unwrap()).slot(slot).pool_size(2);
    let manager = Manager::start(config, Journal::open(journal.as_ref())).unwrap();
    let mut status = manager.watch();
    loop {
        println!("@{}", status.borrow_and_update().step);
        tokio::select! {
            changed = status.changed() => changed.unwrap(),
            _ = terminated.recv() => break,
        }
    }
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_told_to_terminate_ends_well_and_leaves_nothing() {
    let followed = Followed::new(Postgres::shared());
    let open = holder(&followed, "BEGIN; SELECT pg_current_xact_id()").await;
    let service = Service::start(&followed, Step::ConfiguringConnection).await;
    service.terminate().await;
    End::Keeping.leaves(&followed).await;
    open.batch_execute("ROLLBACK").await.unwrap();

    let lock = holder(&followed, &format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot)).await;
    let service = Service::start(&followed, Step::AcquiringLock).await;
    service.terminate().await;
    End::Keeping.leaves(&followed).await;
    lock.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();

    let service = Service::start(&followed, Step::Streaming).await;
    assert!(followed.slot_is_active());
    service.terminate().await;
    End::Keeping.leaves(&followed).await;
    assert_eq!(followed.resets(), ["first"]);
}
