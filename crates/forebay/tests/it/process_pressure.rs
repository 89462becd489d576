//! The adaptive limit of a process that uses most of the memory or CPU time of its control group.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::forebay_process::ForebayProcess;
use crate::serve::support::ServeFixture;
use crate::wire::until;

/// Server that sees the control group limits of the test. Its usage is real.
struct LimitedServer {
    process: ForebayProcess,
    _fixture: ServeFixture,
}

impl LimitedServer {
    /// Starts a server in a mount namespace of its own, with a `/sys/fs/cgroup` that has no limits.
    fn start() -> LimitedServer {
        let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
        let server = fixture.command(&[]);
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        command.arg("mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"").arg("sh");
        command.arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("FOREBAY_ADMISSION_ADAPTIVE_FLOOR", "4").env("FOREBAY_ADMISSION_TOTAL", "60");
        command.env("FOREBAY_ADMISSION_MAX_CPU_PERCENT", "100");
        LimitedServer { process: ForebayProcess::run(command, "server listening"), _fixture: fixture }
    }

    /// Sets a limit of the server's control group.
    fn limit(&self, file: &str, text: &str) {
        let path = format!("/proc/{}/root/sys/fs/cgroup/{file}", self.process.pid());
        fs::write(path, text).unwrap();
    }

    async fn adaptive(&self) -> Value {
        self.process.status().await["admission"]["adaptive"].clone()
    }

    /// Waits until the limit has fallen, and checks the cause.
    async fn wait_for_decrease(&self, cause: &str) {
        until("the limit falls", async || self.adaptive().await["limit"].as_u64().unwrap() < 60).await;
        let status = self.adaptive().await;
        let decrease = &status["last_decrease"];
        assert_eq!((&decrease["cause"], &decrease["from"]), (&json!(cause), &json!(60)), "{status}");
        let label = format!("cause=\"{cause}\"");
        let count = self.process.metric("forebay_admission_adaptive_decreases_total", &[&label]).await;
        assert!(count >= 1.0, "{count}");
    }

    /// Waits until the server has sampled its resources, and checks that its limit is the total.
    async fn wait_for_samples_without_decrease(&self) {
        until("the CPU time is known", async || {
            self.process.metrics().await.contains("forebay_process_cpu_ratio ")
        })
        .await;
        let status = self.adaptive().await;
        assert_eq!((&status["limit"], &status["last_decrease"]), (&json!(60), &Value::Null), "{status}");
    }
}

#[tokio::test]
async fn a_process_that_uses_most_of_its_memory_lowers_its_adaptive_limit() {
    let server = LimitedServer::start();
    server.wait_for_samples_without_decrease().await;
    server.limit("memory.max", "1048576\n");
    server.wait_for_decrease("memory").await;
}

#[tokio::test]
async fn a_process_that_uses_most_of_its_cpu_time_lowers_its_adaptive_limit() {
    let server = LimitedServer::start();
    server.wait_for_samples_without_decrease().await;
    // A thousandth of a CPU: requests for the status use more.
    server.limit("cpu.max", "1000 1000000\n");
    server.wait_for_decrease("cpu").await;
}
