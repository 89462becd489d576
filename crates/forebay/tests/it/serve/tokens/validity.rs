//! Which tokens are valid, and for how long.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::super::support::{ServeFixture, path};
use super::{
    CREATE_TABLES, FAR_FUTURE, KEY, KeyFile, ORDERS_SHAPE, TokenBearer, assert_refused, own_orders,
    serve_with, signed,
};
use crate::tls::{CertificateFiles, curl, run_curl};
use crate::wire::{HttpConnection, until};

#[tokio::test]
async fn invalid_tokens_are_refused_with_a_reason() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("faults", KEY));
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let target = path(&[ORDERS_SHAPE[0], ("offset", "-1")]);
    let hs256 = json!({"alg": "HS256"});
    let claims = |more: Value| {
        let mut claims = json!({"sub": "ada", "exp": FAR_FUTURE, "shapes": [{"table": "orders"}]});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims
    };
    let good = signed(&hs256, &claims(json!({})), KEY);
    let now = since_1970().as_secs();
    let parts: Vec<&str> = good.split('.').collect();
    let none = |alg: &str| {
        let unsigned = signed(&json!({"alg": alg}), &claims(json!({})), KEY);
        format!("{}.", unsigned.rsplit_once('.').unwrap().0)
    };
    let other = "another key, which has more than thirty-two bytes";
    for (token, code) in [
        (signed(&hs256, &claims(json!({"exp": 1})), KEY), "expired"),
        (signed(&hs256, &claims(json!({"exp": now - 5})), KEY), "expired"), // the leeway of admission doesn't apply
        (signed(&hs256, &claims(json!({"exp": "never"})), KEY), "malformed"),
        (signed(&hs256, &json!({"sub": "ada", "shapes": [{"table": "orders"}]}), KEY), "no_expiry"),
        (signed(&hs256, &claims(json!({"nbf": now + 600})), KEY), "not_yet_valid"),
        (signed(&hs256, &claims(json!({"aud": "them"})), KEY), "wrong_audience"),
        (signed(&hs256, &claims(json!({"sub": null})), KEY), "no_user"),
        (signed(&hs256, &claims(json!({})), other), "bad_signature"),
        (signed(&json!({"alg": "RS256"}), &claims(json!({})), KEY), "unknown_signer"),
        (signed(&json!({"alg": "ES256"}), &claims(json!({})), KEY), "unknown_signer"),
        (signed(&json!({"alg": "HS256", "crit": ["x"]}), &claims(json!({})), KEY), "malformed"),
        (none("none"), "malformed"),
        (none("None"), "malformed"),
        (none("HS256"), "bad_signature"),
        (
            format!(
                "{}.{}.{}",
                parts[0],
                URL_SAFE_NO_PAD.encode(claims(json!({"sub": "eve"})).to_string()),
                parts[2]
            ),
            "bad_signature",
        ),
        ("rubbish".to_owned(), "malformed"),
        (String::new(), "malformed"),
        ("x".repeat(17 << 10), "too_long"),
    ] {
        let bearer = TokenBearer::with_token(&serve, &token);
        for more in [&[][..], &[("live", "true"), ("handle", "1-2")]] {
            let offset = if more.is_empty() { "-1" } else { "0_0" };
            let response = bearer.get(&[&[ORDERS_SHAPE[0], ("offset", offset)], more].concat()).await;
            assert_refused(&response, 401, code);
            assert_eq!(response.head.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
            assert!(token.len() < 20 || !String::from_utf8_lossy(&response.body).contains(&token));
        }
    }
    let line = format!("Authorization: Bearer {good}");
    assert_refused(&serve.request("GET", &target, &[&line, &line], "").await, 401, "ambiguous_header");
    // A token is read only from the Authorization header, and doesn't replace a wrong secret.
    for (query, lines, code) in [
        ("", vec![], "token_required"),
        (&*format!("&token={good}"), vec![], "token_required"),
        (&*format!("&access_token={good}"), vec![], "token_required"),
        (&*format!("&Authorization=Bearer+{good}"), vec![], "token_required"),
        ("", vec!["Authorization: Basic YTpi".to_owned()], "token_required"),
        ("", vec![format!("X-Authorization: Bearer {good}")], "token_required"),
        ("", vec![format!("Cookie: token={good}")], "token_required"),
        ("", vec!["X-User-ID: ada".to_owned()], "token_required"),
    ] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let response = serve.request("GET", &format!("{target}{query}"), &lines, "").await;
        assert_refused(&response, 401, code);
        assert_eq!(response.head.header("www-authenticate"), Some("Bearer"));
    }
    for query in ["&secret=wrong", "&api_secret=wrong"] {
        let response = serve.request("GET", &format!("{target}{query}"), &[&line], "").await;
        assert_eq!(
            (response.head.status, &response.json()["message"]),
            (401, &json!("Unauthorized - Invalid API secret"))
        );
    }
    assert_eq!(serve.request("GET", &format!("{target}&secret=s3cret"), &[], "").await.head.status, 200);
    assert_eq!(serve.request("GET", &target, &[&line], "").await.head.status, 200);
    assert!(!serve.log().contains(&good) && !serve.log().contains(parts[2]), "a token is in the log");
    let count = serve.metric("forebay_admission_bad_credentials_total", &["reason=\"expired\""]).await;
    assert_eq!(count, 4.0, "each expired token is counted once");
}

