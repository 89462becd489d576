//! Tests of identification. The tokens and keys in `tests/fixtures` were made with OpenSSL, and
//! their private keys are deleted. The tests sign all other tokens.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, process};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use ring::hmac;
use serde_json::{Value, json};

use super::jwks::ReloadIntervals;
use super::*;

const SECRET: &[u8] = b"a secret that has more than thirty-two bytes";
/// Expiry in the far future: 2100-01-01.
const FAR_FUTURE: u64 = 4_102_444_800;
const NEVER: Duration = Duration::from_secs(1 << 30);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn pem(name: &str) -> Vec<u8> {
    fs::read(fixture(&format!("{name}.pem"))).unwrap()
}

/// Tokens made by OpenSSL for the user `ada`, by algorithm.
fn openssl_tokens() -> BTreeMap<String, String> {
    serde_json::from_slice(&fs::read(fixture("tokens.json")).unwrap()).unwrap()
}

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn signed(header: &Value, claims: &Value, key: &[u8]) -> String {
    let message = format!("{}.{}", encoded(header), encoded(claims));
    let algorithm = match header["alg"].as_str() {
        Some("HS384") => hmac::HMAC_SHA384,
        Some("HS512") => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    };
    let tag = hmac::sign(&hmac::Key::new(algorithm, key), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
}

fn token(alg: &str) -> String {
    signed(&json!({"alg": alg}), &json!({"sub": "ada", "exp": FAR_FUTURE}), SECRET)
}

async fn check(jwt: &Jwt, token: &str) -> Result<String, TokenFault> {
    jwt.check(token).await.map(|subject| subject.user)
}

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in all {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers
}

async fn user_of(
    identify: &Identifier,
    peer: &str,
    all: &[(&'static str, &str)],
) -> Result<String, IdentifyError> {
    let peer: Option<IpAddr> = Some(peer.parse().unwrap());
    let client = identify.identify(&headers(all), peer).await?;
    Ok(client.as_user().map_or("anonymous", |user| user.id()).to_owned())
}

fn all_methods() -> Identifier {
    Identifier::new()
        .jwt(Jwt::secret(SECRET).unwrap())
        .api_keys(ApiKeys::new().key("key-of-bob", "bob"))
        .trusted_proxies(["10.0.0.0/8".parse().unwrap()])
        .trusted_header()
        .address(ForwardedHeader::XForwardedFor)
}

#[tokio::test]
async fn a_token_signed_with_the_shared_secret_names_its_user() {
    let jwt = Jwt::secret(SECRET).unwrap();
    for alg in ["HS256", "HS384", "HS512"] {
        assert_eq!(check(&jwt, &token(alg)).await, Ok("ada".into()), "{alg}");
    }
    let other = Jwt::secret(b"another secret, which has thirty-two bytes").unwrap();
    assert_eq!(check(&other, &token("HS256")).await, Err(TokenFault::BadSignature));
}

#[tokio::test]
async fn tokens_signed_by_openssl_are_accepted_and_forged_ones_are_not() {
    let keys = [("R", "rsa"), ("P", "rsa"), ("ES256", "p256"), ("ES384", "p384"), ("Ed", "ed25519")];
    let mut verified = 0;
    for (alg, token) in openssl_tokens() {
        for (prefix, name) in keys {
            let jwt = Jwt::public_key_pem(&pem(name)).unwrap();
            let expected = if alg.starts_with(prefix) { Ok("ada".into()) } else { Err(TokenFault::NoKey) };
            let same_key = name == "rsa" && (alg.starts_with('R') || alg.starts_with('P'));
            if !same_key || expected.is_ok() {
                assert_eq!(check(&jwt, &token).await, expected, "{alg} by {name}");
            }
            if expected.is_ok() {
                verified += 1;
                let forged = forge(&token);
                assert_eq!(check(&jwt, &forged).await, Err(TokenFault::BadSignature), "{alg}");
            }
        }
    }
    assert_eq!(verified, 9);
}

/// Returns the token with the claims of another user.
fn forge(token: &str) -> String {
    let mut parts: Vec<String> = token.split('.').map(ToOwned::to_owned).collect();
    parts[1] = encoded(&json!({"sub": "eve", "exp": FAR_FUTURE}));
    parts.join(".")
}

#[tokio::test]
async fn an_unsigned_token_is_refused_in_any_spelling_of_none() {
    let jwt = Jwt::secret(SECRET).unwrap();
    let claims = encoded(&json!({"sub": "ada", "exp": FAR_FUTURE}));
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let header = encoded(&json!({"alg": alg, "typ": "JWT"}));
        for token in
            [format!("{header}.{claims}."), format!("{header}.{claims}"), format!("{header}.{claims}.e30")]
        {
            assert_eq!(check(&jwt, &token).await, Err(TokenFault::Malformed), "{token}");
        }
    }
    let unsigned = format!("{}.{claims}.", encoded(&json!({"alg": "HS256"})));
    assert_eq!(check(&jwt, &unsigned).await, Err(TokenFault::BadSignature));
    let without_algorithm = format!("{}.{claims}.AAAA", encoded(&json!({"typ": "JWT"})));
    assert_eq!(check(&jwt, &without_algorithm).await, Err(TokenFault::Malformed));
}

/// Algorithm confusion: an HMAC with the public key as its secret.
#[tokio::test]
async fn a_public_key_is_not_accepted_as_an_hmac_secret() {
    for name in ["rsa", "p256", "p384", "ed25519"] {
        let jwt = Jwt::public_key_pem(&pem(name)).unwrap();
        for alg in ["HS256", "HS384", "HS512"] {
            let forged = signed(&json!({"alg": alg}), &json!({"sub": "eve", "exp": FAR_FUTURE}), &pem(name));
            assert_eq!(check(&jwt, &forged).await, Err(TokenFault::NoKey), "{alg} by {name}");
        }
    }
    let jwks = Jwt::jwks_file(fixture("jwks.json")).unwrap();
    let forged = signed(
        &json!({"alg": "HS256", "kid": "rsa"}),
        &json!({"sub": "eve", "exp": FAR_FUTURE}),
        &pem("rsa"),
    );
    assert_eq!(check(&jwks, &forged).await, Err(TokenFault::NoKey));
}

#[tokio::test]
async fn a_key_inside_the_token_is_not_used() {
    let jwt = Jwt::secret(SECRET).unwrap();
    let attacker_secret = b"a secret of the attacker, thirty-two bytes";
    let jwk = json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode(attacker_secret), "alg": "HS256"});
    let header = json!({"alg": "HS256", "jwk": jwk, "jku": "https://evil.example/jwks", "kid": "mine"});
    let forged = signed(&header, &json!({"sub": "eve", "exp": FAR_FUTURE}), attacker_secret);
    assert_eq!(check(&jwt, &forged).await, Err(TokenFault::BadSignature));
}

