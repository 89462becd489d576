//! Dashboard: the page at `/` of the admin address, in a browser.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_sandbox::Postgres;
use serde_json::json;
use tokio::time::sleep;

use crate::chromium::Chromium;
use crate::forebay_process::{ForebayProcess, forebay};
use crate::limits::open_stream;
use crate::serve::support::{ServeFixture, path};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until, within};

const ITEMS: &str =
    "CREATE TABLE items (id int PRIMARY KEY, title text); INSERT INTO items VALUES (1, 'one'), (2, 'two')";
const ALL_HOLD: &str = "document.querySelectorAll('#conditions [data-holds=true]').length === 7";

/// Interval of repeated requests.
const RETRY: Duration = Duration::from_millis(20);

fn page(admin: SocketAddr) -> String {
    format!("http://{admin}/")
}

/// Fails if the console has errors, or a request went to another host.
#[track_caller]
fn assert_no_errors_or_foreign_requests(browser: &Chromium, admin: SocketAddr) {
    assert_eq!(browser.console_errors(), [""; 0]);
    let host = format!("{admin}/");
    let is_foreign = |url: &String| {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        !rest.split_once('@').map_or(rest, |(_, rest)| rest).starts_with(&host)
    };
    let foreign: Vec<_> = browser.requested_urls().into_iter().filter(is_foreign).collect();
    assert_eq!(foreign, [""; 0]);
}

#[tokio::test]
async fn conditions_fail_when_postgres_stops_and_hold_again_when_it_returns() {
    let postgres: &Postgres = Box::leak(Box::new(Postgres::start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, ITEMS);
    let serve = fixture.serve().await;
    serve.reader(&[("table", "items")]).await;
    let browser = Chromium::open(&page(serve.admin), "dashboard");
    browser.wait_until(ALL_HOLD).await;
    assert_eq!(browser.text("#health"), "Active");
    assert_eq!(browser.text("#step"), "Running: streaming");
    assert_eq!(browser.text("#conditions-sum"), "7 of 7 hold");
    browser.wait_until("document.querySelector('#shapes tbody tr')?.cells[2].innerText === '2'").await;
    assert_eq!(browser.evaluate("document.querySelectorAll('#tank [data-is=ready]').length > 0"), true);

    postgres.stop().unwrap();
    browser
        .wait_until(
            "document.querySelector('[data-condition=replication_client_ready]').dataset.holds === 'false'",
        )
        .await;
    browser.wait_until("!document.querySelector('#trouble').hidden").await;
    assert_ne!(browser.text("#health"), "Active");
    browser.wait_until("document.querySelector('[data-plot=lag] .now').innerText === '–'").await;

    postgres.revive().unwrap();
    browser.wait_until(ALL_HOLD).await;
    browser.wait_until("document.querySelector('#health').innerText === 'Active'").await;
    browser.wait_until("document.querySelector('#trouble').hidden").await;
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
}

#[tokio::test]
async fn the_page_shows_how_many_commits_arrived_and_when_the_last_one_did() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve().await;
    serve.reader(&[("table", "items")]).await;
    let browser = Chromium::open(&page(serve.admin), "dashboard-commits");
    browser.wait_until(ALL_HOLD).await;
    let positions = "document.querySelector('#positions').innerText";
    browser.wait_until(&format!("{positions}.startsWith('no commit on this connection yet')")).await;
    for (commits, text) in [(1, "1 commit"), (2, "2 commits"), (3, "3 commits")] {
        fixture.sql(&format!("INSERT INTO items VALUES (10 + {commits}, 'new')"));
        let shown = format!("/^{text}, the last \\d+.(s|min) ago/.test({positions})");
        browser.wait_until(&shown).await;
    }
    // Everything is durable: lag is zero, and the last commit is still shown.
    until("everything is durable", async || {
        let lag = serve.status().await["positions"]["lag"].clone();
        lag["secs"] == 0 && lag["nanos"] == 0
    })
    .await;
    browser.wait_until(&format!("!{positions}.includes('behind')")).await;
    assert!(browser.text("#positions").starts_with("3 commits, the last "), "{}", browser.text("#positions"));
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
}

