//! Which tokens hold, and for how long.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::super::support::{Place, path};
use super::{Bearer, FAR, KEY, Keys, ORDERS, SQL, is_refused, mine, serve_with, signed};
use crate::tls::{CertificateFiles, curl, run_curl};
use crate::wire::{HttpConnection, until};

#[tokio::test]
async fn tokens_that_do_not_hold_open_nothing_and_say_why() {
    let (place, keys) = (Place::new(SQL), Keys::new("faults", KEY));
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let target = path(&[ORDERS[0], ("offset", "-1")]);
    let hs256 = json!({"alg": "HS256"});
    let claims = |more: Value| {
        let mut claims = json!({"sub": "ada", "exp": FAR, "shapes": [{"table": "orders"}]});
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
        (signed(&hs256, &claims(json!({"exp": now - 5})), KEY), "expired"), // within the leeway of admission
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
        let bearer = Bearer::showing(&serve, &token);
        for more in [&[][..], &[("live", "true"), ("handle", "1-2")]] {
            let offset = if more.is_empty() { "-1" } else { "0_0" };
            let answer = bearer.get(&[&[ORDERS[0], ("offset", offset)], more].concat()).await;
            is_refused(&answer, 401, code);
            assert_eq!(answer.head.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
            assert!(token.len() < 20 || !String::from_utf8_lossy(&answer.body).contains(&token));
        }
    }
    let line = format!("Authorization: Bearer {good}");
    is_refused(&serve.ask("GET", &target, &[&line, &line], "").await, 401, "ambiguous_header");
    // A token counts only where it belongs, and a wrong secret is not made good by it.
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
        let answer = serve.ask("GET", &format!("{target}{query}"), &lines, "").await;
        is_refused(&answer, 401, code);
        assert_eq!(answer.head.header("www-authenticate"), Some("Bearer"));
    }
    for query in ["&secret=wrong", "&api_secret=wrong"] {
        let answer = serve.ask("GET", &format!("{target}{query}"), &[&line], "").await;
        assert_eq!(
            (answer.head.status, &answer.json()["message"]),
            (401, &json!("Unauthorized - Invalid API secret"))
        );
    }
    assert_eq!(serve.ask("GET", &format!("{target}&secret=s3cret"), &[], "").await.head.status, 200);
    assert_eq!(serve.ask("GET", &target, &[&line], "").await.head.status, 200);
    assert!(!serve.log().contains(&good) && !serve.log().contains(parts[2]), "no token is logged");
    let count = serve.metric("forebay_admission_bad_credentials_total", &["reason=\"expired\""]).await;
    assert_eq!(count, 4.0, "and each is counted once");
}

