//! Counts of streams, limits and members after an instance was killed: in the status, the metrics,
//! the dashboard and `forebay status`.

use std::net::SocketAddr;

use forebay_sandbox::Redis;
use rustix::process::Signal;
use serde_json::json;

use crate::chromium::Chromium;
use crate::forebay_process::forebay;
use crate::limits::open_stream;
use crate::silent_instances::LONG_TTL_MS;
use crate::streams::{BEARER, SECRET, StreamCluster};
use crate::wire::{HttpConnection, until};

/// What an operator sees of the limits and the streams, at an instance's address.
struct OperatorView {
    admin: SocketAddr,
    browser: Chromium,
}

impl OperatorView {
    /// Opens the dashboard with its list of streams.
    async fn open(admin: SocketAddr, name: &str) -> OperatorView {
        let browser = Chromium::open(&format!("http://any:{SECRET}@{admin}/"), name);
        browser.wait_until("document.querySelector('#link').dataset.link === 'live'").await;
        browser.evaluate("document.querySelector('#streams summary').click()");
        OperatorView { admin, browser }
    }

    /// Waits until everything shows these numbers of the cluster, and these silent instances.
    async fn wait_for(&self, streams: u32, members: u32, listed: [&str; 2], silent: Option<&str>) {
        until("the status has the numbers", async || {
            let status = HttpConnection::fetch(self.admin, "GET", "/v1/status", &[BEARER], "").await.json();
            let (statistics, quota) = (&status["statistics"], &status["admission"]["quota"]);
            assert_eq!((&quota["mode"], &quota["why"]), (&json!("normal"), &json!(null)));
            (&statistics["total_connections"], &quota["members"]) == (&json!(streams), &json!(members))
        })
        .await;
        until("the metrics have the numbers", async || {
            let metrics = HttpConnection::fetch(self.admin, "GET", "/metrics", &[BEARER], "").await;
            let metrics = String::from_utf8(metrics.body).unwrap();
            let lines = [
                format!("forebay_admission_used_streams {streams}"),
                "forebay_admission_active_streams 1".to_owned(),
                format!("forebay_quota_members {members}"),
            ];
            lines.iter().all(|line| metrics.lines().any(|found| found == line))
        })
        .await;

        let text = self.status(&["--once"]);
        let plural = if members == 1 { "1 member,".to_owned() } else { format!("{members} members,") };
        assert!(text.contains(&format!(" {streams} of 100 streams")) && text.contains(&plural), "{text}");
        let text = self.status(&["--streams"]);
        let [open, instances] = listed;
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(&*format!("{} at {instances}", open.replace("stream", "open stream"))));
        let named = silent.map(|silent| format!("no answer from 1 instance: {silent}"));
        assert_eq!(lines.next().filter(|line| line.starts_with("no answer")), named.as_deref());

        let shown = |selector: &str| format!("document.querySelector('{selector}').innerText");
        for (selector, text) in [
            ("#admission-why", format!("{streams} % of 100 in total")),
            ("#quota-facts", format!("Members\\n{members}")),
            ("#streams-sum", format!("{open} at {instances}")),
        ] {
            self.browser.wait_until(&format!("{}.includes('{text}')", shown(selector))).await;
        }
        let note = silent.map_or(String::new(), |silent| format!("No answer from 1 instance: {silent}."));
        self.browser.wait_until(&format!("{}.trim() === '{note}'", shown("#streams-why"))).await;
        assert_eq!(self.browser.console_errors(), [""; 0]);
    }

    fn status(&self, args: &[&str]) -> String {
        let url = format!("http://{}", self.admin);
        let mut command = forebay(&["status", "--url", &url]);
        let output = command.args(args).env("FOREBAY_ADMIN_SECRET", SECRET).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A killed gate's streams count until it expires: it may be alive behind a lost connection.
#[tokio::test]
async fn status_metrics_and_dashboard_count_a_killed_instance_until_it_expires() {
    for expires in [false, true] {
        let namespace = format!("streams-numbers-{expires}");
        let mut cluster = StreamCluster::new(Redis::shared(), &namespace, 100).await;
        let ttl_ms = if expires { "2000" } else { LONG_TTL_MS };
        cluster.set("FOREBAY_QUOTA_TTL_MS", ttl_ms);
        cluster.skip_the_rebuild(Redis::shared(), &namespace).await;
        let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
        let mut streams = Vec::new();
        for (gate, id) in [(&one, "t-1"), (&two, "t-2"), (&two, "t-3")] {
            streams.push(open_stream(gate, "/stream/a", &[&format!("X-Thread-ID: {id}")]).await.unwrap());
        }
        let view = OperatorView::open(one.admin, &namespace).await;
        view.wait_for(3, 2, ["3 streams", "2 instances"], None).await;
        two.signal(Signal::KILL);
        match expires {
            false => view.wait_for(3, 2, ["1 stream", "1 instance"], Some("two")).await,
            true => view.wait_for(1, 1, ["1 stream", "1 instance"], None).await,
        }
    }
}