#[tokio::test]
async fn a_critical_extension_is_refused() {
    let jwt = Jwt::secret(SECRET).unwrap();
    let header = json!({"alg": "HS256", "crit": ["b64"], "b64": false});
    let token = signed(&header, &json!({"sub": "ada", "exp": FAR_FUTURE}), SECRET);
    assert_eq!(check(&jwt, &token).await, Err(TokenFault::Malformed));
}

#[tokio::test]
async fn a_token_expires_by_the_system_clock() {
    let jwt = Jwt::secret(SECRET).unwrap();
    let token = |exp: u64| signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": exp}), SECRET);
    assert_eq!(check(&jwt, &token(1_700_000_000)).await, Err(TokenFault::Expired));
    assert_eq!(check(&jwt, &token(FAR_FUTURE)).await, Ok("ada".into()));
}

#[tokio::test]
async fn invalid_text_is_a_malformed_token() {
    let jwt = Jwt::secret(SECRET).unwrap();
    let list = format!("{}.{}.AAAA", encoded(&json!({"alg": "HS256"})), encoded(&json!([1, 2])));
    let dots = ".".repeat(10_000);
    for token in ["", "x", "a.b", "a.b.c", "....", "é.é.é", &dots] {
        assert_eq!(check(&jwt, token).await, Err(TokenFault::Malformed), "{token:.20}");
    }
    assert_eq!(check(&jwt, &list).await, Err(TokenFault::BadSignature));
    let signed_list = signed(&json!({"alg": "HS256"}), &json!([1, 2]), SECRET);
    assert_eq!(check(&jwt, &signed_list).await, Err(TokenFault::Malformed));
}

