//! Live requests: long-poll and server-sent events, and their permits.

use std::time::Instant;

use super::support::{ServeFixture, SseEvent, SseStream, changes, path, summarize};
use crate::wire::until;

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];

#[tokio::test]
async fn a_long_poll_waits_for_a_change_or_its_timeout() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "400")]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let live = [reader.params(), vec![("live", "true")]].concat();
    let started = Instant::now();
    let silent = serve.get(&live).await;
    assert!(started.elapsed().as_millis() >= 400);
    let header = |name| silent.head.header(name);
    assert_eq!((silent.head.status, header("electric-up-to-date")), (200, Some("")));
    assert_eq!(header("cache-control"), Some("public, max-age=5, stale-while-revalidate=5"));
    assert_eq!((header("electric-has-data"), header("electric-schema")), (Some("false"), None));
    assert_eq!(header("electric-offset"), Some(&*reader.offset));
    let cursor: u64 = header("electric-cursor").unwrap().parse().unwrap();
    assert_eq!(silent.json().as_array().unwrap().len(), 1);
    reader.accept(&silent);
    let later: u64 = {
        let again = serve.get(&[reader.params(), vec![("live", "true")]].concat()).await;
        again.head.header("electric-cursor").unwrap().parse().unwrap()
    };
    assert!(later > cursor, "the cursor rises: {cursor}, {later}");

    let mut waits = serve.start_get(&[reader.params(), vec![("live", "")]].concat()).await;
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    let response = waits.response().await;
    // On a busy machine the change may come after the timeout. Then it is in the next response.
    let mut messages = reader.accept(&response);
    if changes(&messages).is_empty() {
        messages = reader.live_changes(&serve, 1).await;
    }
    assert_eq!(summarize(&messages), ["insert 2"]);
    let last = messages.last().unwrap();
    assert_eq!(last["headers"]["control"], "up-to-date");
}

#[tokio::test]
async fn all_live_requests_end_when_their_shape_is_deleted() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_ALLOW_DELETE", "true")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let mut waits = serve.start_get(&[reader.params(), vec![("live", "true")]].concat()).await;
    let mut events = serve.events(&reader).await;
    until("both requests wait", async || serve.status().await["admission"]["total_connections"] == 2).await;
    assert_eq!(serve.request("DELETE", "/v1/shape?table=items", &[], "").await.head.status, 202);
    let moved = waits.response().await;
    assert_eq!(moved.head.status, 409, "{}", moved.head.text);
    let handle = moved.head.header("electric-handle").unwrap();
    assert_ne!(handle, reader.handle);
    assert_eq!(events.next().await, SseEvent::End, "the stream ends, and the next request gets a 409");
    let again = serve.events(&reader).await;
    assert_eq!((again.head.status, again.head.header("electric-handle")), (409, Some(handle)));
}

#[tokio::test]
async fn events_come_as_they_happen_and_never_twice() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let settings = [("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "150"), ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "6000")];
    let serve = fixture.serve_with(&settings).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let started = Instant::now();
    let mut events = serve.events(&reader).await;
    let header = |name| events.head.header(name);
    assert_eq!((events.head.status, header("content-type")), (200, Some("text/event-stream")));
    // A cache may share the response for one second less than the stream lasts.
    assert_eq!(header("cache-control"), Some("public, max-age=5"));
    assert_eq!(header("content-encoding"), None);
    assert_eq!(header("electric-handle"), Some(&*reader.handle));
    assert!(header("electric-cursor").is_some());
    assert_eq!(header("electric-offset"), Some(&*reader.offset));
    fixture.sql(
        "BEGIN; INSERT INTO items VALUES (2, 'two'); UPDATE items SET note = 'uno' WHERE id = 1; COMMIT",
    );
    let (messages, seen) = events.until_up_to_date().await;
    assert_eq!(summarize(&messages), ["insert 2", "update 1"]);
    let lsn: u64 = messages[0]["headers"]["lsn"].as_str().unwrap().parse().unwrap();
    assert!(seen > lsn, "up-to-date is after the changes");
    let mut next = events.next().await;
    assert_eq!(next, SseEvent::KeepAlive);
    while next == SseEvent::KeepAlive {
        next = events.next().await;
    }
    assert_eq!(next, SseEvent::End);
    assert!(started.elapsed().as_millis() >= 6000);

    // The published client resumes like this.
    reader.offset = format!("{seen}_0");
    let mut events = serve.events(&reader).await;
    fixture.sql("INSERT INTO items VALUES (3, 'three')");
    assert_eq!(summarize(&events.until_up_to_date().await.0), ["insert 3"]);
    let mut poll = reader.clone();
    assert_eq!(summarize(&poll.live_changes(&serve, 1).await), ["insert 3"]);
    assert_eq!(summarize(&reader.catch_up(&serve).await), ["insert 3"]);
}

#[tokio::test]
async fn a_stream_that_is_far_behind_gets_everything_in_order() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_STORAGE_CHUNK_BYTES", "65536")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let mut ahead = reader.clone();
    for part in 0..20 {
        fixture.sql(&format!(
            "INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series({part} * 500 + 2, {part} * 500 + 501) i"
        ));
    }
    ahead.live_changes(&serve, 10_000).await;
    let mut events = serve.events(&reader).await;
    // A slow client gets up-to-dates between transactions too.
    let mut ids: Vec<u64> = Vec::new();
    while ids.len() < 10_000 {
        let (messages, _) = events.until_up_to_date().await;
        ids.extend(messages.iter().map(|row| row["value"]["id"].as_str().unwrap().parse::<u64>().unwrap()));
        assert_eq!(ids.len() % 500, 0, "an up-to-date inside a transaction");
    }
    assert!(ids.iter().copied().eq(2..=10_001), "{} rows", ids.len());
    // One transaction that is larger than the buffer for followers.
    fixture.sql("UPDATE items SET note = repeat('y', 100)");
    let (messages, _) = events.until_up_to_date().await;
    assert_eq!(messages.len(), 10_001);
    let last = |at: usize| messages[at]["headers"].get("last").is_some();
    assert!(last(10_000) && !(0..10_000).any(last));
}

