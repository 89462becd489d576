//! OpenTelemetry's own environment variables, as far as they are understood.

use super::borrowed::Counterpart::{Missing, These};
use super::borrowed::{Known, known, text};

/// Weaker than Electric's, which are meant for this program alone.
pub(super) const KNOWN: &[Known] = &[
    known("OTEL_EXPORTER_OTLP_ENDPOINT", These(&[("otel.endpoint", text)]), ""),
    known("OTEL_EXPORTER_OTLP_HEADERS", These(&[("otel.headers", text)]), ""),
    known("OTEL_SERVICE_NAME", These(&[("otel.service_name", text)]), ""),
    known("OTEL_EXPORTER_OTLP_PROTOCOL", Missing, "`http/protobuf` is all that is spoken"),
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
    fn opentelemetry_s_variables_are_settings_and_ours_are_stronger() {
        let theirs = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cr3t"),
            ("OTEL_SERVICE_NAME", "edge"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ];
        let config = with(&theirs);
        assert!(config.borrowed.is_empty(), "{:?}", config.borrowed);
        let otel = config.otel.unwrap();
        assert_eq!(otel.endpoint.to_string(), "http://collector.test:4318");
        assert_eq!((otel.headers.len(), otel.service_name.as_str()), (1, "edge"));
        assert!(!format!("{otel:?}").contains("s3cr3t"));
        let ours = ("FOREBAY_OTEL_ENDPOINT", "http://other.test:4318");
        let both = with(&[theirs[0], ours]).otel.unwrap();
        assert_eq!(both.endpoint.to_string(), "http://other.test:4318");
        let spoken = with(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert_eq!(spoken.borrowed[0].variable, "OTEL_EXPORTER_OTLP_PROTOCOL");
    }
}
