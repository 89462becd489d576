//! Where traces and metrics are sent, checked.

use std::time::Duration;

use forebay_serve::protocol::decode_hex_pair;
use http::{HeaderName, HeaderValue};

use super::check::{Check, ValueError};
use super::file::OtelSection;
use crate::client::Endpoint;

/// What a program without it says; somebody is told how to get one with it.
pub(super) const WITHOUT_OTEL: &str =
    "was built without OpenTelemetry; build it with `cargo install --path crates/forebay --features otel`";

/// Where traces and metrics go, and how many.
#[derive(Debug, Clone)]
pub struct OtelConfig {
    /// The collector.
    pub endpoint: Endpoint,
    /// What it is shown; sensitive, so that no debug output has it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What this service is called there.
    pub service_name: String,
    /// How often metrics are sent.
    pub interval: Duration,
    /// Which part of the traces that begin here is sent, 0 to 1.
    pub sample: f64,
}

/// `is_built_in`: whether this program could send anything.
pub(super) fn check_otel(
    otel: &OtelSection,
    is_built_in: bool,
    check: &Check,
) -> Result<Option<OtelConfig>, ValueError> {
    const KEY: &str = "otel.endpoint";
    let headers = check_headers(otel, check)?;
    let interval = check.duration("otel.interval_ms", otel.interval_ms, Duration::from_secs(10))?;
    let percent = otel.sample_percent.unwrap_or(100.0);
    if !(0.0..=100.0).contains(&percent) {
        return Err(check.wrong("otel.sample_percent", percent.to_string(), "must be 0 to 100, in percent"));
    }
    let Some(url) = &otel.endpoint else { return Ok(None) };
    if !is_built_in {
        return Err(check.wrong(KEY, None, format!("can't be followed: this program {WITHOUT_OTEL}")));
    }
    // It isn't repeated: somebody may have put a password there.
    let why = |error: crate::client::EndpointError| {
        format!("leads nowhere: {}; write a URL such as http://127.0.0.1:4318", error.why())
    };
    let endpoint = url.parse().map_err(|error| check.wrong(KEY, None, why(error)))?;
    let service_name = otel.service_name.clone().unwrap_or_else(|| "forebay".to_owned());
    Ok(Some(OtelConfig { endpoint, headers, service_name, interval, sample: percent / 100.0 }))
}

fn check_headers(otel: &OtelSection, check: &Check) -> Result<Vec<(HeaderName, HeaderValue)>, ValueError> {
    let text = otel.headers.as_ref().map_or("", |headers| headers.reveal());
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let headers = pairs.map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&decoded(value.trim())).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.trim()).ok()?, value))
    });
    headers.collect::<Option<_>>().ok_or_else(|| {
        let why = "must be headers such as NAME=VALUE,NAME=VALUE, with %20 and the like for what a header can't have";
        check.wrong("otel.headers", None, why)
    })
}

/// Resolves `%XX`; a percent sign that escapes nothing stands for itself.
fn decoded(text: &str) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let (byte, after) = decode_hex_pair(tail).filter(|_| *first == b'%').unwrap_or((*first, tail));
        decoded.push(byte);
        rest = after;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> OtelSection {
        toml::from_str(text).unwrap()
    }

    fn complaint(text: &str, is_built_in: bool) -> String {
        check_otel(&section(text), is_built_in, &Check::default()).unwrap_err().to_string()
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        assert!(check_otel(&section(""), true, &Check::default()).unwrap().is_none());
        assert!(check_otel(&section("headers = \"a=b\""), false, &Check::default()).unwrap().is_none());
        let text = "endpoint = \"http://127.0.0.1:4318\"";
        let otel = check_otel(&section(text), true, &Check::default()).unwrap().unwrap();
        assert_eq!((otel.service_name.as_str(), otel.sample), ("forebay", 1.0));
        assert_eq!(otel.interval, Duration::from_secs(10));
        let text = format!("{text}\nservice_name = \"edge\"\ninterval_ms = 7\nsample_percent = 0.5");
        let otel = check_otel(&section(&text), true, &Check::default()).unwrap().unwrap();
        assert_eq!((otel.service_name.as_str(), otel.sample), ("edge", 0.005));
        assert_eq!(otel.interval, Duration::from_millis(7));
    }

    #[test]
    fn a_program_without_it_says_how_to_build_one_with_it() {
        let error = complaint("endpoint = \"http://127.0.0.1:4318\"", false);
        assert!(error.contains("otel.endpoint") && error.contains("--features otel"), "{error}");
    }

    #[test]
    fn headers_are_read_as_opentelemetry_writes_them_and_never_shown() {
        let text = "endpoint = \"http://h\"\nheaders = \"Authorization=Basic%20czNjcjN0+=, x-team = a%zz ,\"";
        let otel = check_otel(&section(text), true, &Check::default()).unwrap().unwrap();
        let headers: Vec<_> =
            otel.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("authorization", &b"Basic czNjcjN0+="[..]), ("x-team", b"a%zz")]);
        assert!(!format!("{otel:?}").contains("czNjcjN0"));
    }

    #[test]
    fn what_can_not_be_meant_is_named_without_what_may_be_a_secret() {
        for (text, key) in [
            ("endpoint = \"collector:4318\"", "otel.endpoint"),
            ("endpoint = \"http://me:s3cr3t@h\"", "otel.endpoint"),
            ("headers = \"s3cr3t\"", "otel.headers"),
            ("headers = \"a b=s3cr3t\"", "otel.headers"),
            ("headers = \"a=s3cr3t%0A\"", "otel.headers"),
            ("sample_percent = 101", "otel.sample_percent"),
            ("sample_percent = nan", "otel.sample_percent"),
            ("interval_ms = 0", "otel.interval_ms"),
        ] {
            let error = complaint(text, true);
            assert!(error.contains(key) && !error.contains("s3cr3t"), "{error}");
        }
    }
}
