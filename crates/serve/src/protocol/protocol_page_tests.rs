//! Compares `docs/protocol.md` with the code: it documents exactly the parameters and refusals of
//! shapes.

use std::collections::BTreeSet;

use forebay_testkit::{named, quoted, rows, section};
use http::Method;
use serde_json::Value;

use super::query_params::PARAM_NAMES;
use super::{InvalidRequest, QueryParams, RequestRefusal};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");

fn page() -> String {
    std::fs::read_to_string(PAGE).unwrap_or_else(|error| panic!("{PAGE}: {error}"))
}

#[test]
fn exactly_the_known_parameters_are_documented() {
    let page = page();
    let mut known: BTreeSet<String> =
        PARAM_NAMES.map(|name| if name == "params" { "params[1]" } else { name }.to_owned()).into();
    for secret in ["secret", "api_secret"] {
        assert!(QueryParams::parse(&format!("{secret}=x")).secret().is_some());
        known.insert(secret.to_owned());
    }
    assert_eq!(named(section(&page, "## Parameters of a shape\n")), known);
}

/// Returns one refusal of each kind, except `BadToken`: admission defines its codes. Texts that
/// other modules write are `…`.
fn refusals() -> Vec<RequestRefusal> {
    // A new variant fails to compile here. Add it to the list below.
    let _all = |refusal: &RequestRefusal| match refusal {
        RequestRefusal::Invalid(_)
        | RequestRefusal::Unauthorized
        | RequestRefusal::TokenRequired
        | RequestRefusal::BadToken { .. }
        | RequestRefusal::BadGrant { .. }
        | RequestRefusal::NotGranted
        | RequestRefusal::ForeignHost
        | RequestRefusal::NoRoute
        | RequestRefusal::NoShape
        | RequestRefusal::Method { .. }
        | RequestRefusal::MustRefetch { .. }
        | RequestRefusal::BodyUnreadable
        | RequestRefusal::BodyTooSlow
        | RequestRefusal::BodyTooLarge
        | RequestRefusal::QueryTooLong
        | RequestRefusal::NotReady { .. }
        | RequestRefusal::Overloaded { .. }
        | RequestRefusal::SnapshotFailed { .. }
        | RequestRefusal::DatabaseUnreachable => {}
    };
    vec![
        RequestRefusal::Invalid(InvalidRequest::field("table", "…")),
        RequestRefusal::Unauthorized,
        RequestRefusal::TokenRequired,
        RequestRefusal::BadGrant { message: "…".into() },
        RequestRefusal::NotGranted,
        RequestRefusal::ForeignHost,
        RequestRefusal::NoRoute,
        RequestRefusal::NoShape,
        RequestRefusal::Method { allow: "" },
        RequestRefusal::MustRefetch { handle: None },
        RequestRefusal::BodyUnreadable,
        RequestRefusal::BodyTooSlow,
        RequestRefusal::BodyTooLarge,
        RequestRefusal::QueryTooLong,
        RequestRefusal::NotReady { message: "…".into() },
        RequestRefusal::overloaded("…", 1, 0),
        RequestRefusal::SnapshotFailed { message: "…".into() },
        RequestRefusal::DatabaseUnreachable,
    ]
}

#[test]
fn refusals_of_shapes_are_documented_as_clients_read_them() {
    let page = page();
    let text = section(&page, "### Of shapes\n");
    let (coded, rest) = text.split_once("Of a token").expect("the codes of tokens follow the other codes");
    let (_, plain) = rest.split_once("Without a code:").expect("refusals without a code come last");
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
    let documented: BTreeSet<_> =
        rows(coded).iter().map(|row| (quoted(&row[0]).concat(), row[1].clone())).collect();
    assert_eq!(documented, by_code);
    let unquoted = |cell: &String| cell.trim_matches('`').to_owned();
    let documented: BTreeSet<_> = rows(plain).iter().map(|row| (row[0].clone(), unquoted(&row[1]))).collect();
    assert_eq!(documented, by_message);
}
