//! Whether `docs/protocol.md` says what the code does: every parameter, every refusal of shapes;
//! and nothing that isn't so.

use std::collections::BTreeSet;

use forebay_testkit::{named, quoted, rows, section};
use http::Method;
use serde_json::Value;

use super::query::KNOWN;
use super::{Invalid, Query, Refusal};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");

fn page() -> String {
    std::fs::read_to_string(PAGE).unwrap_or_else(|error| panic!("{PAGE}: {error}"))
}

#[test]
fn parameters_are_documented_and_there_is_no_other() {
    let page = page();
    let mut known: BTreeSet<String> =
        KNOWN.map(|name| if name == "params" { "params[1]" } else { name }.to_owned()).into();
    for secret in ["secret", "api_secret"] {
        assert!(Query::parse(&format!("{secret}=x")).secret().is_some());
        known.insert(secret.to_owned());
    }
    assert_eq!(named(section(&page, "## Parameters of a shape\n")), known);
}

/// One of each refusal of shapes; what the server fills in is `…`.
fn refusals() -> Vec<Refusal> {
    // Another one doesn't compile here, and belongs in the list below.
    let _all = |refusal: &Refusal| match refusal {
        Refusal::Invalid(_)
        | Refusal::Unauthorized
        | Refusal::TokenRequired
        | Refusal::BadToken { .. }
        | Refusal::BadGrant { .. }
        | Refusal::NotGranted
        | Refusal::ForeignHost
        | Refusal::NoRoute
        | Refusal::NoShape
        | Refusal::Method { .. }
        | Refusal::MustRefetch { .. }
        | Refusal::BodyTooSlow
        | Refusal::BodyTooLarge
        | Refusal::QueryTooLong
        | Refusal::NotReady { .. }
        | Refusal::Overloaded { .. }
        | Refusal::SnapshotFailed { .. }
        | Refusal::DatabaseUnreachable => {}
    };
    vec![
        Refusal::Invalid(Invalid::field("table", "…")),
        Refusal::Unauthorized,
        Refusal::TokenRequired,
        Refusal::BadGrant { message: "…".into() },
        Refusal::NotGranted,
        Refusal::ForeignHost,
        Refusal::NoRoute,
        Refusal::NoShape,
        Refusal::Method { allow: "" },
        Refusal::MustRefetch { handle: None },
        Refusal::BodyTooSlow,
        Refusal::BodyTooLarge,
        Refusal::QueryTooLong,
        Refusal::NotReady { message: "…".into() },
        Refusal::overloaded("…", 1, 0),
        Refusal::SnapshotFailed { message: "…".into() },
        Refusal::DatabaseUnreachable,
    ]
}

#[test]
fn refusals_of_shapes_are_documented_as_clients_read_them() {
    let page = page();
    let text = section(&page, "### Of shapes\n");
    let (coded, rest) = text.split_once("Of a token").expect("codes, then those of tokens");
    let (_, plain) = rest.split_once("Without a code:").expect("then those without");
    let (mut by_code, mut by_message) = (BTreeSet::new(), BTreeSet::new());
    for refusal in refusals() {
        let response = refusal.response(&Method::GET);
        let (status, body) = (response.status().as_u16().to_string(), response.into_body());
        let json = serde_json::from_slice::<Value>(&body);
        match json.as_ref().ok().and_then(|json| json["code"].as_str()) {
            Some(code) => by_code.insert((code.to_owned(), status)),
            None => {
                let message =
                    json.as_ref().map(|json| json["message"].as_str().unwrap_or_default().to_owned());
                by_message.insert((status, message.unwrap_or_else(|_| String::from_utf8_lossy(&body).into())))
            }
        };
    }
    let told: BTreeSet<_> =
        rows(coded).iter().map(|row| (quoted(&row[0]).concat(), row[1].clone())).collect();
    assert_eq!(told, by_code);
    let unquoted = |cell: &String| cell.trim_matches('`').to_owned();
    let told: BTreeSet<_> = rows(plain).iter().map(|row| (row[0].clone(), unquoted(&row[1]))).collect();
    assert_eq!(told, by_message);
}