/// A live request needs its token twice: for its grants, and for the user's limit on streams.
#[tokio::test]
async fn a_token_is_verified_once_per_request() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("once", KEY));
    let trace = [
        ("FOREBAY_LOG_FILTER", "info,forebay_admission::identity=trace"),
        ("FOREBAY_SERVE_LONG_POLL_MS", "200"),
    ];
    let serve = serve_with(&fixture, &keys, &trace).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let verifications = || serve.log().matches("token verified").count();
    let at = bearer.get(&[ORDERS_SHAPE[0], ("offset", "now")]).await;
    until("a request was verified", async || verifications() >= 1).await;
    let named = |name| at.head.header(name).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    assert_eq!(bearer.get(&[&ORDERS_SHAPE[..], &live].concat()).await.head.status, 200);
    until("a long-poll was verified", async || verifications() >= 2).await;
    let mut events = bearer.start_get(&[&ORDERS_SHAPE[..], &live, &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    until("an event stream was verified", async || verifications() >= 3).await;
    let users = &serve.status().await["admission"]["users"];
    assert_eq!(users.as_array().map(Vec::len), Some(1), "the stream counts for its user: {users}");
    assert_eq!(verifications(), 3, "{}", serve.log());
}

#[tokio::test]
async fn live_requests_end_when_their_token_expires() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("expiry", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let at = TokenBearer::new(&serve, json!([own_orders()])).get(&[ORDERS_SHAPE[0], ("offset", "now")]).await;
    // Now the shape exists, so later requests are fast.
    let claims = json!({"sub": "ada", "exp": since_1970().as_secs_f64() + 5.0, "shapes": [own_orders()]});
    let bearer = TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY));
    let named = |name| at.head.header(name).unwrap();
    let live = [
        ORDERS_SHAPE[0],
        ("offset", named("electric-offset")),
        ("handle", named("electric-handle")),
        ("live", "true"),
    ];
    let mut poll = bearer.start_get(&live).await;
    let mut events = bearer.start_get(&[&live[..], &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    let started = Instant::now();
    // Without expiry, the long-poll would last 20 s and the stream 60 s.
    assert_eq!(poll.response().await.head.status, 200);
    while events.chunk().await.is_some_and(|chunk| !chunk.is_empty()) {}
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_refused(&bearer.get(&live).await, 401, "expired");
    assert_refused(&bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await, 401, "expired");
    until("no permit is left", async || serve.status().await["admission"]["total_connections"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_request_is_refused_when_its_token_expires() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("waits", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let expiring_in = |seconds: f64| {
        let exp = since_1970().as_secs_f64() + seconds;
        let claims = json!({"sub": "ada", "exp": exp, "shapes": [{"table": "orders"}]});
        TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY))
    };
    let start = [ORDERS_SHAPE[0], ("offset", "-1")];
    assert_eq!(expiring_in(600.0).get(&start).await.head.status, 200, "the table is published");
    // An incomplete body. Without a token, the server would wait two minutes.
    let bearer = expiring_in(2.0);
    let mut slow = HttpConnection::connect(serve.addr).await;
    let lines = [&*bearer.line, "Content-Length: 100"];
    slow.request("POST", &path(&start), &lines, "").await;
    slow.send("{\"where\"").await;
    let refused = slow.response().await;
    assert_eq!((refused.head.status, &refused.json()["code"]), (401, &json!("expired")));
    // A locked table: a new shape and a subset wait for it.
    let locked = "BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let lock_holder = std::thread::spawn(move || postgres.execute(&database, locked));
    let holders = "SELECT pid::text FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'orders'::regclass";
    until("the table is locked", async || fixture.query_value(holders).is_some()).await;
    for more in [("where", "total > 1"), ("subset__where", "total > 1")] {
        assert_refused(&expiring_in(2.0).get(&[&start[..], &[more]].concat()).await, 401, "expired");
    }
    fixture.sql(&format!("SELECT pg_terminate_backend({})", fixture.query_value(holders).unwrap()));
    lock_holder.join().unwrap().expect_err("the session was terminated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_stream_ends_when_its_token_expires() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("busy", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let at = TokenBearer::new(&serve, json!([own_orders()])).get(&[ORDERS_SHAPE[0], ("offset", "now")]).await;
    let claims = json!({"sub": "ada", "exp": since_1970().as_secs_f64() + 5.0, "shapes": [own_orders()]});
    let bearer = TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY));
    let named = |name| at.head.header(name).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    let mut events = bearer.start_get(&[&ORDERS_SHAPE[..], &live, &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    let (started, mut number) = (Instant::now(), 100);
    let mut is_open = true;
    while is_open {
        assert!(started.elapsed() < Duration::from_secs(45), "the stream outlives its token");
        // More than the server writes at once, each time.
        fixture.sql(&format!(
            "INSERT INTO orders SELECT n, 7, n, repeat('x', 20000) FROM generate_series({number}, {number} + 20) AS n"
        ));
        number += 21;
        is_open = events.chunk().await.is_some_and(|chunk| !chunk.is_empty());
    }
    assert_refused(&bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await, 401, "expired");
}

/// A client that reads slowly must not receive rows that are read after the expiry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_response_breaks_when_its_token_expires() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("large", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let expiring_in = |seconds: f64| {
        let claims =
            json!({"sub": "ada", "exp": since_1970().as_secs_f64() + seconds, "shapes": [own_orders()]});
        TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY))
    };
    // One message, so one chunk, of more than the socket buffers.
    const BYTES: usize = 60_000_000;
    fixture.sql(&format!("INSERT INTO orders VALUES (100, 7, 1, repeat('x', {BYTES}))"));
    let snapshot = [ORDERS_SHAPE[0], ("offset", "-1")];
    let whole = expiring_in(600.0).get(&snapshot).await;
    assert!(whole.head.status == 200 && whole.body.len() > BYTES, "the snapshot is complete");
    let (started, lifetime) = (Instant::now(), Duration::from_secs(3));
    let mut response = expiring_in(3.0).start_get(&snapshot).await;
    assert_eq!(response.head().await.status, 200);
    tokio::time::sleep(lifetime.saturating_sub(started.elapsed()) + Duration::from_millis(100)).await;
    let mut received = 0;
    let end = loop {
        match response.chunk().await {
            Some(chunk) if !chunk.is_empty() => received += chunk.len(),
            end => break end,
        }
    };
    assert!(received > 0 && received < BYTES, "{received} bytes");
    assert_eq!(end, None, "no last chunk");
}

