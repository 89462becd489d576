//! Heads of requests and responses: which parts the gate passes, removes and adds.

use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::wire::{HttpConnection, HttpHead};

/// Sends a request through a new gate; the upstream sends `response`. Returns the request head at
/// the upstream and the response head at the client.
async fn exchange(args: &[&str], request: &str, response: &str) -> (HttpHead, HttpHead) {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), args);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send(request).await;
    let mut upstream = origin.accept().await;
    let seen = upstream.head().await;
    upstream.send(response).await;
    (seen, client.head().await)
}

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn path_and_query_pass_byte_for_byte() {
    for target in ["/a%2Fb/../c;x=1//d/?q=%20&r=[1]&s=%", "/?", "/a?b?c=%zz", "/'()*+,!$&|{}^~"] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (seen, _) = exchange(&[], &request, EMPTY).await;
        assert!(seen.text.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{}", seen.text);
    }
}

#[tokio::test]
async fn the_host_header_is_the_clients_unless_configured() {
    let request = "GET / HTTP/1.1\r\nHost: shop.example:81\r\n\r\n";
    let (seen, _) = exchange(&[], request, EMPTY).await;
    assert_eq!(seen.header("host"), Some("shop.example:81"));

    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_GATE_HOST", "upstream")]);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send(request).await;
    let seen = origin.accept().await.head().await;
    assert_eq!(seen.header("host"), Some(origin.addr().to_string().as_str()));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example:81"));
}

#[tokio::test]
async fn the_host_of_an_absolute_target_replaces_the_host_header() {
    let request = "GET http://real.example/x?y HTTP/1.1\r\nHost: other.example\r\n\r\n";
    let (seen, head) = exchange(&[], request, EMPTY).await;
    assert!(seen.text.starts_with("GET /x?y HTTP/1.1\r\n"), "{}", seen.text);
    assert_eq!(seen.header("host"), Some("real.example"));
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn an_asterisk_target_passes() {
    let (seen, _) = exchange(&[], "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", EMPTY).await;
    assert!(seen.text.starts_with("OPTIONS * HTTP/1.1\r\n"), "{}", seen.text);
}

#[tokio::test]
async fn hop_by_hop_headers_are_removed_in_both_directions() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n\
                   TE: trailers\r\nProxy-Authorization: x\r\nUpgrade: h2c\r\nX-Thread-ID: t-7\r\nAccept: a/b\r\n\r\n";
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: X-Theirs, close\r\nX-Theirs: 1\r\n\
                  Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nX-Kept: yes\r\nSet-Cookie: a=1\r\n\
                  Set-Cookie: b=2\r\n\r\n";
    let (seen, head) = exchange(&[], request, response).await;
    for removed in ["connection", "x-mine", "keep-alive", "te", "proxy-authorization", "upgrade"] {
        assert_eq!(seen.header(removed), None, "{removed} in {}", seen.text);
    }
    assert_eq!(seen.header("accept"), Some("a/b"));
    assert_eq!(seen.header("x-thread-id"), Some("t-7"));
    assert_eq!(seen.header("via"), Some("1.1 forebay"));
    for removed in ["x-theirs", "keep-alive", "proxy-authenticate"] {
        assert_eq!(head.header(removed), None, "{removed} in {}", head.text);
    }
    assert_eq!(head.header("x-kept"), Some("yes"));
    assert_eq!(head.header("x-thread-id"), Some("t-7"));
    assert_eq!(head.header("via"), Some("1.1 forebay"));
    assert_eq!(head.headers.iter().filter(|(name, _)| name == "set-cookie").count(), 2);
}

#[tokio::test]
async fn forwarded_headers_are_accepted_only_from_a_trusted_proxy() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\
                   X-User-ID: alice\r\nX_User_ID: eve\r\nForwarded: for=198.51.100.6\r\n\r\n";
    let (seen, _) = exchange(&[], request, EMPTY).await;
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    // No hexadecimal names: the random thread id could contain them.
    assert!(!seen.text.contains("alice") && !seen.text.contains("eve") && !seen.text.contains("198.51"));

    let (seen, _) = exchange(&["--trusted-proxy", "127.0.0.0/8"], request, EMPTY).await;
    assert_eq!(seen.header("x-forwarded-for"), Some("203.0.113.9, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("x-user-id"), Some("alice"));
    assert!(!seen.text.contains("eve") && !seen.text.contains("198.51"), "{}", seen.text);
}

#[tokio::test]
async fn the_verified_user_is_sent_in_the_configured_header() {
    let origin = ScriptedUpstream::start().await;
    let settings = [
        ("FOREBAY_GATE_FORWARD_USER_HEADER", "X-Verified-User"),
        ("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID"),
        ("FOREBAY_GATE_STREAM_ROUTES", "GET /stream"),
    ];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--trusted-proxy", "127.0.0.1"], &settings);
    for path in ["/stream", "/plain"] {
        let lines = ["X-User-ID: ada", "X-Verified-User: eve", "X_Verified_User: eve"];
        let _client = HttpConnection::get(gate.addr, path, &lines).await;
        let seen = origin.accept().await.head().await;
        assert_eq!(seen.header("x-verified-user"), Some("ada"), "{}", seen.text);
        assert!(!seen.text.contains("eve"), "{}", seen.text);
    }
    let _client = HttpConnection::get(gate.addr, "/plain", &["X-Verified-User: eve"]).await;
    let seen = origin.accept().await.head().await;
    assert_eq!(seen.header("x-verified-user"), None, "without a verified user there is no header");
}

#[tokio::test]
async fn without_trusted_proxies_forwarded_headers_are_counted_as_untrusted() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let _client =
        HttpConnection::get(gate.addr, "/", &["X-Forwarded-For: 1.2.3.4", "X-User-ID: admin"]).await;
    origin.accept().await.head().await;
    assert!(gate.metric("forebay_gate_untrusted_headers_total", &[]).await >= 1.0);
}

#[tokio::test]
async fn connect_is_refused_with_a_501() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!((response.head.status, &response.json()["error"]), (501, &"connect_refused".into()));
    assert_eq!(response.head.header("content-type"), Some("application/problem+json"));
    assert!(origin.is_quiet(), "the upstream got a connection");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_compressed_transfer_coding_is_refused_with_a_501() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!((response.head.status, &response.json()["error"]), (501, &"coding_refused".into()));
    assert!(origin.is_quiet());
}

#[tokio::test]
async fn a_missing_repeated_or_invalid_host_gets_a_400() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    ] {
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(request).await;
        let response = client.response().await;
        assert_eq!((response.head.status, &response.json()["error"]), (400, &"bad_host".into()), "{request}");
    }
    assert!(origin.is_quiet());
    assert_eq!(gate.metric("forebay_gate_refusals_total", &["bad_host"]).await, 3.0);
}

#[tokio::test]
async fn http_1_0_is_served() {
    let request = "GET /old HTTP/1.0\r\n\r\n";
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send(request).await;
    let mut upstream = origin.accept().await;
    let seen = upstream.head().await;
    assert!(seen.text.starts_with("GET /old HTTP/1.1\r\n"), "{}", seen.text);
    assert_eq!(seen.header("host"), Some(origin.addr().to_string().as_str()));
    assert_eq!(seen.header("via"), Some("1.0 forebay"));
    upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").await;
    let head = client.head().await;
    assert!(!head.is_chunked(), "{}", head.text);
    assert_eq!(client.rest().await, b"abc");
}
