//! The way to the collector: OTLP over HTTP, one request at a time.
//!
//! Invariant: no request takes longer than its deadline; an outage is told once at its beginning and once at its end, for each
//! signal; and no error repeats a header.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;
use tracing::{info, warn};

use super::outage::Outage;
use crate::client::{ClientError, HttpClient};
use crate::config::OtelConfig;
use crate::metrics;

/// What OTLP's exporters grant a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// An answer says how much was refused, and why, in a few words.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
        }
    }
}

/// Why something didn't arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("no answer within {DEADLINE:?}")]
    Late,
    #[error("the collector answers {0}")]
    Status(StatusCode),
}

impl DeliveryError {
    /// Whether the same bytes may arrive later, as OTLP has it.
    pub(super) fn retry(&self) -> bool {
        match self {
            DeliveryError::Late => true,
            DeliveryError::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            DeliveryError::Client(ClientError::Connect { .. } | ClientError::Disconnected { .. }) => true,
            DeliveryError::Client(ClientError::TooLarge { .. } | ClientError::Unsendable { .. }) => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Delivery {
    client: HttpClient,
    headers: HeaderMap,
    traces: Outage,
    metrics: Outage,
}

impl Delivery {
    pub(super) fn new(config: &OtelConfig) -> Delivery {
        let mut headers: HeaderMap = config.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let client = HttpClient::new(config.endpoint.clone());
        Delivery { client, headers, traces: Outage::default(), metrics: Outage::default() }
    }

    /// Sends a message, and gives the collector's.
    pub(super) async fn send(&mut self, signal: Signal, message: Bytes) -> Result<Vec<u8>, DeliveryError> {
        let sent = timeout(DEADLINE, self.post(signal, message)).await;
        let sent = sent.unwrap_or(Err(DeliveryError::Late));
        self.note(signal, &sent);
        sent
    }

    /// How long to wait before the next try.
    pub(super) fn pause(&mut self, signal: Signal) -> Duration {
        self.outage(signal).pause()
    }

    async fn post(&mut self, signal: Signal, message: Bytes) -> Result<Vec<u8>, DeliveryError> {
        let response = self.client.post(signal.path(), &self.headers, message).await?;
        let status = response.status();
        let answer = self.client.body(response, MAX_ANSWER_BYTES, |_| {}).await?;
        if status.is_success() { Ok(answer) } else { Err(DeliveryError::Status(status)) }
    }

    fn note(&mut self, signal: Signal, sent: &Result<Vec<u8>, DeliveryError>) {
        let name = signal.as_str();
        match sent {
            Ok(_) => {
                metrics::exported(name, "arrived");
                if let Some(failures) = self.outage(signal).arrived() {
                    info!(signal = name, failures, "the collector takes telemetry again");
                }
            }
            Err(error) => {
                metrics::exported(name, if error.retry() { "failed" } else { "refused" });
                if self.outage(signal).failed() {
                    warn!(signal = name, %error, "the collector takes no telemetry");
                }
            }
        }
    }

    fn outage(&mut self, signal: Signal) -> &mut Outage {
        match signal {
            Signal::Traces => &mut self.traces,
            Signal::Metrics => &mut self.metrics,
        }
    }
}