#[tokio::test]
async fn the_page_shows_why_the_database_is_unfit_and_when_it_is_retried() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.spawn(&[("DATABASE_URL", &fixture.postgres.url("nowhere"))]);
    serve.wait_for_log("manager halted");
    let browser = Chromium::open(&page(serve.admin), "dashboard-unfit");
    browser.wait_until("document.querySelector('#step').innerText === 'Halted'").await;
    assert_eq!(browser.text("#health"), "Database unfit");
    assert!(browser.text("#step-for").contains("next attempt in "), "{}", browser.text("#step-for"));
    let trouble = browser.text("#trouble");
    assert!(trouble.contains("database \"nowhere\" does not exist"), "{trouble}");
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
}

#[tokio::test]
async fn the_page_shows_the_adaptive_limit_beside_the_total() {
    let origin = StreamingUpstream::start().await;
    let floor = [("FOREBAY_ADMISSION_ADAPTIVE_FLOOR", "7")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "50"], &floor);
    let _stream = open_stream(&gate, "/", &[]).await.unwrap();
    let browser = Chromium::open(&page(gate.admin), "dashboard-adaptive");
    let shown = "document.querySelector('#admission-why').innerText";
    browser.wait_until(&format!("{shown}.includes('2 % of 50 in total · 1 of at present 7 here')")).await;
    // The limit rises while it refuses requests. Then failed starts lower it.
    let mut streams = Vec::new();
    while streams.len() < 10 {
        streams.extend(open_stream(&gate, "/", &[]).await);
        sleep(RETRY).await;
    }
    drop((origin, streams));
    let failing = async || {
        while !browser.text("#admission-why").contains(" ago: errors") {
            HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await;
            sleep(RETRY).await;
        }
    };
    within("the cause is shown", failing()).await;
    assert_no_errors_or_foreign_requests(&browser, gate.admin);
}

#[tokio::test]
async fn the_page_reports_a_lost_server_and_resumes_when_it_returns() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--stream-route", "GET /stream", "--total", "50"]);
    let admin = gate.admin;
    let browser = Chromium::open(&page(admin), "dashboard-gate");
    browser.wait_until("document.querySelector('#link').dataset.link === 'live'").await;
    assert_eq!(browser.text("#health"), "Ready");
    assert_eq!(browser.text("#upstream-url"), origin.url());
    assert_eq!(browser.text("#routes"), "GET /stream");
    assert_eq!(browser.evaluate("document.querySelector('#h-shapes').offsetParent"), serde_json::Value::Null);

    drop(gate);
    browser
        .wait_until("document.querySelector('#lost').innerText.startsWith('No connection to this server')")
        .await;
    assert_eq!(browser.evaluate("document.querySelector('main').dataset.stale"), "true");

    let mut again = forebay(&["gate", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    again.args(["--upstream", &origin.url(), "--admin", &admin.to_string()]);
    let _again = ForebayProcess::run(again, "gate listening");
    browser.wait_until("document.querySelector('#link').dataset.link === 'live'").await;
    browser.wait_until("document.querySelector('#lost').hidden").await;
    // Network errors are expected, because the test ended the gate; other errors are not.
    let other_errors: Vec<_> =
        browser.console_errors().into_iter().filter(|text| !text.contains("net::ERR_")).collect();
    assert_eq!(other_errors, [""; 0]);
    assert!(
        browser.requested_urls().iter().all(|url| url.starts_with(&page(admin))),
        "{:?}",
        browser.requested_urls()
    );
}

#[tokio::test]
async fn the_shape_list_shows_a_hint_when_empty_and_20_rows_of_many() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve().await;
    let browser = Chromium::open(&page(serve.admin), "dashboard-shapes");
    browser.wait_until("!document.querySelector('#shapes-none').hidden").await;
    assert!(
        browser.text("#shapes-none").contains("/v1/shape?table="),
        "the page shows how to create a shape"
    );
    for number in 0..60 {
        let clause = format!("id > {number}");
        serve.reader(&[("table", "items"), ("where", &clause)]).await;
    }
    let secret =
        [("table", "items"), ("where", "title = $1"), ("params[1]", "a-secret"), ("columns", "id,title")];
    let reader = serve.reader(&secret).await;
    let _stream = serve.events(&reader).await;
    browser.wait_until("document.querySelector('#shapes-sum').innerText.startsWith('61 shapes')").await;
    assert_eq!(browser.evaluate("document.querySelectorAll('#shapes tbody tr').length"), 20);
    // The shape with a stream is listed first. The value of its parameter is shown nowhere.
    browser.wait_until("document.querySelector('#shapes tbody tr').cells[4].innerText === '1'").await;
    for width in [390, 700, 1280] {
        let screen = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == 390});
        browser.command("Emulation.setDeviceMetricsOverride", screen);
        let overflows = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(overflows, false, "at a width of {width}");
    }
    let first = browser.text("#shapes tbody tr");
    assert!(first.contains("title = '…'") && first.contains("items (id, title)"), "{first}");
    assert!(!browser.evaluate("document.documentElement.outerHTML").as_str().unwrap().contains("a-secret"));
    assert!(!serve.status().await.to_string().contains("a-secret"));
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
}

