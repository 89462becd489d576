//! Malicious clients: rejected with a clear reason, bounded, and never trusted.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_admission::{ForwardedHeader, Identifier, Jwt};
use ring::hmac;
use serde_json::json;

use crate::support::{
    RawHttpClient, admission_of, by_header, by_key, refusal, serve, wait_until_released, within,
};

const SECRET: &[u8] = b"a secret that has more than thirty-two bytes";

fn token(header: serde_json::Value, claims: serde_json::Value) -> String {
    let encode = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode(header), encode(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
    format!("Bearer {message}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Returns the token with other claims.
fn forged(token: &str, claims: &serde_json::Value) -> String {
    let parts: Vec<_> = token.split('.').collect();
    format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()), parts[2])
}

#[tokio::test]
async fn invalid_tokens_are_401_and_take_no_permit() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, Identifier::new().jwt(Jwt::secret(SECRET).unwrap())).await;
    let far = 4_102_444_800_u64;
    let good = token(json!({"alg": "HS256"}), json!({"sub": "ada", "exp": far}));
    let bad = [
        (token(json!({"alg": "HS256"}), json!({"sub": "ada", "exp": 1_000})), "expired"),
        (token(json!({"alg": "none"}), json!({"sub": "ada", "exp": far})), "malformed"),
        (token(json!({"alg": "HS256"}), json!({"sub": "ada"})), "no_expiry"),
        (token(json!({"alg": "HS256"}), json!({"sub": "ada", "exp": far, "nbf": far})), "not_yet_valid"),
        (token(json!({"alg": "HS256"}), json!({"exp": far})), "no_user"),
        (token(json!({"alg": "RS256"}), json!({"sub": "ada", "exp": far})), "unknown_signer"),
        (forged(&good, &json!({"sub": "eve", "exp": far})), "bad_signature"),
        ("Bearer ".to_owned(), "malformed"),
    ];
    for (token, reason) in bad {
        let (head, body) = refusal(server, "/short", &[("authorization", &token)]).await;
        assert_eq!((head.status, body["details"]["reason"].as_str()), (401, Some(reason)), "{body}");
        assert_eq!(head.header("content-type"), Some("application/problem+json"));
        assert_eq!(head.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
        assert!(head.header("x-thread-id").is_some());
    }
    assert_eq!(RawHttpClient::get(server, "/short", &[("authorization", &good)]).await.0.status, 200);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn an_unknown_key_is_401_and_not_anonymous() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_key(&["ada"])).await;
    let (head, body) = refusal(server, "/short", &[("x-api-key", "key-of-eve")]).await;
    assert_eq!((head.status, body["error"].as_str()), (401, Some("invalid_credentials")));
    assert_eq!(head.header("www-authenticate"), Some("ApiKey header=\"x-api-key\""));
    assert_eq!(RawHttpClient::get(server, "/short", &[]).await.0.status, 200);
}

/// The peer is loopback, which is not a trusted proxy here.
#[tokio::test]
async fn forged_headers_from_an_untrusted_peer_have_no_effect_and_are_removed() {
    let admission = admission_of(100, 2);
    let identify = Identifier::new()
        .trusted_proxies(["10.0.0.0/8".parse().unwrap()])
        .trusted_header()
        .address(ForwardedHeader::XForwardedFor);
    let server = serve(&admission, identify).await;
    let mut open = Vec::new();
    for n in 0..2 {
        let (id, address) = (format!("victim-{n}"), format!("198.51.100.{n}"));
        let forged = [("x-user-id", &*id), ("x-forwarded-for", &*address)];
        let (head, client) = RawHttpClient::get(server, "/endless", &forged).await;
        assert_eq!(head.status, 200);
        open.push(client);
    }
    // Forged names and addresses are ignored: every request is from 127.0.0.1, which has reached
    // its limit of two streams.
    let forged = [("x-user-id", "another-user"), ("x-forwarded-for", "198.51.100.77")];
    let (head, body) = refusal(server, "/endless", &forged).await;
    assert_eq!((head.status, body["details"]["user_id"].as_str()), (429, Some("127.0.0.1")));

    drop(open);
    wait_until_released(&admission).await;
    let (head, echo) = refusal(server, "/echo", &forged).await;
    assert_eq!(head.status, 200);
    assert_eq!((&echo["user"], &echo["user_header"]), (&json!("127.0.0.1"), &json!(null)));
    assert_eq!(echo["forwarded"], json!(null));
}

#[tokio::test]
async fn addresses_reported_by_a_trusted_proxy_are_accepted() {
    let admission = admission_of(100, 2);
    let server = serve(&admission, by_header().address(ForwardedHeader::XForwardedFor)).await;
    let from = [("x-forwarded-for", "10.9.9.9, 198.51.100.77"), ("x-thread-id", "t")];
    let (_, echo) = refusal(server, "/echo", &from).await;
    assert_eq!((&echo["user"], &echo["thread"]), (&json!("198.51.100.77"), &json!("t")));
}

#[tokio::test]
async fn too_long_ids_are_refused_even_at_one_mebibyte() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_header()).await;
    let long = "x".repeat(257);
    let (head, body) = refusal(server, "/short", &[("x-user-id", &long)]).await;
    assert_eq!((head.status, body["details"]["reason"].as_str()), (431, Some("too_long")));
    assert!(body["detail"].as_str().unwrap().contains("257 bytes"), "{body}");
    assert_eq!(RawHttpClient::get(server, "/short", &[("x-user-id", &long[..256])]).await.0.status, 200);

    // The HTTP server's limit on request heads applies first. Either way it is a 431 and no permit
    // is held.
    let enormous = "x".repeat(1 << 20);
    let mut client = RawHttpClient::send(server, "/short", &[("x-user-id", &enormous)]).await;
    assert_eq!(within("a response", client.head()).await.status, 431);
    let (head, body) = refusal(server, "/short", &[("x-user-id", "a"), ("x-user-id", "b")]).await;
    assert_eq!((head.status, body["error"].as_str()), (400, Some("bad_request")));
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn an_invalid_thread_id_is_replaced() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_header()).await;
    for bad in ["two words", "", &"x".repeat(5_000), "caf\u{e9}"] {
        let (head, echo) = refusal(server, "/echo", &[("x-thread-id", bad)]).await;
        let thread = head.header("x-thread-id").unwrap();
        assert_eq!((head.status, thread.len()), (200, 36), "{bad}");
        assert_eq!((echo["thread"].as_str(), echo["thread_header"].as_str()), (Some(thread), Some(thread)));
    }
}