#[tokio::test]
async fn what_waits_ends_with_its_token() {
    let (place, keys) = (Place::new(SQL), Keys::new("expiry", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let at = Bearer::new(&serve, json!([mine()])).get(&[ORDERS[0], ("offset", "now")]).await;
    // From here on the shape is there: nothing takes long.
    let claims = json!({"sub": "ada", "exp": since_1970().as_secs_f64() + 5.0, "shapes": [mine()]});
    let bearer = Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY));
    let named = |name| at.head.header(name).unwrap();
    let live = [
        ORDERS[0],
        ("offset", named("electric-offset")),
        ("handle", named("electric-handle")),
        ("live", "true"),
    ];
    let mut poll = bearer.begin(&live).await;
    let mut events = bearer.begin(&[&live[..], &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    let begun = Instant::now();
    // The long-poll would wait for 20 s, and the events for 60.
    assert_eq!(poll.response().await.head.status, 200);
    while events.chunk().await.is_some_and(|chunk| !chunk.is_empty()) {}
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    is_refused(&bearer.get(&live).await, 401, "expired");
    is_refused(&bearer.get(&[ORDERS[0], ("offset", "-1")]).await, 401, "expired");
    until("no permit is left", async || serve.status().await["admission"]["total_connections"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_request_waits_for_its_token_does_not_hold_for_longer() {
    let (place, keys) = (Place::new(SQL), Keys::new("waits", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let lasting = |seconds: f64| {
        let exp = since_1970().as_secs_f64() + seconds;
        let claims = json!({"sub": "ada", "exp": exp, "shapes": [{"table": "orders"}]});
        Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY))
    };
    let start = [ORDERS[0], ("offset", "-1")];
    assert_eq!(lasting(600.0).get(&start).await.head.status, 200, "the table is known");
    // A body that never ends: two minutes would be fine without a token.
    let bearer = lasting(2.0);
    let mut slow = HttpConnection::connect(serve.addr).await;
    let lines = [&*bearer.line, "Content-Length: 100"];
    slow.request("POST", &path(&start), &lines, "").await;
    slow.send("{\"where\"").await;
    let refused = slow.response().await;
    assert_eq!((refused.head.status, &refused.json()["code"]), (401, &json!("expired")));
    // Rows that somebody has locked: of a shape in the making, and of a subset.
    let locked = "BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let (postgres, database) = (place.postgres, place.database.clone());
    let locking = std::thread::spawn(move || postgres.execute(&database, locked));
    let holders = "SELECT pid::text FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'orders'::regclass";
    until("it is locked", async || place.ask(holders).is_some()).await;
    for more in [("where", "total > 1"), ("subset__where", "total > 1")] {
        is_refused(&lasting(2.0).get(&[&start[..], &[more]].concat()).await, 401, "expired");
    }
    place.sql(&format!("SELECT pg_terminate_backend({})", place.ask(holders).unwrap()));
    locking.join().unwrap().expect_err("it was ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_token_though_there_is_always_more_to_read() {
    let (place, keys) = (Place::new(SQL), Keys::new("busy", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let at = Bearer::new(&serve, json!([mine()])).get(&[ORDERS[0], ("offset", "now")]).await;
    let claims = json!({"sub": "ada", "exp": since_1970().as_secs_f64() + 5.0, "shapes": [mine()]});
    let bearer = Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY));
    let named = |name| at.head.header(name).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    let mut events = bearer.begin(&[&ORDERS[..], &live, &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    let (begun, mut number) = (Instant::now(), 100);
    let mut is_open = true;
    while is_open {
        assert!(begun.elapsed() < Duration::from_secs(45), "it outlives its token");
        // More than one look at the socket takes, each time.
        place.sql(&format!(
            "INSERT INTO orders SELECT n, 7, n, repeat('x', 20000) FROM generate_series({number}, {number} + 20) AS n"
        ));
        number += 21;
        is_open = events.chunk().await.is_some_and(|chunk| !chunk.is_empty());
    }
    is_refused(&bearer.get(&[ORDERS[0], ("offset", "-1")]).await, 401, "expired");
}

/// A last chunk would say that the transaction is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_breaks_when_its_token_ends_in_the_middle_of_a_transaction() {
    let (place, keys) = (Place::new(SQL), Keys::new("middle", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let lasting = |seconds: f64| {
        let claims = json!({"sub": "ada", "exp": since_1970().as_secs_f64() + seconds, "shapes": [mine()]});
        Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &claims, KEY))
    };
    let at = lasting(600.0).get(&[ORDERS[0], ("offset", "now")]).await;
    let named = |name| at.head.header(name).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    // More than sockets hold.
    place.sql("INSERT INTO orders SELECT n, 7, n, repeat('x', 100000) FROM generate_series(100, 500) AS n");
    assert_eq!(lasting(600.0).get(&[&ORDERS[..], &live].concat()).await.head.status, 200, "it is there");
    let (begun, life) = (Instant::now(), Duration::from_secs(3));
    let mut events = lasting(3.0).begin(&[&ORDERS[..], &live, &[("live_sse", "true")]].concat()).await;
    assert_eq!(events.head().await.status, 200);
    tokio::time::sleep(life.saturating_sub(begun.elapsed()) + Duration::from_millis(100)).await;
    let mut heard = 0;
    let end = loop {
        match events.chunk().await {
            Some(chunk) if !chunk.is_empty() => heard += chunk.len(),
            end => break end,
        }
    };
    assert!(heard > 0 && heard < 40_000_000, "{heard} bytes");
    assert_eq!(end, None, "no last chunk");
}

#[tokio::test]
async fn a_key_that_is_rotated_out_opens_nothing_any_more() {
    let (first, second) = (KeyPair::new(), KeyPair::new());
    let jwks = |id: &str, pair: &KeyPair| json!({"keys": [pair.public(id)]}).to_string();
    let (place, keys) = (Place::new(SQL), Keys::new("jwks.json", &jwks("a", &first)));
    let settings = [("FOREBAY_SERVE_TOKENS", "required"), ("FOREBAY_IDENTITY_JWT_JWKS_FILE", keys.path())];
    let serve = place.serve_with(&settings).await;
    let of = |id: &str, pair: &KeyPair| Bearer::showing(&serve, &pair.token(id));
    let (old, new) = (of("a", &first), of("b", &second));
    let start = [ORDERS[0], ("offset", "-1")];
    assert_eq!(old.get(&start).await.head.status, 200);
    is_refused(&new.get(&start).await, 401, "unknown_signer");
    // Our public key is no secret: signed with it by HMAC, a token must not pass.
    for key in [first.public("a")["x"].as_str().unwrap().to_owned(), first.public("a").to_string()] {
        let confused = signed(&json!({"alg": "HS256", "kid": "a"}), &claims(), &key);
        is_refused(&Bearer::showing(&serve, &confused).get(&start).await, 401, "unknown_signer");
    }
    std::fs::write(&keys.0, jwks("b", &second)).unwrap();
    until("the new key is known", async || new.get(&start).await.head.status == 200).await;
    is_refused(&old.get(&start).await, 401, "unknown_signer");
    is_refused(&of("b", &first).get(&start).await, 401, "bad_signature");
}

#[tokio::test]
async fn a_secret_of_tokens_is_rotated_by_sighup() {
    const OTHER: &str = "another key of the test, of more than thirty-two bytes";
    let (place, keys) = (Place::new(SQL), Keys::new("rotated", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let of = |key: &str| Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &claims(), key));
    let start = [ORDERS[0], ("offset", "-1")];
    assert_eq!(of(KEY).get(&start).await.head.status, 200);
    is_refused(&of(OTHER).get(&start).await, 401, "bad_signature");
    std::fs::write(&keys.0, OTHER).unwrap();
    serve.signal(Signal::HUP);
    serve.wait_for_log("settings reloaded");
    is_refused(&of(KEY).get(&start).await, 401, "bad_signature");
    assert_eq!(of(OTHER).get(&start).await.head.status, 200);
    // A secret that can't be one changes nothing.
    std::fs::write(&keys.0, "short").unwrap();
    serve.signal(Signal::HUP);
    serve.wait_for_log("settings not reloaded: previous settings kept");
    assert_eq!(of(OTHER).get(&start).await.head.status, 200);
}

#[tokio::test]
async fn a_stream_by_tls_and_http_2_ends_with_its_token() {
    let (place, keys, pair) = (Place::new(SQL), Keys::new("tls", KEY), CertificateFiles::new("tokens"));
    let (certificate, key) = (pair.certificate(), pair.key());
    let serve = place.spawn(&[
        ("FOREBAY_SERVE_TOKENS", "required"),
        ("FOREBAY_IDENTITY_JWT_SECRET_FILE", keys.path()),
        ("FOREBAY_SERVE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_SERVE_TLS_KEY_FILE", key.to_str().unwrap()),
    ]);
    until("it is ready", async || serve.admin("/readyz").await.body == b"ready\n").await;
    let ask = async |seconds: f64, params: &[(&str, &str)]| {
        let exp = since_1970().as_secs_f64() + seconds;
        let claims = json!({"sub": "ada", "exp": exp, "shapes": [mine()]});
        let line = format!("Authorization: Bearer {}", signed(&json!({"alg": "HS256"}), &claims, KEY));
        run_curl(curl(&certificate, &serve, &path(params), &["--http2", "-N", "-i", "-H", &line]))
            .await
            .unwrap()
    };
    let now = ask(600.0, &[ORDERS[0], ("offset", "now")]).await;
    assert!(now.starts_with("HTTP/2 200"), "{now}");
    let named =
        |name: &str| now.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap();
    let live = [("offset", named("electric-offset")), ("handle", named("electric-handle")), ("live", "true")];
    let begun = Instant::now();
    // It would go on for 60 s.
    let heard = ask(5.0, &[&ORDERS[..], &live, &[("live_sse", "true")]].concat()).await;
    assert!(heard.starts_with("HTTP/2 200") && heard.contains("text/event-stream"), "{heard}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert!(ask(-1.0, &[&ORDERS[..], &live].concat()).await.contains("expired"));
}

fn claims() -> Value {
    json!({"sub": "ada", "exp": FAR, "shapes": [mine()]})
}

/// Of which only the public half is known to the server.
struct KeyPair(Ed25519KeyPair);

impl KeyPair {
    fn new() -> KeyPair {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        KeyPair(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn public(&self, id: &str) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
    }

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