#[tokio::test]
async fn every_control_is_reachable_by_keyboard() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve().await;
    for clause in ["id = 1", "id > 0"] {
        serve.reader(&[("table", "items"), ("where", clause)]).await;
    }
    let browser = Chromium::open(&page(serve.admin), "dashboard-keyboard");
    browser.wait_until("document.querySelectorAll('#shapes tbody tr').length === 2").await;
    // The first sample can be older than the stream; it has no lag to read.
    browser.wait_until("document.querySelector('[data-plot=lag] .now').innerText !== '–'").await;
    let focused = || {
        let name = "(({ id, dataset, className, tagName, textContent }) => \
             dataset.plot ?? dataset.sort ?? (className || (tagName === 'A' ? textContent : tagName)))(document.activeElement)";
        browser.evaluate(name).as_str().unwrap().to_owned()
    };
    let mut reached = Vec::new();
    while reached.len() < 20 && reached.last().is_none_or(|last| last != "readiness") {
        browser.press("Tab");
        reached.push(focused());
        match reached.last().unwrap().as_str() {
            "lag" => {
                browser.press("ArrowLeft");
                let read = browser.text("[data-plot=lag] output");
                assert!(read.contains(" ago"), "{read}");
            }
            "rows" => {
                browser.evaluate("document.activeElement.click()");
                browser
                    .wait_until("document.querySelector('#shapes tbody tr').cells[2].innerText === '2'")
                    .await;
                assert_eq!(browser.evaluate("document.activeElement.parentElement.ariaSort"), "descending");
            }
            _ => {}
        }
    }
    let wanted =
        ["skip", "lag", "retained", "streams", "SUMMARY", "scroll", "table", "rows", "bytes", "streams"];
    assert_eq!(reached[..wanted.len()], wanted);
    assert_eq!(reached[wanted.len()..], ["status", "streams", "metrics", "readiness"]);
    let unnamed = browser.evaluate(
        "[...document.querySelectorAll('section, button, a, [tabindex=\"0\"], [role=img]')].filter((element) => \
            !element.textContent.trim() && !element.ariaLabel && !element.getAttribute('aria-labelledby')).length",
    );
    assert_eq!(unnamed, 0, "elements without an accessible name");
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
}

#[tokio::test]
async fn only_the_pages_own_script_runs_and_no_site_can_frame_it() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let head = gate.admin("/").await.head;
    let policy = head.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'", "script-src 'sha256-"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(head.header("access-control-allow-origin"), None);
    let browser = Chromium::open(&page(gate.admin), "dashboard-policy");
    browser.wait_until("document.querySelector('#link').dataset.link === 'live'").await;
    assert_eq!(browser.console_errors(), [""; 0], "the page's own script runs");
    let script = "(() => { const other = document.createElement('script'); other.textContent = 'window.ran = true'; \
         document.body.append(other); return window.ran === undefined; })()";
    assert_eq!(browser.evaluate(script), true);
}

