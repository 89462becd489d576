//! Log lines: stage codes, hashed users, no credentials.

use std::io::{self, Write};
use std::sync::Arc;

use forebay_admission::{AdaptiveSignals, Admission, AdmissionLayer, StageLevel, ThreadId};
use forebay_quota::Quota;
use http::{Request, Response};
use parking_lot::Mutex;
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};
use tracing::subscriber::set_default;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{by_key, user};

/// Writer that captures log lines.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = CapturedLog;

    fn make_writer(&'a self) -> CapturedLog {
        self.clone()
    }
}

impl CapturedLog {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// Returns the fields of the lines that have a stage.
    fn staged(&self) -> Vec<Value> {
        let lines = self.text();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let fields = lines.map(|mut line| {
            let level = line["level"].take();
            let mut fields = line["fields"].take();
            fields["level"] = level;
            fields
        });
        fields.filter(|fields| fields["stage"].is_string()).collect()
    }

    fn stages(&self) -> Vec<String> {
        self.staged().iter().map(|fields| fields["stage"].as_str().unwrap().to_owned()).collect()
    }
}

fn capture() -> (CapturedLog, tracing::subscriber::DefaultGuard) {
    let log = CapturedLog::default();
    let subscriber =
        tracing_subscriber::fmt().json().with_max_level(tracing::Level::DEBUG).with_writer(log.clone());
    (log, set_default(subscriber.finish()))
}

#[tokio::test]
async fn a_stream_is_logged_stage_by_stage() {
    let (log, _guard) = capture();
    let admission = Admission::builder().total(2).per_user(1).log_salt(b"salt").build(Quota::local());
    let thread = ThreadId::parse("thread-1").unwrap();
    let permit = admission.admit(user("alice").thread_id(thread.clone())).await.unwrap();
    admission.admit(user("alice").thread_id(thread)).await.unwrap_err();
    let other = admission.admit(user("bob")).await.unwrap();
    admission.admit(user("carol")).await.unwrap_err();
    drop(other);
    drop(permit);

    let expected = [
        "CP.0", "CP.1", "CP.1.1", "CP.1.4", // alice is admitted
        "CP.1", "CP.1.1", "CP.1.3", // alice exceeds her limit
        "CP.1", "CP.1.1", "CP.1.4", "CP.5", // bob reaches the total
        "CP.1", "CP.1.1", "CP.1.2", // carol is rejected
        "CP.4", "CP.4.1", "CP.4", "CP.4.1",
    ];
    let without_health =
        |stages: Vec<String>| stages.into_iter().filter(|stage| stage != "CP.5").collect::<Vec<_>>();
    assert_eq!(without_health(log.stages()), without_health(expected.map(ToOwned::to_owned).to_vec()));
    assert!(log.stages().contains(&"CP.5".to_owned()));

    let lines = log.staged();
    for line in &lines {
        let of_a_stream = !["CP.0", "CP.5"].contains(&line["stage"].as_str().unwrap());
        if of_a_stream {
            assert!(line["thread_id"].is_string() && line["user"].is_string(), "{line}");
        }
    }
    // The hash of `alice` with this salt is the same in every process.
    let of_alice = lines.iter().filter(|line| line["thread_id"] == "thread-1");
    assert!(of_alice.clone().count() >= 5);
    assert!(of_alice.clone().all(|line| line["user"] == "c30403fc6e1cf206"), "{lines:?}");
    let refused: Vec<_> = lines.iter().filter(|line| line["reason"].is_string()).collect();
    assert_eq!((&refused[0]["reason"], &refused[0]["level"]), (&"user_limit".into(), &"WARN".into()));
    assert_eq!((&refused[1]["reason"], &refused[1]["level"]), (&"exhausted".into(), &"WARN".into()));
    let counted = lines.iter().filter(|line| line["stage"] == "CP.1.1");
    let counts =
        counted.map(|line| ["used", "limit", "user_used", "user_limit"].map(|name| line[name].as_u64()));
    let expected = [
        [Some(1), Some(2), None, None],
        // Her refused request held a unit while her own limit was checked, and returned it.
        [Some(1), Some(2), Some(1), Some(1)],
        [Some(2), Some(2), None, None],
        [Some(2), Some(2), None, None],
    ];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    for name in ["alice", "bob", "carol"] {
        assert!(!log.text().contains(name), "{name} is in the log");
    }
}

