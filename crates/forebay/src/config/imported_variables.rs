//! Environment variables of other programs that Forebay accepts: those of Electric and of the DSQL
//! plugin for `forebay serve`, and those of OpenTelemetry. The declarations of the settings
//! (`sections/`) name the variables.

use forebay_settings::{ImportSource, Setting};

use super::dsql_variables::{DSQL, DSQL_WITHOUT_EFFECT, RESERVOIR_ENABLED};
use super::electric_variables::{ELECTRIC, WITHOUT_EFFECT};
use super::otel_config::WITHOUT_OTEL;

/// Parser that returns the text unchanged.
pub(super) use forebay_settings::verbatim as text;

pub(super) const DATABASE_URL: &str = "DATABASE_URL";
/// Values that request the behavior that Forebay always has. They need no notice.
const FIXED_BEHAVIOR_VALUES: &[&str] = &["false", "0", "file", "fast_file", "http/protobuf"];

/// Variables of Electric.
pub(super) const ELECTRIC_VARIABLES: ImportSource = ImportSource::new(ELECTRIC)
    .without_effect(WITHOUT_EFFECT)
    .report_unknown("it is not among the variables of Electric that Forebay maps")
    .is_common(|name| name == DATABASE_URL)
    .requests_fixed_behavior(requests_fixed_behavior)
    .why_unavailable(why_unavailable);

/// Variables of the DSQL plugin.
pub(super) const DSQL_VARIABLES: ImportSource = ImportSource::new(DSQL)
    .without_effect(DSQL_WITHOUT_EFFECT)
    .report_unknown("it is not among the variables of the DSQL plugin that Forebay maps")
    .requests_fixed_behavior(requests_fixed_behavior)
    .why_unavailable(why_unavailable);

/// Variables of OpenTelemetry. They are often set for all programs of a cluster.
pub(super) const OPENTELEMETRY_VARIABLES: ImportSource = ImportSource::new("OTEL_")
    .without_effect(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "only `http/protobuf` is supported")])
    .is_common(|_| true)
    .requests_fixed_behavior(requests_fixed_behavior)
    .why_unavailable(why_unavailable);

/// Returns whether a value of a variable without effect requests what Forebay does anyway.
fn requests_fixed_behavior(name: &str, text: &str) -> bool {
    match name {
        RESERVOIR_ENABLED => matches!(text.to_lowercase().as_str(), "true" | "1"),
        _ => FIXED_BEHAVIOR_VALUES.contains(&text.to_lowercase().as_str()),
    }
}

/// Returns why this build has no use for a setting.
fn why_unavailable(setting: &Setting) -> Option<String> {
    let is_of_otel = setting.path.starts_with("otel.");
    (is_of_otel && !cfg!(feature = "otel")).then(|| format!("this program {WITHOUT_OTEL}"))
}

#[cfg(test)]
#[cfg(feature = "otel")]
mod tests {
    use crate::cli::GateArgs;
    use crate::config::{GateConfig, load_gate};

    fn with(variables: &[(&str, &str)]) -> GateConfig {
        let upstream = [("FOREBAY_GATE_UPSTREAM", "http://127.0.0.1:8000")];
        let all = upstream.iter().chain(variables).map(|(name, value)| ((*name).into(), (*value).into()));
        load_gate(GateArgs::default(), all).unwrap()
    }

    #[test]
    fn opentelemetry_variables_are_settings_and_forebay_variables_override_them() {
        let theirs = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cr3t"),
            ("OTEL_SERVICE_NAME", "edge"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ];
        let config = with(&theirs);
        assert!(config.variable_notices.is_empty(), "{:?}", config.variable_notices);
        let otel = config.otel.unwrap();
        assert_eq!(otel.endpoint.to_string(), "http://collector.test:4318");
        assert_eq!((otel.headers.len(), otel.service_name.as_str()), (1, "edge"));
        assert!(!format!("{otel:?}").contains("s3cr3t"));
        let ours = ("FOREBAY_OTEL_ENDPOINT", "http://other.test:4318");
        let both = with(&[theirs[0], ours]).otel.unwrap();
        assert_eq!(both.endpoint.to_string(), "http://other.test:4318");
        let grpc = with(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert_eq!(grpc.variable_notices[0].variable, "OTEL_EXPORTER_OTLP_PROTOCOL");
    }
}