/// With a last chunk, the client would take the transaction for complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_breaks_when_its_token_expires_inside_a_transaction() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("middle", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let expiring_in = |seconds: f64| {
        let claims =
            json!({"sub": "ada", "exp": since_1970().as_secs_f64() + seconds, "shapes": [own_orders()]});
        TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY))
    };
    let at = expiring_in(600.0).get(&[ORDERS_SHAPE[0], ("offset", "now")]).await;
    let named = |name| at.head.header(name).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    // More than the socket buffers.
    fixture.sql("INSERT INTO orders SELECT n, 7, n, repeat('x', 100000) FROM generate_series(100, 500) AS n");
    assert_eq!(
        expiring_in(600.0).get(&[&ORDERS_SHAPE[..], &live].concat()).await.head.status,
        200,
        "the rows are in the log"
    );
    let (started, lifetime) = (Instant::now(), Duration::from_secs(3));
    let mut events =
        expiring_in(3.0).start_get(&[&ORDERS_SHAPE[..], &live, &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    tokio::time::sleep(lifetime.saturating_sub(started.elapsed()) + Duration::from_millis(100)).await;
    let mut received = 0;
    let end = loop {
        match events.chunk().await {
            Some(chunk) if !chunk.is_empty() => received += chunk.len(),
            end => break end,
        }
    };
    assert!(received > 0 && received < 40_000_000, "{received} bytes");
    assert_eq!(end, None, "no last chunk");
}

#[tokio::test]
async fn tokens_of_a_removed_key_are_refused() {
    let (first, second) = (TokenKeyPair::new(), TokenKeyPair::new());
    let jwks = |id: &str, pair: &TokenKeyPair| json!({"keys": [pair.public(id)]}).to_string();
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("jwks.json", &jwks("a", &first)));
    let settings = [("FOREBAY_SERVE_TOKENS", "required"), ("FOREBAY_IDENTITY_JWT_JWKS_FILE", keys.path())];
    let serve = fixture.serve_with(&settings).await;
    let bearer_of = |id: &str, pair: &TokenKeyPair| TokenBearer::with_token(&serve, &pair.token(id));
    let (old, new) = (bearer_of("a", &first), bearer_of("b", &second));
    let start = [ORDERS_SHAPE[0], ("offset", "-1")];
    assert_eq!(old.get(&start).await.head.status, 200);
    assert_refused(&new.get(&start).await, 401, "unknown_signer");
    // The public key isn't secret: a token that is signed with it by HMAC must be refused.
    for key in [first.public("a")["x"].as_str().unwrap().to_owned(), first.public("a").to_string()] {
        let confused = signed(&json!({"alg": "HS256", "kid": "a"}), &claims(), &key);
        assert_refused(&TokenBearer::with_token(&serve, &confused).get(&start).await, 401, "unknown_signer");
    }
    std::fs::write(&keys.0, jwks("b", &second)).unwrap();
    until("the new key is loaded", async || new.get(&start).await.head.status == 200).await;
    assert_refused(&old.get(&start).await, 401, "unknown_signer");
    assert_refused(&bearer_of("b", &first).get(&start).await, 401, "bad_signature");
}

