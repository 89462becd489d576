//! OpenTelemetry's environment variables that Forebay accepts.

use super::imported_variables::Counterpart::{Nothing, Settings};
use super::imported_variables::{KnownVariable, known_variable, text};

/// Electric's variables override these, because they are for this program only.
pub(super) const OPENTELEMETRY_VARIABLES: &[KnownVariable] = &[
    known_variable("OTEL_EXPORTER_OTLP_ENDPOINT", Settings(&[("otel.endpoint", text)]), ""),
    known_variable("OTEL_EXPORTER_OTLP_HEADERS", Settings(&[("otel.headers", text)]), ""),
    known_variable("OTEL_SERVICE_NAME", Settings(&[("otel.service_name", text)]), ""),
    known_variable("OTEL_EXPORTER_OTLP_PROTOCOL", Nothing, "only `http/protobuf` is supported"),
];

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
