use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::{env, panic, thread};

use forebay_sandbox::{Postgres, Redis};

use super::{eventually, folder_of, runs};

#[test]
fn dropping_a_handle_ends_the_process_and_removes_the_folder() {
    let (redis, postgres) = (Redis::start().unwrap(), Postgres::start().unwrap());
    let pids = [redis.pid(), postgres.pid()];
    let folders = pids.map(folder_of);
    drop((redis, postgres));
    assert!(!pids.into_iter().any(runs));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

#[test]
fn dropping_a_handle_ends_a_frozen_server_and_a_killed_one() {
    let (frozen, killed) = (Redis::start().unwrap(), Postgres::start().unwrap());
    let folders = [folder_of(frozen.pid()), folder_of(killed.pid())];
    let pid = frozen.pid();
    frozen.freeze();
    killed.kill();
    drop((frozen, killed));
    assert!(!runs(pid));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

#[test]
fn a_panic_ends_the_process() {
    let redis = Redis::start().unwrap();
    let pid = redis.pid();
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let _redis = redis;
        panic::resume_unwind(Box::new("no backtrace on the terminal"));
    }));
    assert!(outcome.is_err());
    assert!(!runs(pid));
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let redis = thread::spawn(|| Redis::start().unwrap()).join().unwrap();
    assert!(runs(redis.pid()));
    redis.restart().unwrap();
}

/// Starts this test again as a process that owns servers, and kills that process.
#[test]
fn servers_end_with_a_killed_owner_and_the_next_start_removes_its_folders() {
    const ROLE: &str = "SANDBOX_TEST_OWNER";
    if env::var_os(ROLE).is_some() {
        let (redis, frozen, postgres) =
            (Redis::start().unwrap(), Redis::start().unwrap(), Postgres::start().unwrap());
        frozen.freeze();
        writeln!(std::io::stdout(), "\npids {} {} {}", redis.pid(), frozen.pid(), postgres.pid()).unwrap();
        loop {
            thread::park();
        }
    }
    let name = "lifetime::servers_end_with_a_killed_owner_and_the_next_start_removes_its_folders";
    let mut owner = Command::new(env::current_exe().unwrap());
    owner.args(["--exact", name, "--nocapture"]).env(ROLE, "yes").stdout(Stdio::piped());
    let mut owner = owner.spawn().unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("pids ")).expect("the owner prints its pids");
    let pids: Vec<u32> = line.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
    let folders: Vec<_> = pids.iter().map(|pid| folder_of(*pid)).collect();
    assert_eq!(pids.len(), 3);

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the servers end with their owner", || !pids.iter().any(|pid| runs(*pid)));
    let _next = Redis::start().unwrap();
    assert!(!folders.iter().any(|folder| folder.exists()), "left behind: {folders:?}");
}
