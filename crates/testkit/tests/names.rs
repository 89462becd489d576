//! Rules for names and comments, checked over the whole repository.
//!
//! A type name is defined in at most two files. Comments, texts and pages name the actor. Comments
//! are at most 100 columns wide. Source files have at most 500 lines.
//!
//! Each rule has a budget: the current number of violations. A test fails when there are more. When
//! there are fewer, lower the budget to the number that the test prints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Type names that may be defined in any number of files, and why. At most eight.
const REPEATABLE: &[(&str, &str)] = &[
    ("Config", "the settings of one component"),
    ("Error", "the error of one operation"),
    ("Status", "what one component reports to an operator"),
    ("State", "the states of one state machine"),
    ("Event", "the inputs of one state machine"),
    ("Effect", "the outputs of one state machine"),
    ("Result", "the result alias of one example"),
];
/// A name that this many files define is a violation.
const TOO_MANY_FILES: usize = 3;
/// Words that hide which component acts.
const PRONOUNS: &[&str] = &["whoever", "somebody", "nobody"];
/// Macros whose texts are log lines.
const LOG_MACROS: &[&str] = &["error", "warn", "info", "debug", "trace", "event"];
/// Widest comment, in columns.
const MAX_COLUMNS: usize = 100;
/// Longest source file outside tests, in lines.
const MAX_LINES: usize = 500;
/// This file is skipped: it must contain the pronouns.
const THIS_FILE: &str = "crates/testkit/tests/names.rs";

// Budgets. Elsewhere: the system user `nobody`, and a row of a test.
const REPEATED_TYPE_NAMES: usize = 0;
const PRONOUNS_IN_MARKDOWN: usize = 0;
const PRONOUNS_IN_RUSTDOC: usize = 0;
const PRONOUNS_IN_LOG_TEXTS: usize = 0;
const PRONOUNS_ELSEWHERE: usize = 4;
const WIDE_COMMENTS: usize = 0;
const LONG_FILES: usize = 0;

#[test]
fn a_type_name_is_defined_in_at_most_two_files() {
    assert!(REPEATABLE.len() <= 8, "{REPEATABLE:?}");
    check_budget("repeated type names", REPEATED_TYPE_NAMES, &repeated_type_names(&rust_files()));
}

#[test]
fn pages_name_the_actor() {
    check_budget("pronouns in Markdown", PRONOUNS_IN_MARKDOWN, &pronouns(&markdown_files()).markdown);
}

#[test]
fn rustdoc_names_the_actor() {
    check_budget("pronouns in rustdoc", PRONOUNS_IN_RUSTDOC, &pronouns(&rust_files()).rustdoc);
}

#[test]
fn log_texts_name_the_actor() {
    check_budget("pronouns in log texts", PRONOUNS_IN_LOG_TEXTS, &pronouns(&rust_files()).log_texts);
}

#[test]
fn other_comments_and_strings_name_the_actor() {
    let found = pronouns(&rust_files()).elsewhere;
    check_budget("pronouns in other comments and strings", PRONOUNS_ELSEWHERE, &found);
}

#[test]
fn comments_are_at_most_100_columns_wide() {
    check_budget("wide comments", WIDE_COMMENTS, &wide_comments(&rust_files()));
}

#[test]
fn source_files_have_at_most_500_lines() {
    check_budget("long files", LONG_FILES, &long_files(&rust_files()));
}

/// Panics, listing every violation, if there are more than the budget allows.
#[track_caller]
fn check_budget(rule: &str, budget: usize, violations: &[String]) {
    let count = violations.len();
    assert!(count <= budget, "{rule}: {count}, and {budget} are allowed\n{}", violations.join("\n"));
    if count < budget {
        eprintln!("{rule}: lower the budget from {budget} to {count}");
    }
}

/// A file of the repository.
struct SourceFile {
    /// Path from the root, with slashes.
    path: String,
    text: String,
}

fn rust_files() -> Vec<SourceFile> {
    let files = read_files("crates", "rs");
    assert!(files.len() > 500, "only {} Rust files were found", files.len());
    files
}

fn markdown_files() -> Vec<SourceFile> {
    let files = read_files("", "md");
    assert!(files.len() > 10, "only {} Markdown files were found", files.len());
    files
}

