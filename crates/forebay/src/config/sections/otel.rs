//! Settings of `[otel]`.

use std::time::Duration;

use forebay_settings::SecretText;

use crate::config::electric_variables::{percent, time};
use crate::config::imported_variables::text;
use crate::config::settings_macro::settings;

settings! {
    /// Export of traces and metrics by OTLP over HTTP. It needs a build with the feature `otel`:
    /// `cargo install --path crates/forebay --features otel`.
    OtelSection: "otel" {
        /// URL of the collector. `/v1/traces` and `/v1/metrics` are appended.
        endpoint: Option<String>,
            unset("none, nothing is sent"),
            example("http://127.0.0.1:4318"),
            opentelemetry("OTEL_EXPORTER_OTLP_ENDPOINT"),
            electric(
                "ELECTRIC_OTLP_ENDPOINT",
                text,
                "needs a build with the feature `otel`, as the other variables of `[otel]` do",
            );

        /// Headers for the collector, `NAME=VALUE,NAME=VALUE`, in the format of
        /// `OTEL_EXPORTER_OTLP_HEADERS`: `%XX` in values is decoded. Better set them in the
        /// variable.
        headers: Option<SecretText>,
            example("api-key=long and random"),
            opentelemetry("OTEL_EXPORTER_OTLP_HEADERS");

        /// Service name in the exported data.
        service_name: String = "forebay", opentelemetry("OTEL_SERVICE_NAME");

        /// Interval of the metrics export.
        interval_ms: Duration = 10_000, electric("ELECTRIC_OTEL_EXPORT_PERIOD", time, "");

        /// Percentage of the traces that start here and are sent. A trace that started elsewhere is
        /// sent if its sampled flag is set.
        sample_percent: f64 = 100,
            bounds(0, 100),
            electric("ELECTRIC_OTEL_SAMPLING_RATIO", percent, "");
    }
}