#[test]
fn invalid_keys_are_refused_at_configuration() {
    let error_text = |result: Result<Jwt, KeyError>| result.map(drop).unwrap_err().to_string();
    assert!(error_text(Jwt::secret(b"short")).contains("5 bytes"));
    assert!(error_text(Jwt::public_key_pem(b"rubbish")).contains("PEM"));
    let private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n";
    assert!(error_text(Jwt::public_key_pem(private.as_bytes())).contains("public key"));
    assert!(error_text(Jwt::jwks_file("/nowhere/jwks.json")).contains("/nowhere/jwks.json"));
    let dir = TempKeyDir::new("bad");
    let jwks = |content: &str| error_text(Jwt::jwks_file(dir.file(content)));
    assert!(jwks("{}").contains("no JSON Web Key Set"));
    assert!(jwks("{\"keys\": [{\"kty\": \"magic\"}]}").contains("none of its 1 keys"));
    let short = json!({"keys": [{"kty": "oct", "k": "c2hvcnQ", "alg": "HS256"}]});
    assert!(jwks(&short.to_string()).contains("none of its 1 keys"));
    let for_encryption = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "use": "enc"}]});
    assert!(jwks(&for_encryption.to_string()).contains("none of its 1 keys"));
    let many = json!({"keys": vec![json!({"kty": "oct", "k": "AAAA"}); 300]});
    assert!(jwks(&many.to_string()).contains("300 keys"));
    assert!(jwks(&" ".repeat(2 << 20)).contains("bytes"));
}

#[tokio::test]
async fn a_jwks_file_verifies_tokens_by_their_key_id() {
    let jwt = Jwt::jwks_file(fixture("jwks.json")).unwrap();
    for (alg, token) in openssl_tokens() {
        assert_eq!(check(&jwt, &token).await, Ok("ada".into()), "{alg}");
        assert_eq!(check(&jwt, &forge(&token)).await, Err(TokenFault::BadSignature), "{alg}");
    }
}

#[tokio::test]
async fn a_key_with_an_algorithm_verifies_no_other_algorithm() {
    let dir = TempKeyDir::new("algorithm");
    let mut set: Value = serde_json::from_slice(&fs::read(fixture("jwks.json")).unwrap()).unwrap();
    set["keys"][0]["alg"] = json!("RS512");
    let jwt = Jwt::jwks_file(dir.file(&set.to_string())).unwrap();
    let tokens = openssl_tokens();
    assert_eq!(check(&jwt, &tokens["RS512"]).await, Ok("ada".into()));
    assert_eq!(check(&jwt, &tokens["RS256"]).await, Err(TokenFault::NoKey));
}

fn key_set(id: &str, secret: &[u8]) -> String {
    json!({"keys": [{"kty": "oct", "kid": id, "k": URL_SAFE_NO_PAD.encode(secret)}]}).to_string()
}

fn token_signed_with(id: &str, secret: &[u8]) -> String {
    signed(&json!({"alg": "HS256", "kid": id}), &json!({"sub": "ada", "exp": FAR_FUTURE}), secret)
}

const OLD: &[u8] = b"the old secret, which has thirty-two bytes";
const NEW: &[u8] = b"the new secret, which has thirty-two bytes";

#[tokio::test]
async fn a_changed_jwks_file_is_reloaded_and_old_keys_are_dropped() {
    let dir = TempKeyDir::new("rotation");
    let file = dir.file(&key_set("old", OLD));
    let intervals = ReloadIntervals { max_age: Duration::ZERO, unknown_key: NEVER };
    let jwt = Jwt::jwks_file_with(&file, intervals).unwrap();
    assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Ok("ada".into()));
    fs::write(&file, key_set("new", NEW)).unwrap();
    assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Err(TokenFault::NoKey));
    assert_eq!(check(&jwt, &token_signed_with("new", NEW)).await, Ok("ada".into()));
    // If the file is truncated or missing, the last keys stay. A valid file is loaded again.
    for broken in [Some("{\"keys\": ["), None] {
        match broken {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        assert_eq!(check(&jwt, &token_signed_with("new", NEW)).await, Ok("ada".into()), "{broken:?}");
    }
    fs::write(&file, key_set("old", OLD)).unwrap();
    assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Ok("ada".into()));
}

#[tokio::test]
async fn an_empty_key_set_revokes_the_last_key() {
    let dir = TempKeyDir::new("revoked");
    let file = dir.file(&key_set("old", OLD));
    let jwt =
        Jwt::jwks_file_with(&file, ReloadIntervals { max_age: Duration::ZERO, unknown_key: NEVER }).unwrap();
    let for_encryption = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "use": "enc"}]});
    for unusable in [json!({"keys": []}), for_encryption] {
        fs::write(&file, key_set("old", OLD)).unwrap();
        assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Ok("ada".into()));
        fs::write(&file, unusable.to_string()).unwrap();
        assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Err(TokenFault::NoKey), "{unusable}");
        // An unreadable file does not restore the key.
        fs::remove_file(&file).unwrap();
        assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Err(TokenFault::NoKey), "{unusable}");
    }
    // With an empty set, a process starts and refuses all tokens.
    let jwt = Jwt::jwks_file(dir.file("{\"keys\": []}")).unwrap();
    assert_eq!(check(&jwt, &token_signed_with("old", OLD)).await, Err(TokenFault::NoKey));
}

