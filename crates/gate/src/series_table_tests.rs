//! Tests of the bounds of label values and series.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const KIND: RequestKind = RequestKind::Stream;

/// Table whose handles are the values of the series, such as `gpt/openai`.
fn table(labels: usize) -> SeriesTable<String> {
    SeriesTable::new(labels)
}

fn values<'a>(texts: &[&'a str]) -> LabelValues<'a> {
    let mut values = LabelValues::default();
    for (value, text) in values.iter_mut().zip(texts) {
        *value = LabelValue::Text(text);
    }
    values
}

/// Counts a request as the gate does. Returns the values of its series.
fn count(table: &mut SeriesTable<String>, kind: RequestKind, values: &LabelValues<'_>) -> String {
    let found = match table.find(kind, values) {
        SeriesLookup::Known(series) => Some(series),
        SeriesLookup::Overflow => None,
        SeriesLookup::New => table.add(kind, values, |texts| texts.join("/")),
    };
    found.unwrap_or_else(|| vec![OTHER_TEXT; table.values.len()].join("/"))
}

#[test]
fn the_first_values_of_a_label_are_kept_and_later_ones_are_other() {
    let mut table = table(2);
    for number in 0..MAX_VALUES {
        let model = format!("model-{number}");
        assert_eq!(count(&mut table, KIND, &values(&[&model, "openai"])), format!("{model}/openai"));
    }
    assert_eq!(count(&mut table, KIND, &values(&["late", "openai"])), "other/openai");
    assert_eq!(count(&mut table, KIND, &values(&["later", "openai"])), "other/openai");
    assert_eq!(count(&mut table, KIND, &values(&["model-0", "azure"])), "model-0/azure", "still kept");
    assert_eq!(table.series.len(), MAX_VALUES + 2);
}

#[test]
fn in_a_full_table_an_unknown_combination_is_other_in_every_label() {
    let mut table = table(2);
    for number in 0..MAX_SERIES {
        let (model, provider) = (format!("m{}", number % 25), format!("p{}", number / 25));
        count(&mut table, KIND, &values(&[&model, &provider]));
    }
    assert_eq!(table.series.len(), MAX_SERIES);
    assert_eq!(count(&mut table, KIND, &values(&["m3", "p3"])), "m3/p3", "a known one is found");
    assert_eq!(count(&mut table, RequestKind::Plain, &values(&["m3", "p3"])), "other/other");
    assert_eq!(count(&mut table, KIND, &values(&["m3", "new"])), "other/other");
    assert_eq!((table.series.len(), table.values[1].len()), (MAX_SERIES, MAX_SERIES / 25));
}

#[test]
fn a_request_finds_its_series_without_adding_it_again() {
    let mut table = table(1);
    assert_eq!(table.find(KIND, &values(&["gpt"])), SeriesLookup::New);
    count(&mut table, KIND, &values(&["gpt"]));
    assert_eq!(table.find(KIND, &values(&["gpt"])), SeriesLookup::Known("gpt".to_owned()));
    let twice = table.add(KIND, &values(&["gpt"]), |_| panic!("the series exists"));
    assert_eq!(twice.as_deref(), Some("gpt"));
    assert_eq!(table.find(RequestKind::Plain, &values(&["gpt"])), SeriesLookup::New, "another kind");
}

#[test]
fn unusable_header_values_are_none_or_other() {
    let read = |bytes: &[u8]| match LabelValue::of(Some(&HeaderValue::from_bytes(bytes).unwrap())) {
        LabelValue::Text(text) => text.to_owned(),
        LabelValue::None => "(none)".to_owned(),
        LabelValue::Other => "(other)".to_owned(),
    };
    assert_eq!(LabelValue::of(None), LabelValue::None);
    assert_eq!(read(b""), "(none)");
    assert_eq!(read(b"  "), "(none)");
    assert_eq!(read(b" gpt-4o "), "gpt-4o");
    assert_eq!(read("modèle".as_bytes()), "modèle");
    assert_eq!(read(b"\xff\xfe"), "(other)");
    assert_eq!(read(b"a\tb"), "(other)");
    assert_eq!(read("a\u{85}b".as_bytes()), "(other)");
    assert_eq!(read(&[b'x'; MAX_VALUE_BYTES]).len(), MAX_VALUE_BYTES);
    assert_eq!(read(&[b'x'; MAX_VALUE_BYTES + 1]), "(other)");
    // The program's own values are no values of clients.
    assert_eq!((read(b"other"), read(b"none")), ("(other)".to_owned(), "(none)".to_owned()));
}

proptest! {
    // A history of a thousand requests takes a tenth of a second in a debug build.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_history_of_values_exceeds_the_bounds(
        requests in prop::collection::vec((any::<bool>(), prop::option::of(0..80_u8), 0..80_u8, 0..3_u8), 0..1_000),
    ) {
        let (mut table, mut seen) = (table(3), HashSet::new());
        for (is_stream, first, second, third) in requests {
            let kind = if is_stream { RequestKind::Stream } else { RequestKind::Plain };
            let texts = [first.map(|value| value.to_string()), Some(second.to_string()), Some(third.to_string())];
            let mut values = LabelValues::default();
            for (value, text) in values.iter_mut().zip(&texts) {
                *value = text.as_deref().map_or(LabelValue::None, LabelValue::Text);
            }
            let series = count(&mut table, kind, &values);
            prop_assert_eq!(&count(&mut table, kind, &values), &series, "the same request has the same series");
            for (text, counted) in texts.iter().zip(series.split('/')) {
                prop_assert!(counted == "other" || counted == text.as_deref().unwrap_or("none"), "{} {:?}", series, texts);
            }
            seen.insert((kind, series));
        }
        prop_assert!(table.series.len() <= MAX_SERIES);
        prop_assert!(seen.len() <= MAX_SERIES + 2, "one overflow series for each kind");
        prop_assert!(table.values.iter().all(|known| known.len() <= MAX_VALUES));
    }
}
