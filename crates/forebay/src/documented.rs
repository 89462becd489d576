//! Whether `docs/protocol.md` and `docs/config.md` say what the code does: every endpoint with its methods, every parameter, every error that a
//! client can read, every variable that is no setting; and nothing that isn't so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use http::Method;
use serde_json::Value;

use crate::admin::{self, Place};
use crate::serve::protocol::{Invalid, KNOWN, Query, Refusal, Route};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(name: &str) -> String {
    std::fs::read_to_string(workspace().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The part of a page from a line to the next heading of the same depth or a smaller one, without the headings.
fn section<'a>(page: &'a str, from: &str) -> &'a str {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("no {from:?}"));
    let end = ["\n## ", "\n### "].iter().filter_map(|mark| rest.find(mark)).min();
    &rest[..end.unwrap_or(rest.len())]
}

/// The cells of a text's tables, row by row, without their heads.
fn rows(text: &str) -> Vec<Vec<String>> {
    let is_line = |line: &str| line.starts_with("|---");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let lines: Vec<&str> = text.lines().chain([""]).collect();
    let rows =
        lines.windows(2).filter(|pair| pair[0].starts_with('|') && !is_line(pair[0]) && !is_line(pair[1]));
    rows.map(|pair| cells(pair[0])).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All that stands so in the first column.
fn named(text: &str) -> BTreeSet<String> {
    rows(text).iter().flat_map(|row| quoted(&row[0])).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn endpoints_are_documented_with_their_methods_and_there_is_no_other() {
    let page = file("docs/protocol.md");
    let endpoints = section(&page, "## Endpoints\n");
    let (clients, operators) = endpoints.split_once("For operators").expect("two tables");
    let told = |table: &str| -> BTreeSet<(String, String)> {
        rows(table).into_iter().map(|row| (quoted(&row[0]).concat(), row[1].clone())).collect()
    };
    let routes = Route::ALL.map(|route| (route.path().to_owned(), route.methods(true).to_owned()));
    assert_eq!(told(clients), routes.into());
    let places = Place::ALL.map(|place| (place.path().to_owned(), admin::METHODS.to_owned()));
    assert_eq!(told(operators), places.into());
}

#[test]
fn parameters_are_documented_and_there_is_no_other() {
    let page = file("docs/protocol.md");
    let mut known = set(KNOWN.map(|name| if name == "params" { "params[1]" } else { name }));
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
    let page = file("docs/protocol.md");
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

/// The words of a function's arms: `Kind::Variant => "word",`.
fn arms(source: &str, function: &str) -> BTreeSet<String> {
    let text = file(source);
    let (_, body) = text.split_once(function).unwrap_or_else(|| panic!("{source} has no {function}"));
    let body = body.split("\n    }\n").next().unwrap_or_default().split("\n}\n").next().unwrap_or_default();
    let arms = body.lines().filter_map(|line| line.split_once("=> \"")?.1.strip_suffix("\","));
    arms.map(str::to_owned).collect()
}

#[test]
fn errors_of_tokens_admission_gate_and_admin_are_documented_as_clients_read_them() {
    let page = file("docs/protocol.md");
    let of_token = section(&page, "Of a token").split("Without a code:").next().unwrap_or_default();
    let mut faults = arms("crates/admission/src/identity/jwt.rs", "pub fn as_str(self)");
    faults.extend(arms("crates/admission/src/identity/mod.rs", "pub fn as_str(&self)"));
    assert_eq!(named(of_token), faults);

    let of_admission = arms("crates/admission/src/problem.rs", "fn error(reason: Reason)");
    assert_eq!(named(section(&page, "### Of admission\n")), of_admission);

    let mut of_gate = arms("crates/server/src/gate/refusal.rs", "fn as_str(&self)");
    of_gate.extend(arms("crates/server/src/gate/failure.rs", "fn as_str(&self)"));
    assert_eq!(named(section(&page, "### Of the gate alone\n")), of_gate);

    let admin = file("crates/server/src/admin.rs");
    let words: Vec<&str> =
        admin.split("problem(").skip(1).filter_map(|call| call.split('"').nth(1)).collect();
    let of_admin: BTreeSet<String> = words.into_iter().map(str::to_owned).collect();
    assert_eq!(named(section(&page, "### Of the admin address\n")), of_admin);
}

#[test]
fn variables_that_are_no_settings_are_documented() {
    let page = file("docs/config.md");
    let (_, text) = page.split_once("Some variables are no settings").expect("a paragraph");
    let told = named(text.split("\n## ").next().unwrap_or_default());
    // Read by a library, as the certificates of this system are.
    let mut read = set(["SSL_CERT_FILE", "SSL_CERT_DIR"]);
    for source in [
        "crates/server/src/terminal.rs",
        "crates/sandbox/src/folder.rs",
        "crates/sandbox/src/postgres/programs.rs",
    ] {
        let text = file(source);
        read.extend(
            text.split("var_os(\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned),
        );
    }
    // Everybody's.
    read.retain(|name| !matches!(name.as_str(), "PATH" | "TERM"));
    assert_eq!(told, read);
}

/// As GitHub makes an anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(Into::into).into();
    let docs = std::fs::read_dir(workspace().join("docs")).unwrap();
    pages.extend(docs.map(|entry| Path::new("docs").join(entry.unwrap().file_name())));
    let mut followed = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let (text, folder) = (file(&page.display().to_string()), page.parent().unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, place) = link.split_once('#').unwrap_or((link, ""));
            let target = workspace().join(if path.is_empty() { page.clone() } else { folder.join(path) });
            assert!(target.exists(), "{}: {link}", page.display());
            if !place.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap();
                let mut headings = there.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#')) == place);
                assert!(found, "{}: no heading for {link}", page.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 30, "{followed} links");
}
