//! HTML page in one document, with a content security policy that allows only its own style and
//! script.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response};
use ring::digest::{SHA256, digest};

/// Document that contains its style and script.
#[derive(Debug)]
pub(crate) struct HtmlPage {
    document: Bytes,
    policy: HeaderValue,
}

impl HtmlPage {
    /// Creates a page. The document has `{{style}}` and `{{script}}` where these belong.
    pub(crate) fn new(document: &str, style: &str, script: &str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; \
             form-action 'self'; frame-ancestors 'none'",
            hash(script),
            hash(style)
        );
        let document = document.replace("{{style}}", style).replace("{{script}}", script);
        let policy = HeaderValue::from_str(&policy).expect("a policy is ASCII");
        HtmlPage { document: Bytes::from(document), policy }
    }

    /// Returns the page as a response.
    pub(crate) fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.document.clone());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        add_security_headers(headers);
        response
    }
}

/// Adds the security headers of a page and of the data that it loads.
pub(crate) fn add_security_headers(headers: &mut HeaderMap) {
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(resource_policy, HeaderValue::from_static("same-origin"));
}

/// Returns the hash of a text as a source of a content security policy.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}