#[tokio::test]
async fn sighup_replaces_the_secret_of_tokens() {
    const OTHER: &str = "another key of the test, of more than thirty-two bytes";
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("rotated", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let bearer_of =
        |key: &str| TokenBearer::with_token(&serve, &signed(&json!({"alg": "HS256"}), &claims(), key));
    let start = [ORDERS_SHAPE[0], ("offset", "-1")];
    assert_eq!(bearer_of(KEY).get(&start).await.head.status, 200);
    assert_refused(&bearer_of(OTHER).get(&start).await, 401, "bad_signature");
    std::fs::write(&keys.0, OTHER).unwrap();
    serve.signal(Signal::HUP);
    serve.wait_for_log("settings reloaded");
    assert_refused(&bearer_of(KEY).get(&start).await, 401, "bad_signature");
    assert_eq!(bearer_of(OTHER).get(&start).await.head.status, 200);
    // An invalid secret changes nothing.
    std::fs::write(&keys.0, "short").unwrap();
    serve.signal(Signal::HUP);
    serve.wait_for_log("settings not reloaded: previous settings kept");
    assert_eq!(bearer_of(OTHER).get(&start).await.head.status, 200);
}

#[tokio::test]
async fn a_stream_over_tls_and_http_2_ends_when_its_token_expires() {
    let (fixture, keys, pair) =
        (ServeFixture::new(CREATE_TABLES), KeyFile::new("tls", KEY), CertificateFiles::new("tokens"));
    let (certificate, key) = (pair.certificate(), pair.key());
    let serve = fixture.spawn(&[
        ("FOREBAY_SERVE_TOKENS", "required"),
        ("FOREBAY_IDENTITY_JWT_SECRET_FILE", keys.path()),
        ("FOREBAY_SERVE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_SERVE_TLS_KEY_FILE", key.to_str().unwrap()),
    ]);
    until("the server is ready", async || serve.admin("/readyz").await.body == b"ready\n").await;
    let get_expiring_in = async |seconds: f64, params: &[(&str, &str)]| {
        let exp = since_1970().as_secs_f64() + seconds;
        let claims = json!({"sub": "ada", "exp": exp, "shapes": [own_orders()]});
        let line = format!("Authorization: Bearer {}", signed(&json!({"alg": "HS256"}), &claims, KEY));
        run_curl(curl(&certificate, &serve, &path(params), &["--http2", "-N", "-i", "-H", &line]))
            .await
            .unwrap()
    };
    let now = get_expiring_in(600.0, &[ORDERS_SHAPE[0], ("offset", "now")]).await;
    assert!(now.starts_with("HTTP/2 200"), "{now}");
    let named =
        |name: &str| now.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    let started = Instant::now();
    // Without expiry, the stream would last 60 s.
    let received = get_expiring_in(5.0, &[&ORDERS_SHAPE[..], &live, &[("live_sse", "true")]].concat()).await;
    assert!(received.starts_with("HTTP/2 200") && received.contains("text/event-stream"), "{received}");
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    assert!(get_expiring_in(-1.0, &[&ORDERS_SHAPE[..], &live].concat()).await.contains("expired"));
}

/// Returns valid claims.
fn claims() -> Value {
    json!({"sub": "ada", "exp": FAR_FUTURE, "shapes": [own_orders()]})
}

/// A key pair. The server gets only the public key.
struct TokenKeyPair(Ed25519KeyPair);

impl TokenKeyPair {
    fn new() -> TokenKeyPair {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        TokenKeyPair(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    /// Returns the public key as JWK.
    fn public(&self, id: &str) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
    }

    /// Signs a token.
    fn token(&self, id: &str) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&json!({"alg": "EdDSA", "kid": id})), part(&claims()));
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(self.0.sign(message.as_bytes())))
    }
}

#[expect(clippy::disallowed_methods, reason = "a token's expiry is a date")]
fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}
