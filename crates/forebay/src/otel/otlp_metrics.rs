//! Translation of the Prometheus text of `/metrics` to OTLP metrics.
//!
//! Invariant: the exported metrics are those of `/metrics`, with the same names. Counters are
//! monotonic sums and histograms have their buckets, both cumulative since the start. Gauges are
//! unchanged.
//! Enforced by: both come from the same Prometheus text. Every histogram has buckets
//! (`metrics.rs`), so there are no summaries.
//! Out of scope: sockets and clocks; this file is pure.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Period of a measurement, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasurementWindow {
    pub(super) start_ns: u64,
    pub(super) now_ns: u64,
}

/// Translates all metrics of a rendering.
pub(super) fn translate(text: &str, window: MeasurementWindow) -> Vec<Metric> {
    let (mut metrics, mut help) = (Vec::<Metric>::new(), "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            metrics.extend(new_metric(rest, std::mem::take(&mut help)));
        } else if let (Some(sample), Some(metric)) = (PrometheusSample::parse(line), metrics.last_mut()) {
            add_sample(metric, sample, window);
        }
    }
    metrics
}

/// Returns an empty metric for a `# TYPE` line; `None` for other types.
fn new_metric(name_and_kind: &str, help: &str) -> Option<Metric> {
    let (name, kind) = name_and_kind.split_once(' ')?;
    let data = match kind {
        "counter" => Data::Sum(Sum {
            data_points: Vec::new(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        "gauge" => Data::Gauge(Gauge { data_points: Vec::new() }),
        "histogram" => {
            Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality: CUMULATIVE })
        }
        _ => return None,
    };
    let (name, description) = (name.to_owned(), help.to_owned());
    Some(Metric { name, description, data: Some(data), ..Metric::default() })
}

/// Adds a sample to its metric.
fn add_sample(metric: &mut Metric, sample: PrometheusSample<'_>, window: MeasurementWindow) {
    let Some(part) = sample.name.strip_prefix(metric.name.as_str()) else { return };
    match (&mut metric.data, part) {
        (Some(Data::Sum(sum)), "") => {
            let Ok(count) = sample.value.parse::<u64>() else { return };
            let value = Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX));
            sum.data_points.push(number(sample.labels, value, window));
        }
        (Some(Data::Gauge(gauge)), "") => {
            let Ok(value) = sample.value.parse() else { return };
            gauge.data_points.push(number(sample.labels, Value::AsDouble(value), window));
        }
        (Some(Data::Histogram(histogram)), part) => add_to_histogram(histogram, part, sample, window),
        _ => {}
    }
}

fn number(labels: Vec<KeyValue>, value: Value, window: MeasurementWindow) -> NumberDataPoint {
    NumberDataPoint {
        attributes: labels,
        start_time_unix_nano: window.start_ns,
        time_unix_nano: window.now_ns,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

/// Adds a line of a histogram. The lines of one point are consecutive: its buckets, its sum, its
/// count.
fn add_to_histogram(
    histogram: &mut Histogram,
    part: &str,
    mut sample: PrometheusSample<'_>,
    window: MeasurementWindow,
) {
    let bound = sample.take_label("le");
    let points = &mut histogram.data_points;
    if points.last().is_none_or(|point| point.attributes != sample.labels) {
        points.push(HistogramDataPoint {
            attributes: sample.labels,
            start_time_unix_nano: window.start_ns,
            time_unix_nano: window.now_ns,
            ..HistogramDataPoint::default()
        });
    }
    let Some(point) = points.last_mut() else { return };
    match (part, bound) {
        ("_bucket", Some(bound)) => {
            // Prometheus buckets are cumulative, OTLP buckets are not.
            let below: u64 = point.bucket_counts.iter().sum();
            let up_to = sample.value.parse().unwrap_or(below);
            point.bucket_counts.push(u64::saturating_sub(up_to, below));
            point.explicit_bounds.extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
        }
        ("_sum", None) => point.sum = sample.value.parse().ok(),
        ("_count", None) => point.count = sample.value.parse().unwrap_or_default(),
        _ => {}
    }
}

/// A line of the Prometheus text: `name{label="value",…} value`.
struct PrometheusSample<'a> {
    name: &'a str,
    labels: Vec<KeyValue>,
    value: &'a str,
}

impl<'a> PrometheusSample<'a> {
    fn parse(line: &'a str) -> Option<PrometheusSample<'a>> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once("=\"")?;
                let (value, after) = parse_quoted(after)?;
                labels.push(attribute(label, value));
                rest = after.strip_prefix(',').unwrap_or(after);
            }
            rest = &rest[1..];
        }
        Some(PrometheusSample { name, labels, value: rest.trim() })
    }

    fn take_label(&mut self, label: &str) -> Option<String> {
        let at = self.labels.iter().position(|own| own.key == label)?;
        match self.labels.remove(at).value?.value? {
            any_value::Value::StringValue(value) => Some(value),
            _ => None,
        }
    }
}

