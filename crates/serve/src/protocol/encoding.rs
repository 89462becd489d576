//! Whether a client takes gzip.

use http::header::{ACCEPT_ENCODING, HeaderMap};

/// By what its headers say; a weight of zero is a no, and what is named counts before `*`.
pub fn takes_gzip(request: &HeaderMap) -> bool {
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
    named.or(any).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_says_what_it_takes() {
        let takes = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            takes_gzip(&headers)
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
