//! Tests that compare `docs/protocol.md` and `docs/config.md` with the code: every endpoint with
//! its methods, every error that a client can receive, and every environment variable that is not a
//! setting. Pages list nothing else.
//!
//! `protocol/protocol_page_tests.rs` of `crates/serve` compares the parameters and refusals of
//! shapes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use forebay_serve::protocol::{DeletePolicy, Route};
use forebay_testkit::{named, quoted, rows, section};

use crate::admin::AdminRoute;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(name: &str) -> String {
    std::fs::read_to_string(workspace().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn exactly_the_endpoints_of_the_code_are_documented_with_their_methods() {
    let page = file("docs/protocol.md");
    let endpoints = section(&page, "## Endpoints\n");
    let (clients, operators) = endpoints.split_once("For operators").expect("two tables");
    let documented = |table: &str| -> BTreeSet<(String, String)> {
        rows(table).into_iter().map(|row| (quoted(&row[0]).concat(), row[1].clone())).collect()
    };
    let routes =
        Route::ALL.map(|route| (route.path().to_owned(), route.methods(DeletePolicy::Allow).to_owned()));
    assert_eq!(documented(clients), routes.into());
    let routes = AdminRoute::ALL.map(|route| (route.path().to_owned(), route.methods().to_owned()));
    assert_eq!(documented(operators), routes.into());
}

/// Returns the texts of a function's `match` arms: `Kind::Variant => "word",`.
fn arms(source: &str, function: &str) -> BTreeSet<String> {
    let text = file(source);
    let (_, body) = text.split_once(function).unwrap_or_else(|| panic!("{source} has no {function}"));
    let body = body.split("\n    }\n").next().unwrap_or_default().split("\n}\n").next().unwrap_or_default();
    let arms = body.lines().filter_map(|line| line.split_once("=> \"")?.1.strip_suffix("\","));
    arms.map(str::to_owned).collect()
}

#[test]
fn errors_of_tokens_admission_gate_and_admin_are_documented() {
    let page = file("docs/protocol.md");
    let of_token = section(&page, "Of a token").split("Without a code:").next().unwrap_or_default();
    let mut faults = arms("crates/admission/src/identity/jwt.rs", "pub fn as_str(self)");
    faults.extend(arms("crates/admission/src/identity/mod.rs", "pub fn as_str(&self)"));
    assert_eq!(named(of_token), faults);

    let of_admission = arms("crates/admission/src/problem_details.rs", "fn error(reason: RejectionReason)");
    assert_eq!(named(section(&page, "### Of admission\n")), of_admission);

    let mut of_gate = arms("crates/gate/src/gate_refusal.rs", "fn as_str(&self)");
    of_gate.extend(arms("crates/gate/src/upstream_error.rs", "fn as_str(&self)"));
    assert_eq!(named(section(&page, "### Of the gate alone\n")), of_gate);

    let admin = file("crates/forebay/src/admin.rs") + &file("crates/forebay/src/stream_endpoints.rs");
    let codes: Vec<&str> =
        admin.split("problem(").skip(1).filter_map(|call| call.split('"').nth(1)).collect();
    let of_admin: BTreeSet<String> = codes.into_iter().map(str::to_owned).collect();
    assert_eq!(named(section(&page, "### Of the admin address\n")), of_admin);
}

#[test]
fn environment_variables_that_are_not_settings_are_documented() {
    let page = file("docs/config.md");
    let (_, text) = page.split_once("Some variables are no settings").expect("a paragraph");
    let documented = named(text.split("\n## ").next().unwrap_or_default());
    // A library reads these, to find the system's certificates.
    let mut read = set(["SSL_CERT_FILE", "SSL_CERT_DIR"]);
    for source in [
        "crates/forebay/src/terminal.rs",
        "crates/sandbox/src/folder.rs",
        "crates/sandbox/src/postgres/programs.rs",
    ] {
        let text = file(source);
        read.extend(
            text.split("var_os(\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned),
        );
    }
    // These belong to every program.
    read.retain(|name| !matches!(name.as_str(), "PATH" | "TERM"));
    assert_eq!(documented, read);
}

/// Returns the anchor that GitHub derives from a heading.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_between_pages_have_a_target() {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(Into::into).into();
    let docs = std::fs::read_dir(workspace().join("docs")).unwrap();
    pages.extend(docs.map(|entry| Path::new("docs").join(entry.unwrap().file_name())));
    let mut links = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let (text, folder) = (file(&page.display().to_string()), page.parent().unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = workspace().join(if path.is_empty() { page.clone() } else { folder.join(path) });
            assert!(target.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#')) == heading);
                assert!(found, "{}: no heading for {link}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 30, "{links} links");
}
