//! Content coding: whether a response body is compressed.

use http::header::{ACCEPT_ENCODING, HeaderMap};

/// How a response body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentCoding {
    /// Not compressed.
    Identity,
    /// Compressed by gzip.
    Gzip,
}

/// Returns gzip if the client accepts it. A weight of zero refuses it, and an explicit entry
/// overrides `*`.
pub fn negotiate(request: &HeaderMap) -> ContentCoding {
    let lists = request.get_all(ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
    let (mut named, mut any) = (None, None);
    for coding in lists.flat_map(|list| list.split(',')) {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.split(';').find_map(|parameter| {
            let (name, weight) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| weight.trim().parse::<f32>().unwrap_or(0.0))
        });
        let is_taken = weight.is_none_or(|weight| weight > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                named = Some(is_taken);
            }
            "*" => any = Some(is_taken),
            _ => {}
        }
    }
    match named.or(any) {
        Some(true) => ContentCoding::Gzip,
        Some(false) | None => ContentCoding::Identity,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_used_only_if_the_client_accepts_it() {
        let takes = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            negotiate(&headers) == ContentCoding::Gzip
        };
        for values in
            [&["gzip"][..], &["br, GZip;q=0.1"], &["br", "gzip"], &["*"], &["br;q=1,*;q=0.5"], &["x-gzip"]]
        {
            assert!(takes(values), "{values:?}");
        }
        for values in [
            &[][..],
            &[""],
            &["br"],
            &["gzip;q=0"],
            &["gzip; q=0.0, *"],
            &["*;q=0"],
            &["gzip;q=x"],
            &["gzipped"],
        ] {
            assert!(!takes(values), "{values:?}");
        }
    }
}