/// Returns the files below a folder of the root, in order. Skips hidden and generated folders.
fn read_files(folder: &str, extension: &str) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("a folder of this repository") {
            let entry = entry.expect("an entry of the folder");
            let name = entry.file_name().into_string().expect("file names are UTF-8");
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let is_generated = name == "target" || name == "node_modules" || name.starts_with('.');
            if entry.file_type().expect("an entry has a type").is_dir() {
                folders.extend((!is_generated).then_some(path));
            } else if Path::new(&name).extension().is_some_and(|found| found == extension) {
                let text = fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
                files.push(SourceFile { path, text });
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

/// Returns a violation for each name that is defined in [`TOO_MANY_FILES`] or more.
fn repeated_type_names(files: &[SourceFile]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files {
        let definitions: BTreeMap<&str, usize> = type_definitions(&file.text).into_iter().rev().collect();
        for (name, line) in definitions {
            places.entry(name).or_default().push(format!("{}:{line}", file.path));
        }
    }
    let is_repeatable = |name: &str| REPEATABLE.iter().any(|(allowed, _)| *allowed == name);
    places.retain(|name, places| places.len() >= TOO_MANY_FILES && !is_repeatable(name));
    let violation = |(name, places): (&str, Vec<String>)| {
        format!("{}: type {name} is defined in {} files: {}", places[0], places.len(), places.join(" "))
    };
    places.into_iter().map(violation).collect()
}

/// Returns the names and lines of all structs, enums, traits and unions, and of the type aliases
/// that are not inside an impl, a trait or a function.
fn type_definitions(source: &str) -> Vec<(&str, usize)> {
    let mut code = tokens(source);
    code.retain(|token| token.kind == TokenKind::Code);
    let (mut found, mut enclosing_is_mod) = (Vec::new(), Vec::new());
    for (index, token) in code.iter().enumerate() {
        let before = |distance: usize| index.checked_sub(distance).map_or("", |at| code[at].text);
        let is_alias_of_module = before(1) == "type" && enclosing_is_mod.iter().all(|is_mod| *is_mod);
        match token.text {
            "{" => enclosing_is_mod.push(before(2) == "mod"),
            "}" => drop(enclosing_is_mod.pop()),
            name if name.starts_with(|first: char| first.is_ascii_uppercase())
                && (matches!(before(1), "struct" | "enum" | "trait" | "union") || is_alias_of_module) =>
            {
                found.push((name, token.line));
            }
            _ => {}
        }
    }
    found
}

/// Violations, by where the pronoun is.
#[derive(Debug, Default)]
struct PronounUses {
    markdown: Vec<String>,
    rustdoc: Vec<String>,
    log_texts: Vec<String>,
    elsewhere: Vec<String>,
}

fn pronouns(files: &[SourceFile]) -> PronounUses {
    let mut found = PronounUses::default();
    for file in files.iter().filter(|file| file.path != THIS_FILE) {
        if file.path.ends_with(".md") {
            found.markdown.extend(pronouns_of(&file.path, 1, &file.text));
            continue;
        }
        let (tokens, mut brackets_of_log) = (tokens(&file.text), 0_usize);
        for (index, token) in tokens.iter().enumerate() {
            let uses = || pronouns_of(&file.path, token.line, token.text);
            match token.kind {
                TokenKind::Rustdoc => found.rustdoc.extend(uses()),
                TokenKind::Text if brackets_of_log > 0 => found.log_texts.extend(uses()),
                TokenKind::Text | TokenKind::Comment => found.elsewhere.extend(uses()),
                TokenKind::Code => match token.text {
                    "(" | "[" | "{" if brackets_of_log > 0 || is_log_macro(&tokens[..index]) => {
                        brackets_of_log += 1;
                    }
                    ")" | "]" | "}" => brackets_of_log = brackets_of_log.saturating_sub(1),
                    _ => {}
                },
            }
        }
    }
    found
}

/// Returns whether the tokens end with the name of a log macro and its exclamation mark.
fn is_log_macro(before: &[Token<'_>]) -> bool {
    matches!(before, [.., name, mark] if mark.text == "!" && LOG_MACROS.contains(&name.text))
}

/// Returns a violation for each pronoun of a text that begins at `first_line`.
fn pronouns_of(path: &str, first_line: usize, text: &str) -> Vec<String> {
    let is_boundary = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let lines = text.lines().zip(first_line..);
    let words = lines.flat_map(|(text, line)| text.split(is_boundary).map(move |word| (word, line)));
    let is_pronoun = |word: &str| PRONOUNS.iter().any(|pronoun| pronoun.eq_ignore_ascii_case(word));
    let uses = words.filter(|(word, _)| is_pronoun(word));
    uses.map(|(word, line)| format!("{path}:{line}: \"{word}\": name the actor")).collect()
}

/// Returns a violation for each line with nothing but a comment that is too wide. Rows of Markdown
/// tables and single words, such as addresses, can't be wrapped and are allowed.
fn wide_comments(files: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let lines: Vec<&str> = file.text.lines().collect();
        for token in tokens(&file.text) {
            if !matches!(token.kind, TokenKind::Comment | TokenKind::Rustdoc) {
                continue;
            }
            for number in token.line..token.line + token.text.lines().count() {
                let line = lines[number - 1];
                let follows_code = number == token.line && !line.trim_start().starts_with(['/', '*']);
                let content = line.trim_start().trim_start_matches(['/', '!', '*']).trim();
                let can_wrap = content.contains(' ') && !content.starts_with('|');
                let columns = line.chars().count();
                if columns > MAX_COLUMNS && can_wrap && !follows_code {
                    found.push(format!("{}:{number}: a comment of {columns} columns", file.path));
                }
            }
        }
    }
    found
}

fn long_files(files: &[SourceFile]) -> Vec<String> {
    let is_of_tests = |file: &SourceFile| {
        let mut names = file.path.trim_end_matches(".rs").split('/');
        names.any(|name| name == "tests" || name.ends_with("_tests"))
    };
    let count = |file: &SourceFile| file.text.lines().count();
    let long = files.iter().filter(|file| !is_of_tests(file) && count(file) > MAX_LINES);
    long.map(|file| format!("{0}:{1}: a file of {1} lines", file.path, count(file))).collect()
}

/// Kind of a token of Rust source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Code,
    Comment,
    Rustdoc,
    Text,
}

/// A word or a sign of code, a whole comment, or a whole string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'s> {
    kind: TokenKind,
    text: &'s str,
    /// Line of the first character, from 1.
    line: usize,
}

