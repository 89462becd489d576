//! The tables of `docs/where.md` are generated from the code, with `UPDATE_DOCS=1`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay_filter::tables;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/where.md");
/// The newest version that the tests know: it has every function of the table.
const VERSION: u32 = 18;

/// Panics unless the page has this text between `<!-- begin NAME -->` and `<!-- end NAME -->`.
#[track_caller]
fn assert_section(name: &str, text: &str) {
    let page = std::fs::read_to_string(PAGE).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} has no {begin:?}"));
    let (there, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{PAGE} has no {end:?}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{begin}{text}{end}{after}")).expect("the page is writable");
        return;
    }
    let differs = there.lines().zip(text.lines()).find(|(there, made)| there != made);
    assert!(
        there == text,
        "{name} differs from the code, first {differs:?}: run this test with UPDATE_DOCS=1"
    );
}

fn types() -> String {
    let mut text = "| type | name in messages | array |\n|---|---|---|\n".to_owned();
    for kind in tables::scalar_types() {
        let (name, title) = (kind.name, kind.title);
        writeln!(text, "| `{name}` | {title} | `{name}[]` |").expect("a String");
    }
    text
}

/// Returns a table of the operators. Those on the same types are in one line.
fn operators() -> String {
    let mut operands: Vec<(&str, String)> = Vec::new();
    for (is_prefix, names) in [(false, "left"), (true, "right")] {
        let mut seen: Vec<&str> = Vec::new();
        let entries = tables::operators();
        let entries: Vec<_> = entries.iter().filter(|entry| entry.left.is_none() == is_prefix).collect();
        for entry in &entries {
            if seen.contains(&entry.name) {
                continue;
            }
            seen.push(entry.name);
            let mut by_left: Vec<(&str, Vec<&str>)> = Vec::new();
            for row in entries.iter().filter(|row| row.name == entry.name) {
                let left = row.left.unwrap_or(names);
                match by_left.iter_mut().find(|(other, _)| *other == left) {
                    Some((_, rights)) => rights.push(row.right),
                    None => by_left.push((left, vec![row.right])),
                }
            }
            let parts: Vec<_> = by_left
                .iter()
                .map(|(left, rights)| match is_prefix {
                    true => rights.join(", "),
                    false => format!("{left}: {}", rights.join(", ")),
                })
                .collect();
            operands.push((
                entry.name,
                format!("{}{}", if is_prefix { "(prefix) " } else { "" }, parts.join("; ")),
            ));
        }
    }
    let mut text = "| operators | left operand: right operands |\n|---|---|\n".to_owned();
    let mut written: Vec<&str> = Vec::new();
    for (_, types) in &operands {
        if written.contains(&types.as_str()) {
            continue;
        }
        written.push(types);
        let names: Vec<_> = operands
            .iter()
            .filter(|(_, other)| other == types)
            .map(|(name, _)| format!("`{}`", name.replace('|', "\\|")))
            .collect();
        writeln!(text, "| {} | {types} |", names.join(" ")).expect("a String");
    }
    text
}

/// Returns a table of the functions whose support is `is_supported`.
fn functions(is_supported: bool) -> String {
    let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in tables::functions(VERSION).iter().filter(|row| row.is_supported == is_supported) {
        let call = format!("`{}({})` → {}", row.name, row.arguments, row.result);
        by_name.entry(row.name).or_default().push(call);
    }
    let mut text = "| function | calls and results |\n|---|---|\n".to_owned();
    for (name, calls) in by_name {
        writeln!(text, "| {name} | {} |", calls.join("<br>")).expect("a String");
    }
    text
}

#[test]
fn the_docs_list_every_type_operator_and_function() {
    assert_section("types", &types());
    assert_section("operators", &operators());
    assert_section("functions", &functions(true));
    assert_section("refused functions", &functions(false));
}
