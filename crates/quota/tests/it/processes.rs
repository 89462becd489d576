//! Members in processes of their own, which can be killed, stopped and continued.
//!
//! A child is this test binary again, told by its environment to be a member; it reads orders from its standard input,
//! one a line, and answers each with one line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use forebay_quota::{BudgetConfig, KeyedLease, Lease, MemberConfig, Quota};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::PATIENCE;

use crate::support::{namespace, quick, settled_store, steady, until};

const ORDERS: &str = "FOREBAY_TEST_MEMBER";
const BUDGET: u32 = 30;
const PER_USER: u32 = 3;

/// A member in a process of its own.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// One that lives for as long as a test does without a beat.
    fn start(server: &Redis, namespace: &str, name: &str) -> Self {
        Process::start_as("steady", server, namespace, name)
    }

    /// One that is dead a second after its last beat.
    fn start_mortal(server: &Redis, namespace: &str, name: &str) -> Self {
        Process::start_as("quick", server, namespace, name)
    }

    fn start_as(kind: &str, server: &Redis, namespace: &str, name: &str) -> Self {
        let orders = format!("{} {namespace} {name} {kind}", server.url());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::a_member_obeys", "--exact", "--nocapture", "--test-threads=1"])
            .env(ORDERS, orders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = Process { child, orders, answers };
        assert_eq!(process.answer(), "ready");
        process
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the member ended");
            // The test harness has its own lines, and may not have ended the last one.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_string();
            }
        }
    }

    fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    fn number(&mut self, order: &str) -> u32 {
        self.ask(order).parse().unwrap()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started as a child by one of the tests below.
#[test]
fn a_member_obeys() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let words: Vec<_> = orders.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = if words[3] == "quick" { quick(words[2]) } else { steady(words[2]) };
    runtime.block_on(obey(words[0], words[1], config));
}

async fn obey(url: &str, namespace: &str, config: MemberConfig) {
    let client = RedisClient::connect(url).await.unwrap();
    let quota = Quota::join(forebay_quota::RedisStore::new(client, namespace), config).await;
    let (budget, users) = (quota.budget("streams", BudgetConfig::new(BUDGET)), quota.keyed("user", PER_USER));
    let (mut leases, mut held): (Vec<Lease>, Vec<KeyedLease>) = (Vec::new(), Vec::new());
    let (sender, mut orders) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    println!("@ready");
    while let Some(order) = orders.recv().await {
        let answer = match order.split_once(' ').unwrap_or((&order, "")) {
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
            ("rebirths", _) => quota.status().counters.rebirths as usize,
            other => panic!("no such order: {other:?}"),
        };
        println!("@{answer}");
    }
}

#[tokio::test]
async fn sixteen_processes_race_for_one_user_and_never_more_than_three_win() {
    let (server, namespace) = (Redis::shared(), namespace("race"));
    settled_store(server, &namespace).await;
    let mut processes: Vec<_> =
        (0..16).map(|index| Process::start(server, &namespace, &format!("m{index}"))).collect();
    let began = Instant::now();
    for race in 0..1000 {
        processes.iter_mut().for_each(|process| process.tell("user ann"));
        let answers: Vec<_> = processes.iter_mut().map(Process::answer).collect();
        let winners: Vec<_> = (0..16).filter(|at| answers[*at] == "1").collect();
        assert_eq!(winners.len(), PER_USER as usize, "race {race}: {winners:?}");
        winners.iter().for_each(|at| processes[*at].tell("release ann"));
        winners.iter().for_each(|at| assert_eq!(processes[*at].answer(), "0"));
    }
    println!("1,000 races of 16 processes in {:?}", began.elapsed());
}

#[tokio::test]
async fn what_a_killed_member_held_is_free_after_a_ttl_and_a_beat() {
    let (server, namespace) = (Redis::shared(), namespace("killed"));
    settled_store(server, &namespace).await;
    let mut victim = Process::start_mortal(server, &namespace, "victim");
    let mut heir = Process::start(server, &namespace, "heir");
    assert_eq!(victim.number("fill 100"), BUDGET);
    (0..PER_USER).for_each(|_| assert_eq!(victim.number("user ann"), 1));
    assert_eq!((heir.number("fill 1"), heir.number("user ann")), (0, 0));
    victim.signal("-KILL");
    victim.child.wait().unwrap();
    let killed = Instant::now();
    let mut got = 0;
    until("all of it is free", PATIENCE, async || {
        got += heir.number("fill 100");
        got == BUDGET
    })
    .await;
    println!("a killed member's {BUDGET} units were free after {:?}", killed.elapsed());
    assert_eq!(heir.number("user ann"), 1);
}

#[tokio::test]
async fn a_member_of_the_same_name_has_its_predecessors_units_at_once() {
    let (server, namespace) = (Redis::shared(), namespace("restart"));
    settled_store(server, &namespace).await;
    let mut victim = Process::start(server, &namespace, "same");
    assert_eq!(victim.number("fill 100"), BUDGET);
    victim.signal("-KILL");
    victim.child.wait().unwrap();
    let mut heir = Process::start(server, &namespace, "same");
    assert_eq!(heir.number("fill 100"), BUDGET, "without waiting for the TTL");
}

#[tokio::test]
async fn a_member_that_slept_beyond_its_ttl_returns_in_debt() {
    let (server, namespace) = (Redis::shared(), namespace("asleep"));
    settled_store(server, &namespace).await;
    let mut sleeper = Process::start_mortal(server, &namespace, "sleeper");
    let mut other = Process::start(server, &namespace, "other");
    assert_eq!(sleeper.number("fill 10"), 10);
    assert_eq!((sleeper.number("user ann"), sleeper.number("user ann")), (1, 1));
    sleeper.signal("-STOP");
    // Its whole slice goes to the other, once it is taken for dead.
    let mut got = 0;
    until("the other gets everything", PATIENCE, async || {
        got += other.number("fill 100");
        got == BUDGET
    })
    .await;
    (0..PER_USER).for_each(|_| assert_eq!(other.number("user ann"), 1));
    sleeper.signal("-CONT");
    until("the sleeper has a new incarnation", PATIENCE, async || sleeper.number("rebirths") == 1).await;
    assert_eq!(sleeper.number("held"), 12, "its streams live on");
    // 40 are lent of 30, five of three: nobody gets anything until the debt has drained.
    assert_eq!((sleeper.number("fill 1"), other.number("fill 1")), (0, 0));
    assert_eq!((sleeper.number("user ann"), other.number("user ann")), (0, 0));
    sleeper.ask("drain");
    sleeper.ask("release ann");
    until("the debt is paid", PATIENCE, async || {
        other.ask("drain");
        other.number("fill 100") == BUDGET
    })
    .await;
    assert_eq!(sleeper.number("fill 1"), 0, "no double count the other way round, either");
}
