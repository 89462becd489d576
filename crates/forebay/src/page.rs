//! A page in one document, and the policy that lets nothing run but its own style and script.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response};
use ring::digest::{SHA256, digest};

/// A document with its style and script inside.
#[derive(Debug)]
pub(crate) struct Page {
    document: Bytes,
    policy: HeaderValue,
}

impl Page {
    /// The style goes where the document says `{{style}}`, the script where it says `{{script}}`.
    pub(crate) fn new(document: &str, style: &str, script: &str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; \
             form-action 'self'; frame-ancestors 'none'",
            hash(script),
            hash(style)
        );
        let document = document.replace("{{style}}", style).replace("{{script}}", script);
        let policy = HeaderValue::from_str(&policy).expect("a policy is ASCII");
        Page { document: Bytes::from(document), policy }
    }

    pub(crate) fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.document.clone());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        harden(headers);
        response
    }
}

/// What holds for a page and for what it reads.
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
