//! Clients that keep others waiting: with their words, or by not reading.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::{Calm, ITEMS, PROMPT, bystander, is_empty};
use crate::serve::support::{Place, Reader, Serve, changes, path, short};
use crate::wire::{HttpConnection, until, within};

#[tokio::test]
async fn floods_rubbish_and_half_requests_are_closed() {
    let place = Place::new(ITEMS);
    let settings =
        [("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "300"), ("FOREBAY_SERVE_REQUEST_IDLE_TIMEOUT_MS", "300")];
    let serve = place.serve_with(&settings).await;
    let calm = Calm::of(&serve).await;
    let large = format!("X-Large: {}", "x".repeat(40 * 1024));
    let many: Vec<String> = (0..150).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for lines in [&[large.as_str()][..], &many] {
        let answer = serve.ask("GET", "/v1/shape?table=items&offset=-1", lines, "").await;
        assert_eq!(answer.head.status, 431);
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
        let said = client.rest().await;
        assert!(
            said.is_empty() || said.starts_with(b"HTTP/1.1 400 "),
            "{:?}",
            String::from_utf8_lossy(&said)
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
        let said = client.rest().await;
        assert!(!said.starts_with(b"HTTP/1.1 2"), "{:?}", String::from_utf8_lossy(&said));
    }
    calm.returns(&serve, 16 * 1024).await;
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_REQUEST_IDLE_TIMEOUT_MS", "500")]).await;
    let calm = Calm::of(&serve).await;
    let head =
        "POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    // At full speed, for as long as somebody listens.
    let mut fast = HttpConnection::connect(serve.addr).await;
    fast.send(head).await;
    let chunk = [b"10000\r\n", &[b' '; 65_536][..], b"\r\n"].concat();
    let sent = within("the server stops listening", async {
        let mut sent = 0;
        while fast.socket.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        sent
    })
    .await;
    assert!(sent < 32 << 20, "it took {sent} bytes");
    // A letter at a time, never silent for long.
    let mut slow = HttpConnection::connect(serve.addr).await;
    slow.send(head).await;
    within("the server loses patience", async {
        while slow.socket.write_all(b"1\r\n \r\n").await.is_ok() {
            sleep(Duration::from_millis(100)).await
        }
    })
    .await;
    calm.returns(&serve, 16 * 1024).await;
}

/// A client that takes as little as it can.
async fn narrow(serve: &Serve, path: &str) -> HttpConnection {
    with_buffer(serve, path, 4096).await
}

async fn with_buffer(serve: &Serve, path: &str, bytes: usize) -> HttpConnection {
    let mut client = HttpConnection::connect(serve.addr).await;
    SockRef::from(&client.socket).set_recv_buffer_size(bytes).unwrap();
    client.request("GET", path, &[], "").await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_a_huge_snapshot_costs_little_and_is_closed() {
    const READERS: usize = 50;
    let place = Place::new(&format!(
        "{ITEMS}; CREATE TABLE huge (id int PRIMARY KEY, note text);
        INSERT INTO huge SELECT n, repeat(md5(n::text), 320) FROM generate_series(1, 2000) n"
    ));
    let serve = place.serve_with(&[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "700")]).await;
    let calm = Calm::of(&serve).await;
    let others = bystander(&serve);
    let path = path(&[("table", "huge"), ("offset", "-1")]);
    // Some vanish at once, while it is being written; some read a little, then nothing; some only ask.
    for _ in 0..READERS {
        drop(narrow(&serve, &path).await);
    }
    // The usual buffer may take the whole answer; the smallest would take minutes to be read.
    let mut late = with_buffer(&serve, &path, 256 * 1024).await;
    let mut slow = Vec::new();
    for number in 0..READERS {
        let mut client = narrow(&serve, &path).await;
        if number % 2 == 0 {
            assert_eq!(client.head().await.status, 200);
        }
        slow.push(client);
    }
    let peak_kib = serve.resident_kib();
    until("they are closed", async || serve.status().await["http"]["open_connections"].as_u64().unwrap() < 5)
        .await;
    let longest = others().await;
    assert!(longest < PROMPT, "others waited for {longest:?}");
    // Whoever is still being served would get the rest, once it reads.
    is_empty(&serve).await;
    let rest = late.rest().await;
    assert!(
        rest.len() < 10 << 20 && !rest.ends_with(b"0\r\n\r\n"),
        "it looks complete, with {} bytes",
        rest.len()
    );
    drop((slow, late));
    // Each may cost a few pieces; a whole chunk for each would be ten times as much.
    let grown_kib = peak_kib.saturating_sub(calm.kib);
    eprintln!("{READERS} readers: {grown_kib} KiB more; others waited for {longest:?}");
    assert!(grown_kib < 100 * 1024, "{grown_kib} KiB");
    let mut reader = Reader::new(&[("table", "huge")]);
    assert_eq!(changes(&reader.catch_up(&serve).await).len(), 2_000);
    calm.returns(&serve, 32 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_streams_does_not_grow_with_the_number_of_shapes() {
    const SHAPES: u64 = 40;
    const CHANGES: u64 = 40;
    const BYTES: u64 = 200_000;
    let place = Place::new(ITEMS);
    let settings = [("FOREBAY_STORAGE_UNWRITTEN_BYTES", "1048576"), ("FOREBAY_STORAGE_OPEN_FILES", "4")];
    let serve = place.serve_with(&settings).await;
    let calm = Calm::of(&serve).await;
    let mut streams = Vec::new();
    for number in 0..SHAPES {
        let clause = format!("id > -{number}");
        let reader = serve.reader(&[("table", "items"), ("where", &clause)]).await;
        let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
        let mut client = narrow(&serve, &live).await;
        assert_eq!(client.head().await.status, 200);
        streams.push(client);
    }
    let before: u64 = serve.status().await["shapes"]["bytes"].as_u64().unwrap();
    // Each change is of all shapes, and nobody reads: 320 MB, if all were kept.
    place.sql(&format!(
        "DO $$ BEGIN FOR n IN 10..{} LOOP INSERT INTO items VALUES (n, repeat('x', {BYTES})); COMMIT; END LOOP; END $$",
        CHANGES + 9
    ));
    let all = before + SHAPES * CHANGES * BYTES;
    until("all shapes have it", async || serve.status().await["shapes"]["bytes"].as_u64().unwrap() > all)
        .await;
    let grown_kib = serve.resident_kib().saturating_sub(calm.kib);
    eprintln!("{SHAPES} shapes with {CHANGES} changes of {BYTES} bytes: {grown_kib} KiB more");
    assert!(grown_kib < 150 * 1024, "{grown_kib} KiB");
    drop(streams);
    place.sql("DELETE FROM items WHERE id > 2");
    calm.returns(&serve, 100 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_its_stream_costs_little_and_is_closed() {
    const READERS: usize = 50;
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "700")]).await;
    let calm = Calm::of(&serve).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut slow = Vec::new();
    for _ in 0..READERS {
        let mut client = narrow(&serve, &live).await;
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
            place.sql(&rows);
        }
        place
    });
    let mut seen = Vec::new();
    while changes(&seen).len() < 800 {
        seen.extend(quick.up_to_date().await.0);
    }
    let expected: Vec<_> = (10..810).map(|id| format!("insert {id}")).collect();
    assert_eq!(short(&seen), expected, "whoever reads has everything");
    let place = writing.await.unwrap();
    let peak_kib = serve.resident_kib();
    until("the slow are closed", async || serve.status().await["http"]["lean_streams"] == 1).await;
    assert_eq!(serve.status().await["http"]["slow_clients"], READERS);
    let grown_kib = peak_kib.saturating_sub(calm.kib);
    eprintln!("{READERS} streams that nobody reads: {grown_kib} KiB more");
    // The changes themselves may be in memory once, and as many again as are kept for those who are a little behind.
    assert!(grown_kib < 100 * 1024, "{grown_kib} KiB");
    drop((slow, quick));
    place.sql("DELETE FROM items WHERE id > 2");
    calm.returns(&serve, 80 * 1024).await;
}