/// Splits Rust source. Character literals are left out.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut found, mut rest, mut line) = (Vec::new(), source, 1);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = next_token(rest, first);
        let (text, after) = rest.split_at(length);
        if let Some(kind) = kind {
            found.push(Token { kind, text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// Returns the kind and the length of the token at the start of `rest`. `None`: no token.
fn next_token(rest: &str, first: char) -> (Option<TokenKind>, usize) {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    if rest.starts_with("//") {
        let is_doc = rest.starts_with("//!") || (rest.starts_with("///") && !rest.starts_with("////"));
        (
            Some(if is_doc { TokenKind::Rustdoc } else { TokenKind::Comment }),
            rest.find('\n').unwrap_or(rest.len()),
        )
    } else if rest.starts_with("/*") {
        let is_doc = rest.starts_with("/*!")
            || (rest.starts_with("/**") && !rest.starts_with("/***") && !rest.starts_with("/**/"));
        (Some(if is_doc { TokenKind::Rustdoc } else { TokenKind::Comment }), block_comment(rest))
    } else if let Some(length) = raw_string(rest) {
        (Some(TokenKind::Text), length)
    } else if first == '"' {
        (Some(TokenKind::Text), quoted(rest, '"'))
    } else if first == '\'' {
        // A lifetime has no closing quote: only the sign is skipped.
        let is_literal = rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'');
        (None, if is_literal { quoted(rest, '\'') } else { 1 })
    } else if is_word(first) {
        (Some(TokenKind::Code), rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()))
    } else {
        ((!first.is_whitespace()).then_some(TokenKind::Code), first.len_utf8())
    }
}

/// Returns the length of a literal with escapes, its quotes included.
fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, letter)| {
        let ends = *letter == quote && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

/// Returns the length of a raw string, if `rest` begins with one.
fn raw_string(rest: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let body = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(rest.len(), |at| rest.len() - body.len() + at + end.len()))
}

/// Returns the length of a block comment, including nested ones.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let step = match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn source(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn a_type_name_in_three_files_is_caught() {
    let files = |third: &str| {
        let texts = ["pub(crate) struct Place;", "\nenum Place {}", third];
        texts.iter().zip(["a", "b", "c"]).map(|(text, path)| source(path, text)).collect::<Vec<_>>()
    };
    for third in ["trait Place {}", "mod inner { pub type Place = u8; }", "fn f() { union Place { a: u8 } }"]
    {
        assert_eq!(
            repeated_type_names(&files(third)),
            ["a:1: type Place is defined in 3 files: a:1 b:2 c:1"],
            "{third}"
        );
    }
    for third in [
        "struct Placed;",
        "// struct Place;",
        "const A: &str = \"struct Place;\";",
        "impl Tree for Oak { type Place = u8; }",
        "trait Tree { type Place; }",
        "fn f(place: Place) {}",
    ] {
        assert_eq!(repeated_type_names(&files(third)), [""; 0], "{third}");
    }
    let same_file = [source("a", "struct A;"), source("b", "struct A; mod tests { struct A; }")];
    assert_eq!(repeated_type_names(&same_file), [""; 0]);
    let allowed = ["a", "b", "c"].map(|path| source(path, "struct Error;"));
    assert_eq!(repeated_type_names(&allowed), [""; 0]);
}

