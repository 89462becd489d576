//! Shutdown of a process by SIGTERM.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{Manager, ManagerConfig, ManagerStep};
use forebay_sandbox::Postgres;
use forebay_testkit::within;

use super::{ShutdownKind, other_client};
use crate::followed_database::FollowedDatabase;
use crate::journal::JournalConsumer;

const SERVE: &str = "FOREBAY_TEST_SERVE";

/// A service in its own process: this test binary again. It prints its steps.
struct ServiceProcess {
    child: Child,
}

impl ServiceProcess {
    async fn start(followed: &FollowedDatabase<'_>, until: ManagerStep) -> Self {
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
        let mut lines = within("the step is reached", waiting).await.unwrap();
        // Drains later output, so that the pipe doesn't fill up.
        tokio::task::spawn_blocking(move || lines.by_ref().map_while(Result::ok).for_each(drop));
        ServiceProcess { child }
    }

    async fn terminate(mut self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let ended = tokio::task::spawn_blocking(move || self.child.wait().unwrap());
        let status = within("it ends", ended).await.unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// Does nothing unless the test below started it as a child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_ends_on_sigterm() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(arguments) = std::env::var(SERVE) else { return };
    let [url, slot, journal] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    let config = ManagerConfig::new(PostgresConnect::new(url).unwrap()).slot(slot).pool_size(2);
    let manager = Manager::start(config, JournalConsumer::open(journal.as_ref())).unwrap();
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
async fn sigterm_ends_a_process_with_code_zero_and_leaves_no_backend_or_lock() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let open = other_client(&followed, "BEGIN; SELECT pg_current_xact_id()").await;
    let service = ServiceProcess::start(&followed, ManagerStep::ConfiguringConnection).await;
    service.terminate().await;
    ShutdownKind::Keep.check_server(&followed).await;
    open.batch_execute("ROLLBACK").await.unwrap();

    let lock =
        other_client(&followed, &format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot)).await;
    let service = ServiceProcess::start(&followed, ManagerStep::AcquiringLock).await;
    service.terminate().await;
    ShutdownKind::Keep.check_server(&followed).await;
    lock.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();

    let service = ServiceProcess::start(&followed, ManagerStep::Streaming).await;
    assert!(followed.slot_is_active());
    service.terminate().await;
    ShutdownKind::Keep.check_server(&followed).await;
    assert_eq!(followed.resets(), ["first"]);
}
