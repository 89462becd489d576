//! Dashboard: the page at `/` of the admin address.
//!
//! Invariant: the document is self-contained. It loads nothing from other hosts, and its content
//! security policy allows only its own style and script, by hash. It changes nothing, and shows no
//! value of a row and no secret.
//! Enforced by: it shows only
//! [`StatusReport::dashboard_status`](crate::admin::StatusReport::dashboard_status) and, while
//! their section is open, the streams of `/v1/streams`. Neither contains one.
//!
//! | to find | look in |
//! |---|---|
//! | document and style | `page.html`, `page.css` |
//! | script: units, lists, plots | `instruments.js` |
//! | script: which value is shown where | `page.js` |
//! | events sent each second | `feed.rs` |
//! | samples of the last ten minutes | `sample_history.rs` |

mod feed;
mod sample_history;

use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;

pub(crate) use self::feed::DashboardFeed;
pub use self::feed::EventStream;
pub use self::sample_history::DashboardSample;
use crate::html_page::HtmlPage;

static PAGE: LazyLock<HtmlPage> = LazyLock::new(|| {
    let script = concat!(include_str!("instruments.js"), include_str!("page.js"));
    HtmlPage::new(include_str!("page.html"), include_str!("page.css"), script)
});

/// Returns the page.
pub(crate) fn page() -> Response<Bytes> {
    PAGE.response()
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_SECURITY_POLICY;

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
    fn the_policy_allows_only_the_pages_own_script_and_style() {
        let policy = page().headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }
}
