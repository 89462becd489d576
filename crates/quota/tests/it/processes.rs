//! Members in their own processes, which are killed, stopped and continued.
//!
//! A child is this test binary with an environment variable that makes it a member. It reads
//! commands from its standard input, one per line, and answers each with one line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use forebay_quota::{BudgetConfig, KeyedLease, Lease, MemberConfig, Quota};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::TEST_TIMEOUT;

use crate::support::{namespace, quick, settled_store, steady, until};

const MEMBER_VARIABLE: &str = "FOREBAY_TEST_MEMBER";
const BUDGET: u32 = 30;
const PER_USER: u32 = 3;

/// A member in its own process.
struct MemberProcess {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl MemberProcess {
    /// Starts a member that outlives the test without heartbeats.
    fn start(server: &Redis, namespace: &str, name: &str) -> Self {
        MemberProcess::start_as("steady", server, namespace, name)
    }

    /// Starts a member that expires a second after its last heartbeat.
    fn start_with_short_ttl(server: &Redis, namespace: &str, name: &str) -> Self {
        MemberProcess::start_as("quick", server, namespace, name)
    }

    fn start_as(kind: &str, server: &Redis, namespace: &str, name: &str) -> Self {
        let arguments = format!("{} {namespace} {name} {kind}", server.url());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::run_member_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(MEMBER_VARIABLE, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = MemberProcess { child, commands, replies };
        assert_eq!(process.reply(), "ready");
        process
    }

    fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.replies.read_line(&mut line).unwrap() > 0, "the member ended");
            // The test harness prints its own lines, and may leave one unterminated.
            if let Some((_, reply)) = line.split_once('@') {
                return reply.trim().to_string();
            }
        }
    }

    fn request(&mut self, command: &str) -> String {
        self.send(command);
        self.reply()
    }

    fn number(&mut self, command: &str) -> u32 {
        self.request(command).parse().unwrap()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless one of the tests below has started it as a child.
#[test]
fn run_member_process() {
    let Ok(arguments) = std::env::var(MEMBER_VARIABLE) else { return };
    let fields: Vec<_> = arguments.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = if fields[3] == "quick" { quick(fields[2]) } else { steady(fields[2]) };
    runtime.block_on(run_commands(fields[0], fields[1], config));
}

async fn run_commands(url: &str, namespace: &str, config: MemberConfig) {
    let client = RedisClient::connect(url).await.unwrap();
    let quota = Quota::join(forebay_quota::RedisStore::new(client, namespace), config).await;
    let (budget, users) =
        (quota.budget("streams", BudgetConfig::new(BUDGET)), quota.keyed_limit("user", PER_USER));
    let (mut leases, mut held): (Vec<Lease>, Vec<KeyedLease>) = (Vec::new(), Vec::new());
    let (sender, mut commands) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    println!("@ready");
    while let Some(command) = commands.recv().await {
        let reply = match command.split_once(' ').unwrap_or((&command, "")) {
            ("user", user) => match users.take(user).await {
                Ok(lease) => {
                    held.push(lease);
                    1
                }
                Err(_) => 0,
            },
            ("release", user) => {
                held.clear();
                let name = quota.status().member;
                while users.holders(user).await.unwrap().iter().any(|share| share.member == name) {}
                0
            }
            ("fill", most) => {
                let before = leases.len();
                while leases.len() - before < most.parse().unwrap() {
                    match budget.take().await {
                        Ok(lease) => leases.push(lease),
                        Err(_) => break,
                    }
                }
                leases.len() - before
            }
            ("drain", _) => {
                leases.clear();
                0
            }
            ("held", _) => leases.len() + held.len(),
            ("rejoins", _) => quota.status().counters.rejoins as usize,
            other => panic!("unknown command: {other:?}"),
        };
        println!("@{reply}");
    }
}

#[tokio::test]
async fn sixteen_processes_race_for_one_user_and_never_more_than_three_win() {
    let (server, namespace) = (Redis::shared(), namespace("race"));
    settled_store(server, &namespace).await;
    let mut processes: Vec<_> =
        (0..16).map(|index| MemberProcess::start(server, &namespace, &format!("m{index}"))).collect();
    let started = Instant::now();
    for race in 0..1000 {
        processes.iter_mut().for_each(|process| process.send("user ann"));
        let replies: Vec<_> = processes.iter_mut().map(MemberProcess::reply).collect();
        let winners: Vec<_> = (0..16).filter(|at| replies[*at] == "1").collect();
        assert_eq!(winners.len(), PER_USER as usize, "race {race}: {winners:?}");
        winners.iter().for_each(|at| processes[*at].send("release ann"));
        winners.iter().for_each(|at| assert_eq!(processes[*at].reply(), "0"));
    }
    println!("1,000 races of 16 processes in {:?}", started.elapsed());
}

#[tokio::test]
async fn units_of_a_killed_member_are_free_after_a_ttl_and_a_heartbeat() {
    let (server, namespace) = (Redis::shared(), namespace("killed"));
    settled_store(server, &namespace).await;
    let mut killed = MemberProcess::start_with_short_ttl(server, &namespace, "victim");
    let mut heir = MemberProcess::start(server, &namespace, "heir");
    assert_eq!(killed.number("fill 100"), BUDGET);
    (0..PER_USER).for_each(|_| assert_eq!(killed.number("user ann"), 1));
    assert_eq!((heir.number("fill 1"), heir.number("user ann")), (0, 0));
    killed.signal("-KILL");
    killed.child.wait().unwrap();
    let killed = Instant::now();
    let mut got = 0;
    until("all of it is free", TEST_TIMEOUT, async || {
        got += heir.number("fill 100");
        got == BUDGET
    })
    .await;
    println!("a killed member's {BUDGET} units were free after {:?}", killed.elapsed());
    assert_eq!(heir.number("user ann"), 1);
}

#[tokio::test]
async fn a_member_of_the_same_name_gets_its_predecessors_units_at_once() {
    let (server, namespace) = (Redis::shared(), namespace("restart"));
    settled_store(server, &namespace).await;
    let mut killed = MemberProcess::start(server, &namespace, "same");
    assert_eq!(killed.number("fill 100"), BUDGET);
    killed.signal("-KILL");
    killed.child.wait().unwrap();
    let mut heir = MemberProcess::start(server, &namespace, "same");
    assert_eq!(heir.number("fill 100"), BUDGET, "without waiting for the TTL");
}

#[tokio::test]
async fn a_member_stopped_beyond_its_ttl_keeps_its_leases_as_debt() {
    let (server, namespace) = (Redis::shared(), namespace("asleep"));
    settled_store(server, &namespace).await;
    let mut sleeper = MemberProcess::start_with_short_ttl(server, &namespace, "sleeper");
    let mut other = MemberProcess::start(server, &namespace, "other");
    assert_eq!(sleeper.number("fill 10"), 10);
    assert_eq!((sleeper.number("user ann"), sleeper.number("user ann")), (1, 1));
    sleeper.signal("-STOP");
    // Once it has expired, its whole slice goes to the other member.
    let mut got = 0;
    until("the other gets everything", TEST_TIMEOUT, async || {
        got += other.number("fill 100");
        got == BUDGET
    })
    .await;
    (0..PER_USER).for_each(|_| assert_eq!(other.number("user ann"), 1));
    sleeper.signal("-CONT");
    until("the sleeper has a new incarnation", TEST_TIMEOUT, async || sleeper.number("rejoins") == 1).await;
    assert_eq!(sleeper.number("held"), 12, "its leases are kept");
    // 40 of 30 and 5 of 3 are lent: nothing is granted until the debt is returned.
    assert_eq!((sleeper.number("fill 1"), other.number("fill 1")), (0, 0));
    assert_eq!((sleeper.number("user ann"), other.number("user ann")), (0, 0));
    sleeper.request("drain");
    sleeper.request("release ann");
    until("the debt is returned", TEST_TIMEOUT, async || {
        other.request("drain");
        other.number("fill 100") == BUDGET
    })
    .await;
    assert_eq!(sleeper.number("fill 1"), 0, "nor is a unit counted twice in the other member");
}
