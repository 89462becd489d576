//! Checked settings of `[otel]`.

use std::time::Duration;

use forebay_serve::protocol::decode_hex_pair;
use forebay_settings::{SettingLayers, ValueError};
use http::{HeaderName, HeaderValue};

use super::sections::OtelSection;
use crate::client::Endpoint;

/// Error of a build without the feature, and how to build one with it.
pub(super) const WITHOUT_OTEL: &str =
    "was built without OpenTelemetry; build it with `cargo install --path crates/forebay --features otel`";

/// Export of traces and metrics.
#[derive(Debug, Clone)]
pub struct OtelConfig {
    /// URL of the collector.
    pub endpoint: Endpoint,
    /// Headers for the collector. The values are marked sensitive, so that `Debug` hides them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Service name in the exported data.
    pub service_name: String,
    /// Interval of the metrics export.
    pub interval: Duration,
    /// Fraction of the traces that start here and are sent, 0 to 1.
    pub sample: f64,
}

/// Checks the section. `is_built_in` is whether this build has the feature `otel`.
pub(super) fn check_otel(
    otel: &OtelSection,
    is_built_in: bool,
    layers: &SettingLayers,
) -> Result<Option<OtelConfig>, ValueError> {
    const KEY: &str = "otel.endpoint";
    let headers = check_headers(otel, layers)?;
    let Some(url) = &otel.endpoint else { return Ok(None) };
    if !is_built_in {
        return Err(layers.error(KEY, None, format!("has no effect: this program {WITHOUT_OTEL}")));
    }
    // The error does not quote the URL, because it may contain a password.
    let why = |error: crate::client::EndpointError| {
        format!("is not a valid URL: {}; write one such as http://127.0.0.1:4318", error.why())
    };
    let endpoint = url.parse().map_err(|error| layers.error(KEY, None, why(error)))?;
    let service_name = otel.service_name.clone();
    let (interval, sample) = (otel.interval_ms, otel.sample_percent / 100.0);
    Ok(Some(OtelConfig { endpoint, headers, service_name, interval, sample }))
}

fn check_headers(
    otel: &OtelSection,
    layers: &SettingLayers,
) -> Result<Vec<(HeaderName, HeaderValue)>, ValueError> {
    let text = otel.headers.as_ref().map_or("", |headers| headers.reveal());
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let headers = pairs.map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&percent_decoded(value.trim())).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.trim()).ok()?, value))
    });
    headers.collect::<Option<_>>().ok_or_else(|| {
        let why = "must be headers such as NAME=VALUE,NAME=VALUE; escape characters that a header can't have, such as %20";
        layers.error("otel.headers", None, why)
    })
}

/// Decodes `%XX`. A percent sign without two hexadecimal digits stays.
fn percent_decoded(text: &str) -> Vec<u8> {
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
    use std::path::Path;

    use forebay_settings::CommandDeclaration;

    use super::*;
    use crate::config::sections::GateSettings;

    fn check(text: &str, is_built_in: bool) -> Result<Option<OtelConfig>, ValueError> {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        layers.text(&format!("[otel]\n{text}"), Path::new("gate.toml")).unwrap();
        check_otel(&OtelSection::read(&layers)?, is_built_in, &layers)
    }

    fn error_of(text: &str, is_built_in: bool) -> String {
        check(text, is_built_in).unwrap_err().to_string()
    }

    #[test]
    fn telemetry_is_off_without_an_endpoint() {
        assert!(check("", true).unwrap().is_none());
        assert!(check("headers = \"a=b\"", false).unwrap().is_none());
        let text = "endpoint = \"http://127.0.0.1:4318\"";
        let otel = check(text, true).unwrap().unwrap();
        assert_eq!((otel.service_name.as_str(), otel.sample), ("forebay", 1.0));
        assert_eq!(otel.interval, Duration::from_secs(10));
        let text = format!("{text}\nservice_name = \"edge\"\ninterval_ms = 7\nsample_percent = 0.5");
        let otel = check(&text, true).unwrap().unwrap();
        assert_eq!((otel.service_name.as_str(), otel.sample), ("edge", 0.005));
        assert_eq!(otel.interval, Duration::from_millis(7));
    }

    #[test]
    fn an_endpoint_without_the_feature_is_an_error_with_the_build_command() {
        let error = error_of("endpoint = \"http://127.0.0.1:4318\"", false);
        assert!(error.contains("otel.endpoint") && error.contains("--features otel"), "{error}");
    }

    #[test]
    fn headers_are_parsed_in_the_format_of_opentelemetry_and_never_printed() {
        let text = "endpoint = \"http://h\"\nheaders = \"Authorization=Basic%20czNjcjN0+=, x-team = a%zz ,\"";
        let otel = check(text, true).unwrap().unwrap();
        let headers: Vec<_> =
            otel.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("authorization", &b"Basic czNjcjN0+="[..]), ("x-team", b"a%zz")]);
        assert!(!format!("{otel:?}").contains("czNjcjN0"));
    }

    #[test]
    fn errors_name_the_key_without_a_possible_secret() {
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
            let error = error_of(text, true);
            assert!(error.contains(key) && !error.contains("s3cr3t"), "{error}");
        }
    }
}
