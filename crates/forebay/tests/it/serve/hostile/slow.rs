//! Clients that send slowly or not completely, and clients that don't read.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::{CREATE_ITEMS, IdleResources, MAX_RESPONSE_TIME, measure_other_requests, wait_until_idle};
use crate::serve::support::{ServeFixture, ServeProcess, ShapeReader, changes, path, summarize};
use crate::wire::{HttpConnection, until, within};

#[tokio::test]
async fn large_heads_garbage_and_partial_requests_are_closed() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let settings =
        [("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "300"), ("FOREBAY_SERVE_REQUEST_IDLE_TIMEOUT_MS", "300")];
    let serve = fixture.serve_with(&settings).await;
    let idle = IdleResources::measure(&serve).await;
    let large = format!("X-Large: {}", "x".repeat(40 * 1024));
    let many: Vec<String> = (0..150).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for lines in [&[large.as_str()][..], &many] {
        let response = serve.request("GET", "/v1/shape?table=items&offset=-1", lines, "").await;
        assert_eq!(response.head.status, 431);
    }
    let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let rubbish: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client's hello",
        &noise,
        &[0; 1024],
        b"GET /v1/shape HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /v1/shape?table=items\0&offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    for bytes in rubbish {
        let mut client = HttpConnection::connect(serve.addr).await;
        client.send(bytes).await;
        let received = client.rest().await;
        assert!(
            received.is_empty() || received.starts_with(b"HTTP/1.1 400 "),
            "{:?}",
            String::from_utf8_lossy(&received)
        );
    }
    let post = "POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nHost: a\r\n";
    let mut clients = Vec::new();
    for number in 0..40 {
        let mut client = HttpConnection::connect(serve.addr).await;
        match number % 4 {
            0 => client.send("GET /v1/shape?table=items&off").await,
            1 => client.send(format!("{post}Content-Length: 100\r\n\r\n{{\"sub")).await,
            2 => client.send(format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"su")).await,
            _ => {}
        }
        clients.push(client);
    }
    for mut client in clients {
        let received = client.rest().await;
        assert!(!received.starts_with(b"HTTP/1.1 2"), "{:?}", String::from_utf8_lossy(&received));
    }
    idle.wait_for_release(&serve, 16 * 1024).await;
}

#[tokio::test]
async fn a_request_body_that_never_ends_is_cut_off() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_REQUEST_IDLE_TIMEOUT_MS", "500")]).await;
    let idle = IdleResources::measure(&serve).await;
    let head =
        "POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    // At full speed, for as long as the server reads.
    let mut fast = HttpConnection::connect(serve.addr).await;
    fast.send(head).await;
    let chunk = [b"10000\r\n", &[b' '; 65_536][..], b"\r\n"].concat();
    let sent = within("the server stops reading", async {
        let mut sent = 0;
        while fast.socket.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        sent
    })
    .await;
    assert!(sent < 32 << 20, "the server read {sent} bytes");
    // One byte at a time, without long pauses.
    let mut slow = HttpConnection::connect(serve.addr).await;
    slow.send(head).await;
    within("the server closes the slow connection", async {
        while slow.socket.write_all(b"1\r\n \r\n").await.is_ok() {
            sleep(Duration::from_millis(100)).await
        }
    })
    .await;
    idle.wait_for_release(&serve, 16 * 1024).await;
}

/// Sends a request with a receive buffer of 4 KiB.
async fn get_with_small_buffer(serve: &ServeProcess, path: &str) -> HttpConnection {
    get_with_buffer(serve, path, 4096).await
}

