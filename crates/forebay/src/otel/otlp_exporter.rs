//! OTLP exporter: sends messages to the collector over HTTP, one request at a time.
//!
//! Invariant: no request takes longer than its timeout. For each signal, an outage is logged once
//! at its start and once at its end. No error contains a header.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;
use tracing::{info, warn};

use super::collector_outage::CollectorOutage;
use crate::client::{ClientError, HttpClient};
use crate::config::OtelConfig;
use crate::metrics;

/// Timeout of a request, the default of OTLP exporters.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response. It contains the number of rejected items and a short reason.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Kind of exported data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtlpSignal {
    Traces,
    Metrics,
}

impl OtlpSignal {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            OtlpSignal::Traces => "traces",
            OtlpSignal::Metrics => "metrics",
        }
    }

    fn path(self) -> &'static str {
        match self {
            OtlpSignal::Traces => "/v1/traces",
            OtlpSignal::Metrics => "/v1/metrics",
        }
    }
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("no response within {EXPORT_TIMEOUT:?}")]
    Timeout,
    #[error("the collector responded with {0}")]
    Status(StatusCode),
}

impl ExportError {
    /// Returns whether the same message may be sent again, as OTLP specifies.
    pub(super) fn retry(&self) -> bool {
        match self {
            ExportError::Timeout => true,
            ExportError::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            ExportError::Client(ClientError::Connect { .. } | ClientError::Disconnected { .. }) => true,
            ExportError::Client(ClientError::TooLarge { .. } | ClientError::Unsendable { .. }) => false,
        }
    }
}

/// HTTP client for the collector, with the state of outages.
#[derive(Debug)]
pub(super) struct OtlpExporter {
    client: HttpClient,
    headers: HeaderMap,
    traces: CollectorOutage,
    metrics: CollectorOutage,
}

impl OtlpExporter {
    pub(super) fn new(config: &OtelConfig) -> OtlpExporter {
        let mut headers: HeaderMap = config.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let client = HttpClient::new(config.endpoint.clone());
        OtlpExporter {
            client,
            headers,
            traces: CollectorOutage::default(),
            metrics: CollectorOutage::default(),
        }
    }

    /// Sends a message. Returns the body of the response.
    pub(super) async fn send(&mut self, signal: OtlpSignal, message: Bytes) -> Result<Vec<u8>, ExportError> {
        let sent = timeout(EXPORT_TIMEOUT, self.post(signal, message)).await;
        let sent = sent.unwrap_or(Err(ExportError::Timeout));
        self.record(signal, &sent);
        sent
    }

    /// Returns the delay before the next attempt.
    pub(super) fn retry_delay(&mut self, signal: OtlpSignal) -> Duration {
        self.outage(signal).retry_delay()
    }

    async fn post(&mut self, signal: OtlpSignal, message: Bytes) -> Result<Vec<u8>, ExportError> {
        let response = self.client.post(signal.path(), &self.headers, message).await?;
        let status = response.status();
        let body = self.client.body(response, MAX_RESPONSE_BYTES, |_| {}).await?;
        if status.is_success() { Ok(body) } else { Err(ExportError::Status(status)) }
    }

    /// Counts the result, and logs the start and the end of an outage.
    fn record(&mut self, signal: OtlpSignal, sent: &Result<Vec<u8>, ExportError>) {
        let name = signal.as_str();
        match sent {
            Ok(_) => {
                metrics::exported(name, "arrived");
                if let Some(failures) = self.outage(signal).succeeded() {
                    info!(signal = name, failures, "telemetry export recovered");
                }
            }
            Err(error) => {
                metrics::exported(name, if error.retry() { "failed" } else { "refused" });
                if self.outage(signal).failed() {
                    warn!(signal = name, %error, "telemetry export failing");
                }
            }
        }
    }

    fn outage(&mut self, signal: OtlpSignal) -> &mut CollectorOutage {
        match signal {
            OtlpSignal::Traces => &mut self.traces,
            OtlpSignal::Metrics => &mut self.metrics,
        }
    }
}
