//! Floods of HTTP/2 frames and interim responses, malformed chunks, and trailers.
//!
//! The memory of the gate stays bounded, and other clients are served meanwhile.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::echo_upstream::{EchoUpstream, UpstreamBehavior};
use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::wire::{HttpConnection, until, within};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum growth of the gate's memory during a flood, in KiB.
const MAX_GROWTH_KIB: u64 = 24 * 1024;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [head, payload.to_vec()].concat()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Returns the header block of `GET /plain/h2` in HPACK, without the dynamic table.
fn get_header_block() -> Vec<u8> {
    [&b"\x82\x86\x04\x09/plain/h2\x01\x01a"[..]].concat()
}

/// Returns the frames of one step of a flood.
type FrameGenerator = fn(u32) -> Vec<u8>;

fn rapid_reset(number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    [
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_header_block()),
        frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
    ]
    .concat()
}

fn endless_streams(number: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &get_header_block())
}

fn missing_bodies(number: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 2 * number + 1, &get_header_block())
}

fn continuations(number: u32) -> Vec<u8> {
    let field = [&b"\x00\x04x-ab\x7f\x01"[..], &[b'v'; 128]].concat();
    match number {
        0 => frame(HEADERS, END_STREAM, 1, &get_header_block()),
        _ => frame(CONTINUATION, 0, 1, &field.repeat(100)),
    }
}

fn settings(_: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, b"\x00\x04\x00\x00\xff\xff")
}

fn pings(number: u32) -> Vec<u8> {
    frame(PING, 0, 0, &u64::from(number).to_be_bytes())
}

fn data_of_unopened_streams(number: u32) -> Vec<u8> {
    frame(0, 0, 2 * number + 1, b"")
}

/// Sends a flood for at most a second, or until the gate closes the connection. Reads all responses
/// if `reads`, else none.
async fn flood(gate: std::net::SocketAddr, flood: FrameGenerator, frames: u32, reads: bool) {
    let socket = TcpStream::connect(gate).await.unwrap();
    let (mut reading, mut writing) = socket.into_split();
    let reader = tokio::spawn(async move {
        let mut room = vec![0; 64 * 1024];
        while reads && reading.read(&mut room).await.is_ok_and(|count| count > 0) {}
        reading
    });
    let sending = async {
        writing.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()).await?;
        for first in (0..frames).step_by(100) {
            let block: Vec<u8> = (first..first + 100).flat_map(flood).collect();
            writing.write_all(&block).await?;
        }
        std::io::Result::Ok(())
    };
    // If the client doesn't read, the gate stops reading as well.
    let _ = tokio::time::timeout(Duration::from_secs(1), sending).await;
    reader.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_floods_use_bounded_memory_and_other_clients_are_served() {
    let origin = EchoUpstream::start(0, UpstreamBehavior::AnswersAll).await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--stream-route", "GET /stream"]);
    let floods: [(&str, FrameGenerator); 7] = [
        ("rapid reset", rapid_reset),
        ("endless streams", endless_streams),
        ("missing bodies", missing_bodies),
        ("continuations", continuations),
        ("settings", settings),
        ("pings", pings),
        ("data of unopened streams", data_of_unopened_streams),
    ];
    // Three clients that read and three that don't, at the same time: each flood takes at most a
    // second.
    for (name, frames) in floods {
        let before_kib = gate.resident_kib();
        let attack: Vec<_> =
            (0..6).map(|client| tokio::spawn(flood(gate.addr, frames, 20_000, client % 2 == 0))).collect();
        let mut served = 0;
        while attack.iter().any(|attacker| !attacker.is_finished()) || served == 0 {
            let nonce = format!("other{served}");
            let response = HttpConnection::fetch(gate.addr, "GET", &format!("/plain/{nonce}"), &[], "").await;
            assert_eq!(
                (response.head.status, response.body.as_slice()),
                (200, nonce.as_bytes()),
                "during {name}"
            );
            served += 1;
        }
        for attacker in attack {
            attacker.await.unwrap();
        }
        let grown_kib = gate.resident_kib().saturating_sub(before_kib);
        assert!(grown_kib < MAX_GROWTH_KIB, "{name}: {grown_kib} KiB more");
        gate.wait_until_empty().await;
        until("all connections are closed", async || {
            let status = gate.status().await;
            status["http"]["open_connections"] == 0 && status["gate"]["plain_requests"] == 0
        })
        .await;
    }
    until("the upstream's connections are idle", async || {
        let stats = gate.status().await["gate"]["upstream_connections"].clone();
        stats["open"] == stats["idle"] && stats["idle"].as_u64().unwrap() <= 256
    })
    .await;
}