#[tokio::test]
async fn an_unknown_key_id_reloads_the_file_at_most_once_per_interval() {
    let dir = TempKeyDir::new("unknown");
    let file = dir.file(&key_set("old", OLD));
    let unlimited =
        Jwt::jwks_file_with(&file, ReloadIntervals { max_age: NEVER, unknown_key: Duration::ZERO }).unwrap();
    let limited = Jwt::jwks_file_with(&file, ReloadIntervals { max_age: NEVER, unknown_key: NEVER }).unwrap();
    fs::write(&file, key_set("new", NEW)).unwrap();
    assert_eq!(
        check(&unlimited, &token_signed_with("old", OLD)).await,
        Ok("ada".into()),
        "known keys cause no reload"
    );
    assert_eq!(check(&unlimited, &token_signed_with("new", NEW)).await, Ok("ada".into()));
    assert_eq!(check(&limited, &token_signed_with("new", NEW)).await, Err(TokenFault::NoKey));
    let many = (0..1_000).map(|n| token_signed_with(&format!("unknown-{n}"), NEW));
    for token in many {
        assert_eq!(check(&limited, &token).await, Err(TokenFault::NoKey));
    }
}

#[tokio::test]
async fn methods_are_tried_in_order() {
    let (identify, bearer) = (all_methods(), format!("Bearer {}", token("HS256")));
    let all = [("authorization", &*bearer), ("x-api-key", "key-of-bob"), ("x-user-id", "eve")];
    assert_eq!(user_of(&identify, "10.0.0.1", &all).await, Ok("ada".into()));
    assert_eq!(user_of(&identify, "10.0.0.1", &all[1..]).await, Ok("bob".into()));
    assert_eq!(user_of(&identify, "10.0.0.1", &all[2..]).await, Ok("eve".into()));
    let forwarded = [("x-forwarded-for", "198.51.100.7, 10.0.0.9")];
    assert_eq!(user_of(&identify, "10.0.0.1", &forwarded).await, Ok("198.51.100.7".into()));
    assert_eq!(user_of(&identify, "2001:db8:1:2::3", &[]).await, Ok("2001:db8:1:2::".into()));
    assert_eq!(user_of(&Identifier::new(), "10.0.0.1", &all).await, Ok("anonymous".into()));
}

#[tokio::test]
async fn a_header_from_an_untrusted_peer_is_ignored_and_removed() {
    let identify = all_methods();
    let forged = [("x-user-id", "admin"), ("x-forwarded-for", "10.0.0.1"), ("accept", "*/*")];
    assert_eq!(user_of(&identify, "203.0.113.9", &forged).await, Ok("203.0.113.9".into()));
    let mut remaining = headers(&forged);
    let stripped = identify.strip_untrusted(&mut remaining, Some("203.0.113.9".parse().unwrap()));
    assert_eq!(stripped, ["x-user-id", "x-forwarded-for"]);
    assert_eq!(remaining.keys().collect::<Vec<_>>(), ["accept"]);
    let mut remaining = headers(&forged);
    assert!(identify.strip_untrusted(&mut remaining, Some("10.1.1.1".parse().unwrap())).is_empty());
    assert_eq!(remaining.len(), 3);
    // Without a peer address, no peer is trusted.
    assert_eq!(identify.strip_untrusted(&mut remaining, None).len(), 2);
}

#[tokio::test]
async fn a_wrong_credential_is_refused_even_if_another_is_valid() {
    let identify = all_methods();
    let bad = [("authorization", "Bearer nonsense"), ("x-api-key", "key-of-bob")];
    assert_eq!(user_of(&identify, "10.0.0.1", &bad).await, Err(IdentifyError::Token(TokenFault::Malformed)));
    let unknown = [("x-api-key", "guess"), ("x-user-id", "eve")];
    let unknown_key = IdentifyError::ApiKey { header: HeaderName::from_static("x-api-key") };
    assert_eq!(user_of(&identify, "10.0.0.1", &unknown).await, Err(unknown_key.clone()));
    assert_eq!(user_of(&identify, "10.0.0.1", &[("x-api-key", "")]).await, Err(unknown_key));
    // Other schemes are ignored.
    assert_eq!(
        user_of(&identify, "203.0.113.9", &[("authorization", "Basic eDp5")]).await,
        Ok("203.0.113.9".into())
    );
}