/// Script that returns the lowest contrast ratio (WCAG) between text and background of the selected
/// elements.
const CONTRAST: &str = "((selector) => { \
    const light = (color) => { const [r, g, b] = color.match(/[\\d.]+/g).map((part) => part / 255) \
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)); \
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; \
    const behind = (element) => { const color = getComputedStyle(element).backgroundColor; \
        return color === 'rgba(0, 0, 0, 0)' && element.parentElement ? behind(element.parentElement) : color; }; \
    const ratios = [...document.querySelectorAll(selector)].filter((element) => element.offsetParent && element.textContent.trim()) \
        .map((element) => [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a)) \
        .map(([more, less]) => (more + 0.05) / (less + 0.05)); \
    return Math.min(...ratios); })";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_secret_the_page_is_readable_light_and_dark_on_desktop_and_phone() {
    let fixture = ServeFixture::new(ITEMS);
    let hash = |key: &str| {
        let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let keys = std::env::temp_dir().join(format!("forebay-{}-dashboard.keys", std::process::id()));
    std::fs::write(&keys, format!("{} alice\n{} bob\n", hash("key-of-alice"), hash("key-of-bob"))).unwrap();
    let settings =
        [("FOREBAY_ADMIN_SECRET", "s3cr3t"), ("FOREBAY_IDENTITY_API_KEYS_FILE", keys.to_str().unwrap())];
    let serve = fixture.serve_with(&settings).await;
    let reader = serve.reader(&[("table", "items"), ("where", "id > 0")]).await;
    serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut streams = Vec::new();
    for (user, count) in [("alice", 3), ("bob", 1)] {
        for _ in 0..count {
            let mut stream =
                HttpConnection::get(serve.addr, &live, &[&format!("X-API-Key: key-of-{user}")]).await;
            assert_eq!(stream.head().await.status, 200);
            streams.push(stream);
        }
    }

    // The browser keeps the credentials of the first URL and sends them with the page's own
    // requests.
    let browser = Chromium::open(&format!("http://anybody:s3cr3t@{}/", serve.admin), "dashboard-secret");
    browser.wait_until("document.querySelector('#command').innerText === 'serve'").await;
    browser.go(&page(serve.admin));
    browser.wait_until(ALL_HOLD).await;
    browser.wait_until("document.querySelectorAll('#users li').length === 2").await;
    let top = browser.text("#users li");
    assert!(top.ends_with('3') && !top.contains("alice"), "{top}");
    assert_eq!(browser.evaluate("document.querySelectorAll('#ages i').length > 0"), true);
    assert!(browser.text("#ages-sum").contains("Oldest "), "{}", browser.text("#ages-sum"));
    let since = "[...document.querySelectorAll('#conditions .since')].every((since) => /^for \\d/.test(since.innerText))";
    assert_eq!(browser.evaluate(since), true, "{}", browser.text("#conditions"));
    assert!(browser.text("#admission-why").contains("healthy for "), "{}", browser.text("#admission-why"));

    let folder = std::env::var_os("FOREBAY_SCREENSHOTS").map(std::path::PathBuf::from);
    for scheme in ["light", "dark"] {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        browser.command("Emulation.setEmulatedMedia", json!({"features": [feature]}));
        for (device, width, height) in [("desktop", 1280, 900), ("phone", 390, 844)] {
            let is_phone = device == "phone";
            let screen =
                json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": is_phone});
            browser.command("Emulation.setDeviceMetricsOverride", screen);
            let is_dark =
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 64)";
            assert_eq!(browser.evaluate(is_dark), scheme == "dark", "{scheme} {device}");
            let overflows = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
            assert_eq!(overflows, false, "{scheme} {device}");
            for words in ["h1, h2, h3", ".quiet", ".pill", "td, th", "#conditions .name", "a"] {
                let ratio = browser.evaluate(&format!("{CONTRAST}({words:?})")).as_f64().unwrap();
                assert!(ratio >= 4.5, "{scheme} {device}: {words} has a contrast of {ratio}");
            }
            if let Some(folder) = &folder {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(folder.join(format!("{scheme}-{device}.png")), browser.screenshot()).unwrap();
            }
        }
    }
    assert_no_errors_or_foreign_requests(&browser, serve.admin);
    drop(streams);
    std::fs::remove_file(&keys).unwrap();
}

#[tokio::test]
async fn at_most_32_pages_are_connected_and_a_closed_page_frees_a_slot() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut pages = Vec::new();
    for _ in 0..32 {
        let mut page = HttpConnection::get(gate.admin, "/v1/events", &[]).await;
        let head = page.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        let first = String::from_utf8(page.chunk().await.unwrap()).unwrap();
        assert!(first.starts_with("retry: 1000\nevent: history\ndata: ["), "{first}");
        pages.push(page);
    }
    let refused = gate.admin("/v1/events").await;
    assert_eq!((refused.head.status, &refused.json()["error"]), (503, &"too_many_pages".into()));
    pages.pop();
    until("a slot is free again", async || {
        let mut page = HttpConnection::get(gate.admin, "/v1/events", &[]).await;
        page.head().await.status == 200
    })
    .await;
    // A HEAD request takes no slot.
    let mut head = HttpConnection::connect(gate.admin).await;
    head.request("HEAD", "/v1/events", &[], "").await;
    assert_eq!(head.head().await.status, 200);
}