/// Sends a request with a receive buffer of this size.
async fn get_with_buffer(serve: &ServeProcess, path: &str, bytes: usize) -> HttpConnection {
    let mut client = HttpConnection::connect(serve.addr).await;
    SockRef::from(&client.socket).set_recv_buffer_size(bytes).unwrap();
    client.request("GET", path, &[], "").await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_a_huge_snapshot_costs_little_and_is_closed() {
    const READERS: usize = 50;
    let fixture = ServeFixture::new(&format!(
        "{CREATE_ITEMS}; CREATE TABLE huge (id int PRIMARY KEY, note text);
        INSERT INTO huge SELECT n, repeat(md5(n::text), 320) FROM generate_series(1, 2000) n"
    ));
    let serve = fixture.serve_with(&[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "700")]).await;
    let idle = IdleResources::measure(&serve).await;
    let others = measure_other_requests(&serve);
    let path = path(&[("table", "huge"), ("offset", "-1")]);
    // Some disconnect while the snapshot is written, some read the head and no more, some read
    // nothing.
    for _ in 0..READERS {
        drop(get_with_small_buffer(&serve, &path).await);
    }
    // The default buffer may hold the whole response; with the smallest, reading would take
    // minutes.
    let mut late = get_with_buffer(&serve, &path, 256 * 1024).await;
    let mut slow = Vec::new();
    for number in 0..READERS {
        let mut client = get_with_small_buffer(&serve, &path).await;
        if number % 2 == 0 {
            assert_eq!(client.head().await.status, 200);
        }
        slow.push(client);
    }
    let peak_kib = serve.resident_kib();
    until("the clients are closed", async || {
        serve.status().await["http"]["open_connections"].as_u64().unwrap() < 5
    })
    .await;
    let longest = others().await;
    assert!(longest < MAX_RESPONSE_TIME, "other requests took {longest:?}");
    // While a connection is open, a late reader would get the rest.
    wait_until_idle(&serve).await;
    let rest = late.rest().await;
    assert!(
        rest.len() < 10 << 20 && !rest.ends_with(b"0\r\n\r\n"),
        "the response looks complete, with {} bytes",
        rest.len()
    );
    drop((slow, late));
    // A few buffers for each client. A whole chunk for each would be ten times as much.
    let grown_kib = peak_kib.saturating_sub(idle.kib);
    eprintln!("{READERS} clients: {grown_kib} KiB more; other requests took {longest:?}");
    assert!(grown_kib < 100 * 1024, "{grown_kib} KiB");
    let mut reader = ShapeReader::new(&[("table", "huge")]);
    assert_eq!(changes(&reader.catch_up(&serve).await).len(), 2_000);
    idle.wait_for_release(&serve, 32 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_for_streams_does_not_grow_with_the_number_of_shapes() {
    const SHAPES: u64 = 40;
    const CHANGES: u64 = 40;
    const BYTES: u64 = 200_000;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let settings = [("FOREBAY_STORAGE_UNWRITTEN_BYTES", "1048576"), ("FOREBAY_STORAGE_OPEN_FILES", "4")];
    let serve = fixture.serve_with(&settings).await;
    let idle = IdleResources::measure(&serve).await;
    let mut streams = Vec::new();
    for number in 0..SHAPES {
        let clause = format!("id > -{number}");
        let reader = serve.reader(&[("table", "items"), ("where", &clause)]).await;
        let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
        let mut client = get_with_small_buffer(&serve, &live).await;
        assert_eq!(client.head().await.status, 200);
        streams.push(client);
    }
    let before: u64 = serve.status().await["shapes"]["bytes"].as_u64().unwrap();
    // Each change matches all shapes, and no client reads. All changes would be 320 MB.
    fixture.sql(&format!(
        "DO $$ BEGIN FOR n IN 10..{} LOOP INSERT INTO items VALUES (n, repeat('x', {BYTES})); COMMIT; END LOOP; END $$",
        CHANGES + 9
    ));
    let all = before + SHAPES * CHANGES * BYTES;
    until("all shapes have all changes", async || {
        serve.status().await["shapes"]["bytes"].as_u64().unwrap() > all
    })
    .await;
    let grown_kib = serve.resident_kib().saturating_sub(idle.kib);
    eprintln!("{SHAPES} shapes with {CHANGES} changes of {BYTES} bytes: {grown_kib} KiB more");
    assert!(grown_kib < 150 * 1024, "{grown_kib} KiB");
    drop(streams);
    fixture.sql("DELETE FROM items WHERE id > 2");
    idle.wait_for_release(&serve, 100 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_its_stream_costs_little_and_is_closed() {
    const READERS: usize = 50;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "700")]).await;
    let idle = IdleResources::measure(&serve).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut slow = Vec::new();
    for _ in 0..READERS {
        let mut client = get_with_small_buffer(&serve, &live).await;
        assert_eq!(client.head().await.status, 200);
        slow.push(client);
    }
    let mut quick = serve.events(&reader).await;
    let writing = tokio::task::spawn_blocking(move || {
        for round in 0..8 {
            let from = 10 + round * 100;
            let rows = format!(
                "INSERT INTO items SELECT n, repeat(md5(n::text), 320) FROM generate_series({from}, {}) n",
                from + 99
            );
            fixture.sql(&rows);
        }
        fixture
    });
    let mut seen = Vec::new();
    while changes(&seen).len() < 800 {
        seen.extend(quick.until_up_to_date().await.0);
    }
    let expected: Vec<_> = (10..810).map(|id| format!("insert {id}")).collect();
    assert_eq!(summarize(&seen), expected, "the client that reads gets everything");
    let fixture = writing.await.unwrap();
    let peak_kib = serve.resident_kib();
    until("the clients that don't read are closed", async || {
        serve.status().await["http"]["lean_streams"] == 1
    })
    .await;
    assert_eq!(serve.status().await["http"]["slow_clients"], READERS);
    let grown_kib = peak_kib.saturating_sub(idle.kib);
    eprintln!("{READERS} streams without a reader: {grown_kib} KiB more");
    // The changes may be in memory once, plus the buffer for clients that are a little behind.
    assert!(grown_kib < 100 * 1024, "{grown_kib} KiB");
    drop((slow, quick));
    fixture.sql("DELETE FROM items WHERE id > 2");
    idle.wait_for_release(&serve, 80 * 1024).await;
}