#[tokio::test]
async fn a_repeated_header_is_refused_as_ambiguous() {
    let identify = all_methods();
    for name in ["authorization", "x-api-key", "x-user-id"] {
        let twice = [(name, "Bearer x"), (name, "Bearer y")];
        let expected = IdentifyError::Ambiguous { header: HeaderName::from_static(name) };
        assert_eq!(user_of(&identify, "10.0.0.1", &twice).await, Err(expected));
    }
}

#[tokio::test]
async fn too_long_credentials_are_refused_as_too_long() {
    let identify = all_methods();
    let long = "x".repeat(1 << 20);
    let bearer = format!("Bearer {long}");
    for (name, value) in [("x-user-id", &long), ("x-api-key", &long), ("authorization", &bearer)] {
        let fault = user_of(&identify, "10.0.0.1", &[(name, value)]).await.unwrap_err();
        assert_eq!(fault.as_str(), "too_long", "{name}");
    }
    let token = signed(&json!({"alg": "HS256"}), &json!({"sub": "x".repeat(300), "exp": FAR_FUTURE}), SECRET);
    let fault = user_of(&identify, "10.0.0.1", &[("authorization", &format!("bearer {token}"))]).await;
    assert_eq!(fault, Err(IdentifyError::Id(InvalidUserId::TooLong { bytes: 300 })));
    let padded = format!("Bearer   {}  ", self::token("HS256"));
    assert_eq!(user_of(&identify, "10.0.0.1", &[("authorization", &padded)]).await, Ok("ada".into()));
}

#[tokio::test]
async fn a_key_in_the_authorization_header_follows_bearer() {
    let keys = ApiKeys::new().key("key-of-bob", "bob").header(AUTHORIZATION);
    let identify = Identifier::new().api_keys(keys);
    let user_of = |value: &'static str| {
        let identify = identify.clone();
        async move { user_of(&identify, "10.0.0.1", &[("authorization", value)]).await }
    };
    assert_eq!(user_of("Bearer key-of-bob").await, Ok("bob".into()));
    assert_eq!(user_of("Bearer key-of-eve").await, Err(IdentifyError::ApiKey { header: AUTHORIZATION }));
    assert_eq!(user_of("Basic key-of-bob").await, Ok("anonymous".into()));
}

#[tokio::test]
async fn keys_and_tokens_may_share_the_authorization_header() {
    let keys = ApiKeys::new().key("key-of-bob", "bob").header(AUTHORIZATION);
    let identify = Identifier::new().jwt(Jwt::secret(SECRET).unwrap()).api_keys(keys);
    let user_of = async |value: &str| user_of(&identify, "10.0.0.1", &[("authorization", value)]).await;
    assert_eq!(user_of(&format!("Bearer {}", token("HS256"))).await, Ok("ada".into()));
    assert_eq!(user_of("Bearer key-of-bob").await, Ok("bob".into()));
    assert_eq!(user_of("Bearer key-of-eve").await, Err(IdentifyError::Token(TokenFault::Malformed)));
    let too_long = user_of(&format!("Bearer {}", "x".repeat(1 << 20))).await.unwrap_err();
    assert_eq!(too_long.as_str(), "too_long");
}

