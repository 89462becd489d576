//! The page for people, at `/` of the admin address.
//!
//! Invariant: one document has everything that it needs: it asks no other host, and no script or style but its own runs, which its
//! policy says by their hashes. It changes nothing, and shows no row's value and no secret.
//! Kept by: what it shows is [`Report::glance`](crate::admin::Report::glance), in which there are none.
//!
//! | to find | look in |
//! |---|---|
//! | the document, its style, its script | `page.html`, `page.css`, `page.js` |
//! | what it is told each second | `live.rs` |
//! | what was measured in the last minutes | `history.rs` |

mod history;
mod live;

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response};
use ring::digest::{SHA256, digest};

pub use self::history::Sample;
pub use self::live::Events;
pub(crate) use self::live::Live;

const DOCUMENT: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The document, and its policy.
static PAGE: LazyLock<(Bytes, HeaderValue)> = LazyLock::new(|| {
    let document = DOCUMENT.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    (Bytes::from(document), HeaderValue::from_str(&policy).expect("a policy is ASCII"))
});

/// The page.
pub(crate) fn page() -> Response<Bytes> {
    let (document, policy) = &*PAGE;
    let mut response = Response::new(document.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    harden(headers);
    response
}

/// What holds for the page and for what it reads.
pub(crate) fn harden(headers: &mut HeaderMap) {
    let own = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(own, HeaderValue::from_static("same-origin"));
}

/// As a policy names it.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_that_names_no_other_host() {
        let page = page();
        let text = std::str::from_utf8(page.body()).unwrap();
        assert!(!text.contains("{{"), "a part is missing");
        let own = text.replace("http://www.w3.org/2000/svg", "").replace("http://${listen}/", "");
        for foreign in ["http:", "https:", "src=\"/", "@import", "url("] {
            assert!(!own.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn nothing_but_its_own_script_and_style_may_run() {
        let policy = page().headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }
}
