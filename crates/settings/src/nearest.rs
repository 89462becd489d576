//! Suggestions for misspelt names.

use std::fmt;

use strsim::levenshtein;

/// A suggestion in brackets; empty if there is none.
#[derive(Debug, Clone, Copy)]
pub struct Suggestion<'a>(pub Option<&'a str>);

impl fmt::Display for Suggestion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " (did you mean `{name}`?)"))
    }
}

/// Returns the candidate that is most similar to `word`, if at most N letters differ. N is a third
/// of the letters of `word`, plus one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(word.chars().count() / 3 + 1, word, candidates)
}

/// Returns the candidate that is probably meant: at most two letters differ. The variables of two
/// programs or commands differ by more.
pub(crate) fn nearest_typo<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(2, word, candidates)
}

/// Returns the candidate that is most similar to `word`, if at most `most` letters differ.
fn nearest_within<'a>(
    most: usize,
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_similar_word() {
        let words = ["listen", "upstream", "stream_routes", "upstream_max_idle"];
        assert_eq!(nearest("lisen", words), Some("listen"));
        assert_eq!(nearest("stream_route", words), Some("stream_routes"));
        assert_eq!(nearest("UPSTREAM", words), Some("upstream"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest("", words), None);
    }
}
