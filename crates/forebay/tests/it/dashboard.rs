//! The page at `/` of the admin address, in a browser.

use std::net::SocketAddr;

use forebay_sandbox::Postgres;
use serde_json::json;

use crate::chromium::Chromium;
use crate::gate::{Gate, forebay};
use crate::origin::Streams;
use crate::serve::support::{ServeFixture, path};
use crate::wire::{Client, until};

const ITEMS: &str =
    "CREATE TABLE items (id int PRIMARY KEY, title text); INSERT INTO items VALUES (1, 'one'), (2, 'two')";
const ALL_HOLD: &str = "document.querySelectorAll('#conditions [data-holds=true]').length === 7";

fn page(admin: SocketAddr) -> String {
    format!("http://{admin}/")
}

/// Nothing was complained about, and nobody else was asked.
#[track_caller]
fn is_quiet(browser: &Chromium, admin: SocketAddr) {
    assert_eq!(browser.complaints(), [""; 0]);
    let host = format!("{admin}/");
    let is_foreign = |url: &String| {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        !rest.split_once('@').map_or(rest, |(_, rest)| rest).starts_with(&host)
    };
    let foreign: Vec<_> = browser.requested().into_iter().filter(is_foreign).collect();
    assert_eq!(foreign, [""; 0]);
}

#[tokio::test]
async fn the_conditions_change_when_postgres_stops_and_hold_again_when_it_is_back() {
    let postgres: &Postgres = Box::leak(Box::new(Postgres::start().unwrap()));
    let place = ServeFixture::on_postgres(postgres, ITEMS);
    let serve = place.serve().await;
    serve.reader(&[("table", "items")]).await;
    let browser = Chromium::open(&page(serve.admin), "dashboard");
    browser.until(ALL_HOLD).await;
    assert_eq!(browser.text("#health"), "Active");
    assert_eq!(browser.text("#step"), "Running: streaming");
    assert_eq!(browser.text("#conditions-sum"), "7 of 7 hold");
    browser.until("document.querySelector('#shapes tbody tr')?.cells[2].innerText === '2'").await;
    assert_eq!(browser.ask("document.querySelectorAll('#tank [data-is=ready]').length > 0"), true);

    postgres.stop().unwrap();
    browser
        .until(
            "document.querySelector('[data-condition=replication_client_ready]').dataset.holds === 'false'",
        )
        .await;
    browser.until("!document.querySelector('#trouble').hidden").await;
    assert_ne!(browser.text("#health"), "Active");
    browser.until("document.querySelector('[data-plot=lag] .now').innerText === '–'").await;

    postgres.revive().unwrap();
    browser.until(ALL_HOLD).await;
    browser.until("document.querySelector('#health').innerText === 'Active'").await;
    browser.until("document.querySelector('#trouble').hidden").await;
    is_quiet(&browser, serve.admin);
}

