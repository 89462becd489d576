//! Metric labels that an operator takes from request headers, such as `model=x-model`.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

/// Maximum number of configured labels.
pub const MAX_METRIC_LABELS: usize = 4;

/// Names that the metric, or Prometheus itself, uses.
const USED_NAMES: [&str; 6] = ["kind", "outcome", "job", "instance", "le", "quantile"];

/// Headers with a credential, an address or an id, none of which may be in a metric.
const PRIVATE_HEADERS: [&str; 10] = [
    "cf-connecting-ip",
    "forwarded",
    "sec-websocket-protocol", // browsers can't set another header, so it often has a token
    "true-client-ip",
    "x-forwarded-email",
    "x-forwarded-for",
    "x-forwarded-user",
    "x-real-ip",
    "x-thread-id",
    "x-user-id",
];

/// Parts of the names of headers with a credential.
const PRIVATE_PARTS: [&str; 6] = ["api-key", "authorization", "cookie", "password", "secret", "token"];

/// A label of the metric `forebay_gate_outcomes_total`, and the request header with its value.
///
/// Written `LABEL=HEADER`, such as `model=x-model`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricLabel {
    name: String,
    header: HeaderName,
}

impl MetricLabel {
    /// Returns the name of the label.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the header that the value is read from.
    pub fn header(&self) -> &HeaderName {
        &self.header
    }
}

impl fmt::Display for MetricLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.header)
    }
}

/// Why a text is not a metric label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricLabelError {
    /// There is no `=`.
    #[error("a label is `LABEL=HEADER`, such as `model=x-model`")]
    Form,
    /// Prometheus accepts no such name.
    #[error("{0:?} is not a label name: use letters, digits and `_`, without a digit or `__` at the start")]
    Name(String),
    /// The name is in use.
    #[error("the label {0:?} is in use by the metric or by Prometheus: choose another name")]
    UsedName(String),
    /// The header's name is invalid.
    #[error("{0:?} is not a valid header name")]
    Header(String),
    /// The header has a credential, an address or an id.
    #[error("the header {0:?} may have a credential, an address or an id, which don't belong in metrics")]
    PrivateHeader(String),
}

impl FromStr for MetricLabel {
    type Err = MetricLabelError;

    fn from_str(text: &str) -> Result<MetricLabel, MetricLabelError> {
        let (name, header) = text.split_once('=').ok_or(MetricLabelError::Form)?;
        let (name, header) = (name.trim().to_owned(), header.trim());
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty()
            || name.starts_with(|first: char| first.is_ascii_digit())
            || name.starts_with("__")
            || !name.bytes().all(is_legal)
        {
            return Err(MetricLabelError::Name(name));
        }
        if USED_NAMES.contains(&name.as_str()) {
            return Err(MetricLabelError::UsedName(name));
        }
        let header: HeaderName = header.parse().map_err(|_| MetricLabelError::Header(header.to_owned()))?;
        if is_private(header.as_str()) {
            return Err(MetricLabelError::PrivateHeader(header.to_string()));
        }
        Ok(MetricLabel { name, header })
    }
}

fn is_private(header: &str) -> bool {
    PRIVATE_HEADERS.contains(&header) || PRIVATE_PARTS.iter().any(|part| header.contains(part))
}

/// Returns the first label of each name, at most [`MAX_METRIC_LABELS`].
pub(crate) fn distinct_labels(labels: Vec<MetricLabel>) -> Vec<MetricLabel> {
    let mut distinct: Vec<MetricLabel> = Vec::new();
    for label in labels {
        if distinct.len() < MAX_METRIC_LABELS && distinct.iter().all(|other| other.name != label.name) {
            distinct.push(label);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_name_and_a_header() {
        let label: MetricLabel = "model = X-Model".parse().unwrap();
        assert_eq!((label.name(), label.header().as_str()), ("model", "x-model"));
        assert_eq!(label.to_string(), "model=x-model");
    }

    #[test]
    fn an_invalid_label_is_an_error_that_names_the_problem() {
        let parse = |text: &str| text.parse::<MetricLabel>().unwrap_err();
        assert_eq!(parse("x-model"), MetricLabelError::Form);
        for name in ["", "1a", "__model", "a-b", "modèle"] {
            assert_eq!(parse(&format!("{name}=x-model")), MetricLabelError::Name(name.to_owned()));
        }
        for name in USED_NAMES {
            assert_eq!(parse(&format!("{name}=x-model")), MetricLabelError::UsedName(name.to_owned()));
        }
        for header in ["", "x model", "x-model=y"] {
            assert_eq!(parse(&format!("model={header}")), MetricLabelError::Header(header.to_owned()));
        }
    }

    #[test]
    fn a_header_with_a_credential_or_an_address_is_refused() {
        let credentials = [
            "Authorization",
            "Proxy-Authorization",
            "cookie",
            "api-key",
            "X-API-Key",
            "x-goog-api-key",
            "x-auth-token",
            "x-amz-security-token",
            "X-My-Secret",
            "x-db-password",
        ];
        for header in credentials.into_iter().chain(PRIVATE_HEADERS) {
            assert_eq!(
                format!("user={header}").parse::<MetricLabel>(),
                Err(MetricLabelError::PrivateHeader(header.to_lowercase()))
            );
        }
    }

    #[test]
    fn the_first_label_of_a_name_is_kept() {
        let labels = ["a=x-1", "a=x-2", "b=x-3", "c=x-4", "b=x-5", "d=x-6", "e=x-7"];
        let kept = distinct_labels(labels.map(|label| label.parse().unwrap()).into());
        assert_eq!(
            kept.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["a=x-1", "b=x-3", "c=x-4", "d=x-6"]
        );
    }
}
