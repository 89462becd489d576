//! Shape label: the name of a live request's shape in lists of open streams.
//!
//! The server clones the service for each connection. A client of long-polls requests the same
//! shape again and again on one connection, so the last label is kept there, and shared.

use std::sync::Arc;

use crate::protocol::ShapeRequest;

/// Longest label that is kept, in bytes. Admission shows 255 of them.
const MAX_KEPT_BYTES: usize = 512;

/// The label of a connection's last live request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeLabel(Option<Arc<str>>);

impl ShapeLabel {
    /// Returns the table and the handle that the client requests: `schema.table handle`. `None` if
    /// the request names no table. Admission bounds the length.
    pub(crate) fn of(&mut self, request: &ShapeRequest) -> Option<Arc<str>> {
        let table = request.table.as_ref()?;
        let handle = request.handle.as_deref().filter(|handle| !handle.is_empty());
        let parts = [
            table.schema.as_str(),
            ".",
            table.name.as_str(),
            if handle.is_some() { " " } else { "" },
            handle.unwrap_or_default(),
        ];
        if let Some(label) = &self.0
            && is_concatenation(label, &parts)
        {
            return Some(Arc::clone(label));
        }
        let label: Arc<str> = parts.concat().into();
        self.0 = (label.len() <= MAX_KEPT_BYTES).then(|| Arc::clone(&label));
        Some(label)
    }
}

/// Returns whether the text is these parts, one after another.
fn is_concatenation(text: &str, parts: &[&str]) -> bool {
    let rest = parts.iter().try_fold(text, |rest, part| rest.strip_prefix(part));
    rest.is_some_and(str::is_empty)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::protocol::QueryParams;

    fn request(query: &str) -> ShapeRequest {
        ShapeRequest::parse(&Method::GET, &QueryParams::parse(query), &[]).unwrap()
    }

    #[test]
    fn the_next_request_for_a_shape_gets_the_same_label_without_formatting_it() {
        let mut label = ShapeLabel::default();
        let first = label.of(&request("table=items&offset=5_0&handle=1-2&live=true")).unwrap();
        assert_eq!(&*first, "public.items 1-2");
        // Each connection has a clone of the service.
        let mut of_connection = label.clone();
        let next = of_connection.of(&request("table=items&offset=9_2&handle=1-2&live=true")).unwrap();
        assert!(Arc::ptr_eq(&first, &next));
        for (query, expected) in [
            ("table=items&offset=5_0&handle=1-23&live=true", "public.items 1-23"),
            ("table=items&offset=5_0&handle=1-&live=true", "public.items 1-"),
            ("table=items&offset=-1", "public.items"),
            ("table=app.items&offset=-1", "app.items"),
        ] {
            assert_eq!(of_connection.of(&request(query)).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_long_label_is_not_kept() {
        let mut label = ShapeLabel::default();
        let long = request(&format!("table=items&offset=5_0&handle={}", "1".repeat(100_000)));
        assert_eq!(label.of(&long).map(|label| label.len()), Some("public.items ".len() + 100_000));
        assert!(label.0.is_none());
    }
}