#[tokio::test]
async fn a_page_says_that_its_server_is_gone_and_goes_on_when_it_is_back() {
    let origin = Streams::start().await;
    let gate = Gate::start(&origin.url(), &["--stream-route", "GET /stream", "--total", "50"]);
    let admin = gate.admin;
    let browser = Chromium::open(&page(admin), "dashboard-gate");
    browser.until("document.querySelector('#link').dataset.link === 'live'").await;
    assert_eq!(browser.text("#health"), "Ready");
    assert_eq!(browser.text("#upstream-url"), origin.url());
    assert_eq!(browser.text("#routes"), "GET /stream");
    assert_eq!(browser.ask("document.querySelector('#h-shapes').offsetParent"), serde_json::Value::Null);

    drop(gate);
    browser
        .until("document.querySelector('#lost').innerText.startsWith('No connection to this server')")
        .await;
    assert_eq!(browser.ask("document.querySelector('main').dataset.stale"), "true");

    let mut again = forebay(&["gate", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    again.args(["--upstream", &origin.url(), "--admin", &admin.to_string()]);
    let _again = Gate::run(again, "the gate listens");
    browser.until("document.querySelector('#link').dataset.link === 'live'").await;
    browser.until("document.querySelector('#lost').hidden").await;
    // That nobody answered is what the test did; whatever else is wrong counts.
    let others: Vec<_> =
        browser.complaints().into_iter().filter(|text| !text.contains("net::ERR_")).collect();
    assert_eq!(others, [""; 0]);
    assert!(browser.requested().iter().all(|url| url.starts_with(&page(admin))), "{:?}", browser.requested());
}

#[tokio::test]
async fn there_is_something_to_see_without_a_shape_and_with_many() {
    let place = ServeFixture::new(ITEMS);
    let serve = place.serve().await;
    let browser = Chromium::open(&page(serve.admin), "dashboard-shapes");
    browser.until("!document.querySelector('#shapes-none').hidden").await;
    assert!(browser.text("#shapes-none").contains("/v1/shape?table="), "how to make the first");
    for number in 0..60 {
        let clause = format!("id > {number}");
        serve.reader(&[("table", "items"), ("where", &clause)]).await;
    }
    let secret =
        [("table", "items"), ("where", "title = $1"), ("params[1]", "a-secret"), ("columns", "id,title")];
    let reader = serve.reader(&secret).await;
    let _stream = serve.events(&reader).await;
    browser.until("document.querySelector('#shapes-sum').innerText.startsWith('61 shapes')").await;
    assert_eq!(browser.ask("document.querySelectorAll('#shapes tbody tr').length"), 20);
    // The one with a stream is the first, and its value is nowhere.
    browser.until("document.querySelector('#shapes tbody tr').cells[4].innerText === '1'").await;
    for width in [390, 700, 1280] {
        let screen = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == 390});
        browser.order("Emulation.setDeviceMetricsOverride", screen);
        let sticks_out = browser.ask("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(sticks_out, false, "at a width of {width}");
    }
    let first = browser.text("#shapes tbody tr");
    assert!(first.contains("title = '…'") && first.contains("items (id, title)"), "{first}");
    assert!(!browser.ask("document.documentElement.outerHTML").as_str().unwrap().contains("a-secret"));
    assert!(!serve.status().await.to_string().contains("a-secret"));
    is_quiet(&browser, serve.admin);
}

#[tokio::test]
async fn everything_is_reached_by_keyboard() {
    let place = ServeFixture::new(ITEMS);
    let serve = place.serve().await;
    for clause in ["id = 1", "id > 0"] {
        serve.reader(&[("table", "items"), ("where", clause)]).await;
    }
    let browser = Chromium::open(&page(serve.admin), "dashboard-keyboard");
    browser.until("document.querySelectorAll('#shapes tbody tr').length === 2").await;
    let focused = || {
        let name = "(({ id, dataset, className, tagName, textContent }) => \
             dataset.plot ?? dataset.sort ?? (className || (tagName === 'A' ? textContent : tagName)))(document.activeElement)";
        browser.ask(name).as_str().unwrap().to_owned()
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
                browser.ask("document.activeElement.click()");
                browser.until("document.querySelector('#shapes tbody tr').cells[2].innerText === '2'").await;
                assert_eq!(browser.ask("document.activeElement.parentElement.ariaSort"), "descending");
            }
            _ => {}
        }
    }
    let wanted = ["skip", "lag", "retained", "streams", "scroll", "table", "rows", "bytes", "streams"];
    assert_eq!(reached[..wanted.len()], wanted);
    assert_eq!(reached[wanted.len()..], ["status", "metrics", "readiness"]);
    let unnamed = browser.ask(
        "[...document.querySelectorAll('section, button, a, [tabindex=\"0\"], [role=img]')].filter((element) => \
            !element.textContent.trim() && !element.ariaLabel && !element.getAttribute('aria-labelledby')).length",
    );
    assert_eq!(unnamed, 0, "all have a name");
    is_quiet(&browser, serve.admin);
}

#[tokio::test]
async fn no_script_but_its_own_runs_and_nobody_may_frame_it() {
    let origin = Streams::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let head = gate.admin("/").await.head;
    let policy = head.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'", "script-src 'sha256-"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(head.header("access-control-allow-origin"), None);
    let browser = Chromium::open(&page(gate.admin), "dashboard-policy");
    browser.until("document.querySelector('#link').dataset.link === 'live'").await;
    assert_eq!(browser.complaints(), [""; 0], "its own do");
    let script = "(() => { const other = document.createElement('script'); other.textContent = 'window.ran = true'; \
         document.body.append(other); return window.ran === undefined; })()";
    assert_eq!(browser.ask(script), true);
}