#[test]
fn a_pronoun_is_reported_with_its_kind_and_line() {
    let text = "/// Somebody.\n//! a\n/* b\n nobody's */\nfn nobody_asks() { // whoever\n    \
        tracing::warn!(reason = %(a), \"nobody\");\n    print(\"nobody\", r#\"x \"nobody\" \"#);\n}\n";
    let found = pronouns(&[source("a.rs", text), source("a.md", "Ask\nsomebody, not `nobody_asks`.")]);
    let lines = |violations: &[String]| {
        let line = |violation: &String| violation.split(':').nth(1).expect("a line").to_owned();
        violations.iter().map(line).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found.markdown, ["a.md:2: \"somebody\": name the actor"]);
    assert_eq!(found.rustdoc, ["a.rs:1: \"Somebody\": name the actor"]);
    assert_eq!(found.log_texts, ["a.rs:6: \"nobody\": name the actor"]);
    assert_eq!(lines(&found.elsewhere), "4 5 7 7");
}

#[test]
fn a_wide_comment_is_caught() {
    let wide = "word ".repeat(20);
    let caught = |text: &str| wide_comments(&[source("a.rs", text)]);
    assert_eq!(caught(&format!("a();\n    // {wide}.\n")), ["a.rs:2: a comment of 108 columns"]);
    assert_eq!(caught(&format!("/*\n {wide}.\n*/")), ["a.rs:2: a comment of 102 columns"]);
    assert_eq!(caught(&format!("/// {}\n", wide.trim_end())), ["a.rs:1: a comment of 103 columns"]);
    for allowed in [
        format!("let a = \"{wide}\";"),
        format!("let a = \"\n// {wide}.\";"),
        format!("//! | {wide} |"),
        format!("// https://example.org/{}", "a".repeat(100)),
        format!("// {}", "a ".repeat(48)),
    ] {
        assert_eq!(caught(&allowed), [""; 0], "{allowed}");
    }
}

#[test]
fn a_long_file_is_caught_outside_tests() {
    let of = |path: &str, lines: usize| long_files(&[source(path, &"\n".repeat(lines))]);
    assert_eq!(of("crates/a/src/b.rs", 501), ["crates/a/src/b.rs:501: a file of 501 lines"]);
    assert_eq!(of("crates/a/examples/b.rs", 501).len(), 1);
    assert_eq!(of("crates/a/src/b.rs", 500), [""; 0]);
    for tests in ["crates/a/tests/it/b.rs", "crates/a/src/tests.rs", "crates/a/src/b_tests.rs"] {
        assert_eq!(of(tests, 501), [""; 0], "{tests}");
    }
}

#[test]
fn comments_strings_and_code_are_distinguished() {
    let parts = |text: &str| {
        let parts = tokens(text).into_iter().filter(|token| token.kind != TokenKind::Code);
        parts.map(|token| (token.kind, token.text.to_owned(), token.line)).collect::<Vec<_>>()
    };
    let one = |kind, text: &str, line| vec![(kind, text.to_owned(), line)];
    assert_eq!(parts("a / b // c\n"), one(TokenKind::Comment, "// c", 1));
    assert_eq!(parts("//// c"), one(TokenKind::Comment, "//// c", 1));
    assert_eq!(parts("\n//! c"), one(TokenKind::Rustdoc, "//! c", 2));
    assert_eq!(parts("/** a /* b */ */ d"), one(TokenKind::Rustdoc, "/** a /* b */ */", 1));
    assert_eq!(parts(r#"f('"', '\'', b'\\', "\"//")"#), one(TokenKind::Text, r#""\"//""#, 1));
    assert_eq!(parts("br##\"a\"#b\"## /"), one(TokenKind::Text, "br##\"a\"#b\"##", 1));
    assert_eq!(parts("fn f<'a>(a: &'a str) { r#type('é', \"\n\") }"), one(TokenKind::Text, "\"\n\"", 1));
}

#[test]
#[should_panic(expected = "rules: 2, and 1 are allowed\na:1\na:2")]
fn a_count_above_its_budget_fails_and_lists_the_violations() {
    check_budget("rules", 1, &["a:1".to_owned()]);
    check_budget("rules", 1, &["a:1".to_owned(), "a:2".to_owned()]);
}