/// Returns the unescaped text up to the next unescaped quote, and the rest.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            letter => value.push(letter),
        }
    }
    None
}

pub(super) fn attribute(key: &str, value: impl Into<String>) -> KeyValue {
    let value = any_value::Value::StringValue(value.into());
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: MeasurementWindow = MeasurementWindow { start_ns: 1, now_ns: 2 };

    const TEXT: &str = r#"# HELP forebay_gate_requests_total Responses, by kind.
# TYPE forebay_gate_requests_total counter
forebay_gate_requests_total{kind="plain",status="2xx"} 3
forebay_gate_requests_total{kind="stream",status="5xx"} 1

# TYPE forebay_uptime_seconds gauge
forebay_uptime_seconds 1.5

# TYPE head_seconds histogram
head_seconds_bucket{kind="a",le="0.1"} 2
head_seconds_bucket{kind="a",le="1"} 5
head_seconds_bucket{kind="a",le="+Inf"} 6
head_seconds_sum{kind="a"} 12.25
head_seconds_count{kind="a"} 6
head_seconds_bucket{kind="b",le="0.1"} 0
head_seconds_bucket{kind="b",le="1"} 0
head_seconds_bucket{kind="b",le="+Inf"} 0
head_seconds_sum{kind="b"} 0
head_seconds_count{kind="b"} 0
"#;

    #[test]
    fn counters_are_monotonic_sums_since_the_start() {
        let metrics = translate(TEXT, WINDOW);
        let requests = &metrics[0];
        assert_eq!(requests.name, "forebay_gate_requests_total");
        assert_eq!(requests.description, "Responses, by kind.");
        let Some(Data::Sum(sum)) = &requests.data else { panic!("{requests:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        let point = &sum.data_points[1];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        assert_eq!(point.value, Some(Value::AsInt(1)));
        assert_eq!(point.attributes, [attribute("kind", "stream"), attribute("status", "5xx")]);
    }

    #[test]
    fn gauges_are_unchanged_and_a_missing_help_text_stays_empty() {
        let metrics = translate(TEXT, WINDOW);
        let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(1.5)));
        assert_eq!(metrics[1].description, "");
    }

    #[test]
    fn cumulative_buckets_become_separate_counts() {
        let metrics = translate(TEXT, WINDOW);
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
        assert_eq!(histogram.aggregation_temporality, CUMULATIVE);
        let [a, b] = &histogram.data_points[..] else { panic!("{histogram:?}") };
        assert_eq!((&a.bucket_counts[..], &a.explicit_bounds[..]), (&[2, 3, 1][..], &[0.1, 1.0][..]));
        assert_eq!((a.sum, a.count, &a.attributes[..]), (Some(12.25), 6, &[attribute("kind", "a")][..]));
        assert_eq!((&b.bucket_counts[..], b.count), (&[0, 0, 0][..], 0));
    }

    #[test]
    fn labels_with_quotes_and_braces_are_parsed() {
        let sample = PrometheusSample::parse(r#"m{a="x \"}\" \\ y\n",b=""} 7"#).unwrap();
        assert_eq!(sample.labels, [attribute("a", "x \"}\" \\ y\n"), attribute("b", "")]);
        assert_eq!((sample.name, sample.value), ("m", "7"));
        for broken in ["", "m", "m{", "m{a=\"", "m{a=\"x\\", "m{a}"] {
            assert!(PrometheusSample::parse(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn a_metric_of_unknown_type_is_skipped() {
        let text = "# TYPE a counter\na 1\n# TYPE b summary\nb{quantile=\"0.5\"} 2\nb_sum 3\n";
        let metrics = translate(text, WINDOW);
        assert_eq!(metrics.len(), 1);
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(sum.data_points.len(), 1);
    }
}