/// Of the brightness of what is written on it, as WCAG has it.
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
async fn with_the_secret_everything_is_seen_light_and_dark_on_a_desk_and_in_a_hand() {
    let place = ServeFixture::new(ITEMS);
    let hash = |key: &str| {
        let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let keys = std::env::temp_dir().join(format!("forebay-{}-dashboard.keys", std::process::id()));
    std::fs::write(&keys, format!("{} alice\n{} bob\n", hash("key-of-alice"), hash("key-of-bob"))).unwrap();
    let settings =
        [("FOREBAY_ADMIN_SECRET", "s3cr3t"), ("FOREBAY_IDENTITY_API_KEYS_FILE", keys.to_str().unwrap())];
    let serve = place.serve_with(&settings).await;
    let reader = serve.reader(&[("table", "items"), ("where", "id > 0")]).await;
    serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut streams = Vec::new();
    for (user, count) in [("alice", 3), ("bob", 1)] {
        for _ in 0..count {
            let mut stream = Client::get(serve.addr, &live, &[&format!("X-API-Key: key-of-{user}")]).await;
            assert_eq!(stream.head().await.status, 200);
            streams.push(stream);
        }
    }

    // A browser that was told the secret once says it each time, to the page's own requests as well.
    let browser = Chromium::open(&format!("http://anybody:s3cr3t@{}/", serve.admin), "dashboard-secret");
    browser.until("document.querySelector('#command').innerText === 'serve'").await;
    browser.go(&page(serve.admin));
    browser.until(ALL_HOLD).await;
    browser.until("document.querySelectorAll('#users li').length === 2").await;
    let top = browser.text("#users li");
    assert!(top.ends_with('3') && !top.contains("alice"), "{top}");
    assert_eq!(browser.ask("document.querySelectorAll('#ages i').length > 0"), true);
    assert!(browser.text("#ages-sum").contains("Oldest "), "{}", browser.text("#ages-sum"));
    let since = "[...document.querySelectorAll('#conditions .since')].every((since) => /^for \\d/.test(since.innerText))";
    assert_eq!(browser.ask(since), true, "{}", browser.text("#conditions"));
    assert!(browser.text("#admission-why").contains("healthy for "), "{}", browser.text("#admission-why"));

    let folder = std::env::var_os("FOREBAY_SCREENSHOTS").map(std::path::PathBuf::from);
    for scheme in ["light", "dark"] {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        browser.order("Emulation.setEmulatedMedia", json!({"features": [feature]}));
        for (device, width, height) in [("desktop", 1280, 900), ("phone", 390, 844)] {
            let is_phone = device == "phone";
            let screen =
                json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": is_phone});
            browser.order("Emulation.setDeviceMetricsOverride", screen);
            let is_dark =
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 64)";
            assert_eq!(browser.ask(is_dark), scheme == "dark", "{scheme} {device}");
            let sticks_out = browser.ask("document.documentElement.scrollWidth > innerWidth");
            assert_eq!(sticks_out, false, "{scheme} {device}");
            for words in ["h1, h2, h3", ".quiet", ".pill", "td, th", "#conditions .name", "a"] {
                let ratio = browser.ask(&format!("{CONTRAST}({words:?})")).as_f64().unwrap();
                assert!(ratio >= 4.5, "{scheme} {device}: {words} has a contrast of {ratio}");
            }
            if let Some(folder) = &folder {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(folder.join(format!("{scheme}-{device}.png")), browser.picture()).unwrap();
            }
        }
    }
    is_quiet(&browser, serve.admin);
    drop(streams);
    std::fs::remove_file(&keys).unwrap();
}

#[tokio::test]
async fn only_so_many_pages_look_at_a_time_and_one_that_leaves_makes_room() {
    let origin = Streams::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let mut pages = Vec::new();
    for _ in 0..32 {
        let mut page = Client::get(gate.admin, "/v1/events", &[]).await;
        let head = page.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        let first = String::from_utf8(page.chunk().await.unwrap()).unwrap();
        assert!(first.starts_with("retry: 1000\nevent: history\ndata: ["), "{first}");
        pages.push(page);
    }
    let refused = gate.admin("/v1/events").await;
    assert_eq!((refused.head.status, &refused.json()["error"]), (503, &"too_many_pages".into()));
    pages.pop();
    until("there is room again", async || {
        let mut page = Client::get(gate.admin, "/v1/events", &[]).await;
        page.head().await.status == 200
    })
    .await;
    // HEAD takes no place.
    let mut head = Client::connect(gate.admin).await;
    head.request("HEAD", "/v1/events", &[], "").await;
    assert_eq!(head.head().await.status, 200);
}
