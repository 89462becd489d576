//! The page for people, at `/` of the admin address.
//!
//! Invariant: one document has everything that it needs: it asks no other host, and no script or style but its own runs, which its
//! policy says by their hashes. It changes nothing, and shows no row's value and no secret.
//! Kept by: what it shows is [`Report::glance`](crate::admin::Report::glance), in which there are none.
//!
//! | to find | look in |
//! |---|---|
//! | the document, its style | `page.html`, `page.css` |
//! | its script: units, lists and plots; what is shown where | `instruments.js`; `page.js` |
//! | what it is told each second | `live.rs` |
//! | what was measured in the last minutes | `history.rs` |

mod history;
mod live;

use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;

pub use self::history::Sample;
pub use self::live::Events;
pub(crate) use self::live::Live;
use crate::page::Page;

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let script = concat!(include_str!("instruments.js"), include_str!("page.js"));
    Page::new(include_str!("page.html"), include_str!("page.css"), script)
});

/// The page.
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
    fn nothing_but_its_own_script_and_style_may_run() {
        let policy = page().headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }
}
