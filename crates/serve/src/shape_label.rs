//! Shape label: the name of a live request's shape in lists of open streams.
//!
//! The server clones the service for each connection. A client of long-polls requests the same
//! shape again and again on one connection, so the last label is kept there, and shared.

use std::sync::Arc;

use crate::protocol::ShapeRequest;

/// The label of a connection's last live request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShapeLabel(Option<Arc<str>>);

impl ShapeLabel {
    /// Returns the table and the handle that the client requests: `schema.table handle`. `None` if
    /// the request names no table. A text that can't be a handle is left out, so the length is
    /// bounded.
    pub(crate) fn of(&mut self, request: &ShapeRequest) -> Option<Arc<str>> {
        let table = request.table.as_ref()?;
        let handle = request.valid_handle();
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
        self.0 = Some(Arc::clone(&label));
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
            ("table=items&offset=5_0&handle=1-&live=true", "public.items"),
            ("table=items&offset=-1", "public.items"),
            ("table=app.items&offset=-1", "app.items"),
        ] {
            assert_eq!(of_connection.of(&request(query)).as_deref(), Some(expected));
        }
    }
}