#[tokio::test]
async fn endless_interim_responses_end_in_a_504() {
    let origin = ScriptedUpstream::start().await;
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "500")]);
    for interim in ["100 Continue", "102 Processing", "103 Early Hints"] {
        let before_kib = gate.resident_kib();
        let mut client = HttpConnection::get(gate.addr, "/", &[]).await;
        let mut upstream = origin.accept().await;
        upstream.head().await;
        let heads = format!("HTTP/1.1 {interim}\r\nLink: </a>\r\n\r\n").repeat(1_000);
        let flood =
            tokio::spawn(async move { while upstream.socket.write_all(heads.as_bytes()).await.is_ok() {} });
        let response = client.response().await;
        assert_eq!(
            (response.head.status, &response.json()["error"]),
            (504, &"upstream_response_timeout".into())
        );
        within("the flood's end", flood).await.unwrap();
        assert!(gate.resident_kib().saturating_sub(before_kib) < MAX_GROWTH_KIB);
    }
    // Fifty interim responses are accepted, and the final response is passed.
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &[]);
    let mut client = HttpConnection::get(gate.addr, "/", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(50);
    upstream.send(format!("{hints}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")).await;
    let response = client.response().await;
    assert_eq!((response.head.status, response.body.as_slice()), (200, &b"ok"[..]));
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn trailers_are_dropped_in_both_directions() {
    let origin = ScriptedUpstream::start().await;
    let settings = [("FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS", "300")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "* /stream"], &settings);
    let trailers = "X-Trailer: 1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n";
    for path in ["/plain", "/stream"] {
        let mut client = HttpConnection::connect(gate.addr).await;
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n");
        client.send(format!("{head}Trailer: X-Trailer\r\n\r\n3\r\nabc\r\n0\r\n{trailers}\r\n")).await;
        let mut upstream = origin.accept().await;
        let seen = upstream.head().await;
        assert_eq!((seen.header("trailer"), seen.header("host")), (None, Some("a")), "{}", seen.text);
        assert_eq!(upstream.take(13).await, b"3\r\nabc\r\n0\r\n\r\n", "{path}");
        let head = "HTTP/1.1 200 OK\r\nTrailer: X-Trailer\r\nTransfer-Encoding: chunked\r\n\r\n";
        upstream.send(format!("{head}3\r\nxyz\r\n0\r\n{trailers}\r\n")).await;
        let head = client.head().await;
        assert_eq!(head.header("trailer"), None, "{}", head.text);
        assert_eq!(client.take(13).await, b"3\r\nxyz\r\n0\r\n\r\n", "{path}");
        drop(client);
        assert_eq!(upstream.rest().await.len(), 0, "bytes after the last chunk");
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn malformed_chunks_are_never_passed_as_a_complete_body() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    for chunks in [
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "g\r\nabc\r\n0\r\n\r\n",
        "2\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3 4\r\nabc\r\n0\r\n\r\n",
    ] {
        let mut client = HttpConnection::connect(gate.addr).await;
        let head = "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(head).await;
        let mut upstream = origin.accept().await;
        assert!(upstream.head().await.text.starts_with("POST /first "));
        client.send(format!("{chunks}{smuggled}")).await;
        let body = String::from_utf8(upstream.rest().await).unwrap();
        assert!(!body.ends_with("0\r\n\r\n") && !body.contains("smuggled"), "{chunks:?}: {body:?}");
        let reply = String::from_utf8(client.rest().await).unwrap();
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{chunks:?}: {reply}");
        assert_eq!(reply.matches("HTTP/1.1 ").count(), usize::from(!reply.is_empty()), "{reply}");
    }
    assert!(origin.is_quiet());
    gate.wait_until_empty().await;
}