#[tokio::test]
async fn stage_lines_have_the_chosen_level_and_the_same_text() {
    let (log, _guard) = capture();
    let admission = Admission::builder().total(1).stage_level(StageLevel::Info).build(Quota::local());
    let run = async || {
        let permit = admission.admit(user("ada")).await.unwrap();
        admission.admit(user("bob")).await.unwrap_err();
        drop(permit);
    };
    run().await;
    admission.set_stage_level(StageLevel::Debug);
    run().await;
    let of_streams = |line: &Value| !["CP.0", "CP.5"].contains(&line["stage"].as_str().unwrap());
    let lines: Vec<_> = log.staged().into_iter().filter(of_streams).collect();
    let (first, second) = lines.split_at(lines.len() / 2);
    let texts = |lines: &[Value]| lines.iter().map(|line| line["message"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(first), texts(second));
    assert_eq!(
        texts(first),
        [
            "stream requested",
            "stream counted",
            "stream admitted",
            "stream requested",
            "stream counted",
            "stream rejected",
            "stream ended",
            "permit released"
        ]
    );
    let levels = |lines: &[Value]| lines.iter().map(|line| line["level"].clone()).collect::<Vec<_>>();
    let expected = |level| [level, level, level, level, level, "WARN", level, level];
    assert_eq!(levels(first), expected("INFO"));
    assert_eq!(levels(second), expected("DEBUG"));
}

#[tokio::test]
async fn a_client_without_an_identity_has_no_counts() {
    let (log, _guard) = capture();
    let admission = Admission::builder().build(Quota::local());
    let service = AdmissionLayer::new(admission, by_key(&["ada"]))
        .layer(service_fn(async |_| Ok::<_, io::Error>(Response::new(String::new()))));
    let request = Request::get("/").header("x-api-key", "key-of-eve").body(String::new()).unwrap();
    drop(service.oneshot(request).await.unwrap());
    assert_eq!(log.stages(), ["CP.0", "CP.1"]);
}

#[tokio::test]
async fn a_rejection_by_the_adaptive_limit_has_the_counts_of_the_instance() {
    let (log, _guard) = capture();
    let admission =
        Admission::builder().total(10).adaptive(1, AdaptiveSignals::StartsAndProcess).build(Quota::local());
    let _open = admission.admit(user("ada")).await.unwrap();
    admission.admit(user("eve")).await.unwrap_err();
    let counted: Vec<_> = log.staged().into_iter().filter(|line| line["stage"] == "CP.1.1").collect();
    let counts = |at: usize, fields: [&str; 2]| fields.map(|field| counted[at][field].clone());
    assert_eq!(counts(0, ["used", "limit"]), [1, 10]);
    assert_eq!(counts(1, ["instance_used", "instance_limit"]), [1, 1]);
    assert!(counted[1]["used"].is_null() && counted.len() == 2, "{counted:?}");
}

#[tokio::test]
async fn a_health_change_is_logged_once() {
    let (log, _guard) = capture();
    let admission = Admission::builder().total(10).build(Quota::local());
    let mut open = Vec::new();
    for n in 0..10 {
        open.push(admission.admit(user(&format!("user-{n}"))).await.unwrap());
    }
    for _ in 0..50 {
        admission.admit(user("late")).await.unwrap_err();
    }
    drop(open);
    let changes = log.staged().into_iter().filter(|line| line["to"].is_string());
    let changes: Vec<_> =
        changes.map(|line| format!("{} {}", line["level"], line["to"]).replace('"', "")).collect();
    let expected = [
        "WARN degraded",
        "ERROR critical",
        "ERROR exhausted",
        "ERROR critical",
        "WARN degraded",
        "INFO healthy",
    ];
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn the_log_rate_of_rejections_is_bounded() {
    let (log, _guard) = capture();
    let admission = Admission::builder().total(0).build(Quota::local());
    let begun = std::time::Instant::now();
    for _ in 0..1_000 {
        admission.admit(user("ada")).await.unwrap_err();
    }
    let seconds = begun.elapsed().as_secs() as usize + 2;
    let lines = log.stages().iter().filter(|stage| *stage == "CP.1.2").count();
    assert!((1..=10 * seconds).contains(&lines), "{lines} lines");
}

#[tokio::test]
async fn credentials_are_never_logged() {
    let (log, _guard) = capture();
    let admission = Admission::builder().build(Quota::local());
    let service = AdmissionLayer::new(admission, by_key(&["ada"]))
        .layer(service_fn(async |_| Ok::<_, io::Error>(Response::new(String::new()))));
    for key in ["key-of-ada", "key-of-eve"] {
        let request = Request::get("/").header("x-api-key", key).body(String::new()).unwrap();
        drop(service.clone().oneshot(request).await.unwrap());
    }
    let text = log.text();
    assert!(text.contains("unknown_api_key"), "{text}");
    assert!(!text.contains("key-of"), "{text}");
}