#[tokio::test]
async fn a_class_comes_from_the_token_the_key_or_the_proxy() {
    let identify = Identifier::new()
        .jwt(Jwt::secret(SECRET).unwrap().class_claim("plan"))
        .api_keys(ApiKeys::new().key_of_class("key", "bob", Class::new("gold")))
        .trusted_proxies(["10.0.0.0/8".parse().unwrap()])
        .trusted_header()
        .trusted_class_header(HeaderName::from_static("x-user-class"));
    let class = async |all: &[(&'static str, &str)]| {
        let client = identify.identify(&headers(all), Some("10.0.0.1".parse().unwrap())).await.unwrap();
        client.class.as_str().to_owned()
    };
    let token =
        signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": FAR_FUTURE, "plan": "free"}), SECRET);
    assert_eq!(class(&[("authorization", &format!("Bearer {token}"))]).await, "free");
    assert_eq!(class(&[("x-api-key", "key")]).await, "gold");
    assert_eq!(class(&[("x-user-id", "eve"), ("x-user-class", "silver")]).await, "silver");
    assert_eq!(class(&[("x-user-id", "eve")]).await, "user");
    assert_eq!(class(&[("x-user-class", "silver")]).await, "anonymous");
}

#[tokio::test]
async fn without_authentication_methods_clients_get_the_class_user() {
    let class = async |identify: Identifier| {
        identify.identify(&HeaderMap::new(), Some("10.0.0.1".parse().unwrap())).await.unwrap().class
    };
    assert_eq!(class(Identifier::new()).await, Class::USER);
    assert_eq!(class(Identifier::new().address(ForwardedHeader::PeerOnly)).await, Class::USER);
    assert_eq!(class(all_methods()).await, Class::ANONYMOUS);
}

/// Temporary directory that is removed on drop.
struct TempKeyDir(PathBuf);

impl TempKeyDir {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("forebay-keys-{}-{name}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        TempKeyDir(dir)
    }

    fn file(&self, content: &str) -> PathBuf {
        let file = self.0.join("jwks.json");
        fs::write(&file, content).unwrap();
        file
    }
}

impl Drop for TempKeyDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn claims_are_returned_for_valid_tokens_only() {
    let identify = all_methods();
    let verify = async |line: &str| identify.token(&headers(&[("authorization", line)])).await;
    let claims = json!({"sub": "ada", "exp": FAR_FUTURE, "shapes": [1]});
    let good = signed(&json!({"alg": "HS256"}), &claims, SECRET);
    let token = verify(&format!("Bearer {good}")).await.unwrap().unwrap();
    assert_eq!((token.claim("shapes"), token.claim("other")), (Some(&json!([1])), None));
    assert!(token.remaining().is_some_and(|left| left > Duration::from_secs(1 << 20)));
    assert_eq!(verify("Basic YTpi").await, Ok(None));
    assert_eq!(identify.token(&HeaderMap::new()).await, Ok(None));
    assert_eq!(Identifier::new().token(&headers(&[("authorization", "Bearer x")])).await, Ok(None));
    let forged = verify(&format!("Bearer {}", forge(&good))).await;
    assert_eq!(forged, Err(IdentifyError::Token(TokenFault::BadSignature)));
    let line = format!("Bearer {good}");
    let twice = headers(&[("authorization", &line), ("authorization", &line)]);
    assert!(matches!(identify.token(&twice).await, Err(IdentifyError::Ambiguous { .. })));
}

#[tokio::test]
async fn renewing_keys_keeps_the_methods_the_header_and_the_proxies() {
    let identify = Identifier::new().api_keys(ApiKeys::new().key("old", "ada")).trusted_proxies([]);
    let fresh = ApiKeys::new().header(HeaderName::from_static("x-key")).key("new", "bob");
    let fresh = all_methods().api_keys(fresh);
    identify.clone().renew_keys(&fresh);
    let peer = "10.0.0.1";
    assert!(matches!(
        user_of(&identify, peer, &[("x-api-key", "old")]).await,
        Err(IdentifyError::ApiKey { .. })
    ));
    assert_eq!(user_of(&identify, peer, &[("x-api-key", "new")]).await, Ok("bob".into()));
    let line = format!("Bearer {}", token("HS256"));
    for other_method in [("authorization", &*line), ("x-user-id", "eve")] {
        assert_eq!(
            user_of(&identify, peer, &[other_method]).await,
            Ok("anonymous".into()),
            "{other_method:?}"
        );
    }
}

#[tokio::test]
async fn replaced_methods_apply_to_all_clones_but_not_to_derived_copies() {
    let identify = all_methods();
    let (clone, derived) = (identify.clone(), identify.clone().trusted_proxies([]));
    let other = Jwt::secret(b"another secret, which has thirty-two bytes").unwrap();
    identify.replace(&Identifier::new().jwt(other));
    let line = format!("Bearer {}", token("HS256"));
    let bearer = [("authorization", line.as_str())];
    let refused = Err(IdentifyError::Token(TokenFault::BadSignature));
    assert_eq!(user_of(&identify, "203.0.113.9", &bearer).await, refused);
    assert_eq!(user_of(&clone, "203.0.113.9", &bearer).await, refused);
    assert_eq!(user_of(&derived, "203.0.113.9", &bearer).await, Ok("ada".into()));
}