/// A client that reads late falls behind the buffer and continues from the log. The others get
/// their changes from the topic.
#[tokio::test(flavor = "multi_thread")]
async fn many_streams_of_one_shape_get_everything_in_order_and_keep_alives() {
    async fn ids(events: &mut SseStream, last: u64) {
        let mut next = 2;
        while next <= last {
            for row in events.until_up_to_date().await.0 {
                assert_eq!(row["value"]["id"], next.to_string());
                next += 1;
            }
        }
    }
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "150")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let mut late = serve.events(&reader).await;
    let mut prompt = Vec::new();
    for _ in 0..12 {
        let mut events = serve.events(&reader).await;
        prompt.push(tokio::spawn(async move {
            ids(&mut events, 301).await;
            events
        }));
    }
    fixture.sql(
        "DO $$ BEGIN FOR i IN 2..301 LOOP
            INSERT INTO items VALUES (i, repeat('x', CASE i % 4 WHEN 0 THEN 100000 ELSE 100 END)); COMMIT;
        END LOOP; END $$",
    );
    let mut followers = Vec::new();
    for reading in prompt {
        followers.push(reading.await.unwrap());
    }
    ids(&mut late, 301).await;
    followers.push(late);
    for events in &mut followers {
        assert_eq!(events.next().await, SseEvent::KeepAlive);
    }
    fixture.sql("INSERT INTO items VALUES (302, 'last')");
    for events in &mut followers {
        assert_eq!(summarize(&events.until_up_to_date().await.0), ["insert 302"]);
        assert_eq!(events.next().await, SseEvent::KeepAlive);
    }
}

#[tokio::test]
async fn only_live_requests_need_a_permit() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let settings = [
        ("FOREBAY_ADMISSION_TOTAL", "3"),
        ("FOREBAY_ADMISSION_PER_USER", "1"),
        ("FOREBAY_IDENTITY_BY_ADDRESS", "true"),
    ];
    let serve = fixture.serve_with(&settings).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let first = serve.events(&reader).await;
    assert_eq!(first.head.status, 200);
    let live = path(&[reader.params(), vec![("live", "true")]].concat());
    let second = serve.request("GET", &live, &["Origin: https://app.example"], "").await;
    assert_eq!(second.head.status, 429, "{}", second.head.text);
    assert!(second.head.header("retry-after").is_some());
    assert_eq!(second.json()["error"], "too_many_connections");
    assert_eq!(
        second.head.header("access-control-allow-origin"),
        Some("https://app.example"),
        "{}",
        second.head.text
    );
    assert_eq!(second.head.header("cache-control"), Some("no-store"), "{}", second.head.text);
    assert_eq!(second.head.header("surrogate-control"), Some("no-store"), "{}", second.head.text);
    assert_eq!(serve.get(&reader.params()).await.head.status, 200, "requests that don't wait need no permit");
    assert_eq!(serve.head(&reader.params()).await.status, 200);
    drop(first);
    until("the permit is free", async || serve.events(&reader).await.head.status == 200).await;
}

#[tokio::test]
async fn a_live_request_beyond_the_total_limit_gets_503_with_retry_after() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_ADMISSION_TOTAL", "1")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let _first = serve.events(&reader).await;
    let second = serve.get(&[reader.params(), vec![("live", "true")]].concat()).await;
    assert_eq!(second.head.status, 503, "{}", second.head.text);
    assert_eq!(second.json()["error"], "service_unavailable");
    assert!(second.head.header("retry-after").is_some());
    let exposed = second.head.header("access-control-expose-headers").unwrap_or_default();
    assert!(exposed.contains("retry-after"), "{}", second.head.text);
}
