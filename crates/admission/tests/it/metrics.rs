//! Every metric is exported with its help text and passes `promtool check metrics`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::metrics::set_default_local_recorder;
use forebay_admission::{Admission, AdmissionLayer, ForwardedHeader, Jwt, PeerAddr, metrics};
use forebay_quota::Quota;
use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{by_key, eventually, user};

const NAMES: [&str; 20] = [
    metrics::ACTIVE_STREAMS,
    metrics::USED_STREAMS,
    metrics::LIMIT_STREAMS,
    metrics::UTILIZATION,
    metrics::ADMITTED,
    metrics::REJECTED,
    metrics::RELEASED,
    metrics::STREAM_SECONDS,
    metrics::WAIT_SECONDS,
    metrics::WAITING,
    metrics::HEALTH,
    metrics::HEALTH_CHANGES,
    metrics::SHEDDING,
    metrics::BAD_CREDENTIALS,
    metrics::UNTRUSTED_HEADERS,
    metrics::JWKS_READS,
    metrics::QUOTA_MODE,
    metrics::QUOTA_MEMBERS,
    metrics::RESIDENT_BYTES,
    metrics::CPU_RATIO,
];

#[tokio::test]
async fn every_metric_is_exported_and_passes_promtool() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = set_default_local_recorder(&recorder);
    let builder = Admission::builder().total(3).per_user(2).wait(Duration::from_millis(20));
    let admission = builder.build(Quota::local());

    let open = [admission.admit(user("ada")).await.unwrap(), admission.admit(user("ada")).await.unwrap()];
    admission.admit(user("ada")).await.unwrap_err();
    let last = admission.admit(user("bob")).await.unwrap();
    admission.admit(user("eve")).await.unwrap_err(); // times out in the queue
    drop(last);
    use_everything(&admission).await;

    eventually("the sampler has run", Some(2.0), async || value(&page.render(), metrics::USED_STREAMS)).await;
    let text = page.render();
    for name in NAMES {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help text:\n{text}");
    }
    let expected = [
        ("forebay_admission_active_streams", 2.0),
        ("forebay_admission_admitted_total{class=\"user\"}", 4.0),
        ("forebay_admission_rejected_total{reason=\"user_limit\"}", 1.0),
        ("forebay_admission_rejected_total{reason=\"waited_in_vain\"}", 1.0),
        ("forebay_admission_rejected_total{reason=\"exhausted\"}", 0.0),
        ("forebay_admission_rejected_total{reason=\"credentials\"}", 2.0),
        ("forebay_admission_released_total", 2.0),
        ("forebay_admission_limit_streams{scope=\"total\"}", 3.0),
        ("forebay_admission_limit_streams{scope=\"user\"}", 2.0),
        ("forebay_admission_wait_seconds_count", 1.0),
        ("forebay_admission_stream_seconds_count", 2.0),
        ("forebay_admission_bad_credentials_total{reason=\"unknown_api_key\"}", 1.0),
        ("forebay_admission_bad_credentials_total{reason=\"malformed\"}", 1.0),
        ("forebay_admission_untrusted_headers_total{header=\"x-user-id\"}", 1.0),
        ("forebay_admission_untrusted_headers_total{header=\"x-forwarded-for\"}", 1.0),
        ("forebay_quota_mode{mode=\"normal\"}", 1.0),
        ("forebay_quota_mode{mode=\"rebuilding\"}", 0.0),
        ("forebay_quota_members", 1.0),
        ("forebay_admission_health_state{state=\"healthy\"}", 0.0),
    ];
    for (line, wanted) in expected {
        assert_eq!(value(&text, line), Some(wanted), "{line} in:\n{text}");
    }
    check_by_promtool(&text);
    drop(open);
}

/// Sends a valid key, a wrong key, a bad token and forged headers.
async fn use_everything(admission: &Admission) {
    let identify = by_key(&["carol"])
        .jwt(Jwt::secret(b"a secret that has more than thirty-two bytes").unwrap())
        .trusted_header()
        .address(ForwardedHeader::XForwardedFor);
    let service = AdmissionLayer::new(admission.clone(), identify)
        .layer(service_fn(async |_| Ok::<_, std::io::Error>(Response::new(String::new()))));
    let send = async |headers: &[(&str, &str)]| {
        let builder = Request::get("/").extension(PeerAddr("203.0.113.9:1".parse().unwrap()));
        let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        service.clone().oneshot(builder.body(String::new()).unwrap()).await.unwrap().status().as_u16()
    };
    let forged = ("x-user-id", "admin");
    assert_eq!(send(&[("x-api-key", "key-of-carol"), forged, ("x-forwarded-for", "1.1.1.1")]).await, 200);
    assert_eq!(send(&[("x-api-key", "guess")]).await, 401);
    assert_eq!(send(&[("authorization", "Bearer guess")]).await, 401);
}

/// Returns the value of the first line with this start.
fn value(page: &str, begin: &str) -> Option<f64> {
    let rest = page.lines().find_map(|line| line.strip_prefix(begin)?.strip_prefix(' '));
    rest.map(|value| value.parse().unwrap())
}

fn check_by_promtool(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool is installed (Debian: prometheus)");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}\n{page}", String::from_utf8_lossy(&output_text));
}
