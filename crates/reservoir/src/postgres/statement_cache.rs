//! Statement cache of a connection: prepared statements by their text, at most a fixed number.
//!
//! Invariant: the cache holds at most `capacity` statements; the least recently used is dropped.
//! Enforced by: [`StatementCache::insert`] evicts before it inserts.
//! Out of scope: preparing statements, and closing them on the server. tokio-postgres closes a
//! statement when its last clone is dropped.

use std::collections::HashMap;

/// Prepared statements of one connection, by their text.
#[derive(Debug)]
pub(super) struct StatementCache<S> {
    capacity: usize,
    statements: HashMap<String, CachedStatement<S>>,
    /// Number of uses; orders the statements by their last use.
    uses: u64,
}

#[derive(Debug)]
struct CachedStatement<S> {
    statement: S,
    last_use: u64,
}

impl<S: Clone> StatementCache<S> {
    pub(super) fn new(capacity: usize) -> Self {
        StatementCache { capacity, statements: HashMap::new(), uses: 0 }
    }

    /// Returns a statement and marks it as used.
    pub(super) fn get(&mut self, sql: &str) -> Option<S> {
        let cached = self.statements.get_mut(sql)?;
        self.uses += 1;
        cached.last_use = self.uses;
        Some(cached.statement.clone())
    }

    /// Adds a statement. Returns the statement that the cache drops for it.
    ///
    /// The caller drops them after it has released its lock, because that writes to the connection.
    #[must_use]
    pub(super) fn insert(&mut self, sql: &str, statement: S) -> Option<S> {
        if self.capacity == 0 {
            return None;
        }
        self.uses += 1;
        let cached = CachedStatement { statement, last_use: self.uses };
        let is_full = self.statements.len() >= self.capacity && !self.statements.contains_key(sql);
        let evicted = if is_full { self.evict() } else { None };
        let replaced = self.statements.insert(sql.to_owned(), cached).map(|cached| cached.statement);
        evicted.or(replaced)
    }

    /// Removes all statements and returns them.
    pub(super) fn clear(&mut self) -> Vec<S> {
        self.statements.drain().map(|(_, cached)| cached.statement).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    fn evict(&mut self) -> Option<S> {
        let (sql, _) = self.statements.iter().min_by_key(|(_, cached)| cached.last_use)?;
        let sql = sql.clone();
        self.statements.remove(&sql).map(|cached| cached.statement)
    }
}

/// Returns whether a script may drop prepared statements: it contains `DISCARD ALL` or
/// `DEALLOCATE`.
///
/// Quoted texts and comments count, too: an empty cache costs only time. Comments between the words
/// don't hide them, nor do the signs of a comment within quotes.
pub(super) fn drops_statements(script: &str) -> bool {
    names_drop(script) || names_drop(&without_comments(script))
}

fn names_drop(script: &str) -> bool {
    let mut previous_is_discard = false;
    let is_separator = |letter: char| !letter.is_alphanumeric() && letter != '_';
    script.split(is_separator).filter(|word| !word.is_empty()).any(|word| {
        let follows_discard =
            std::mem::replace(&mut previous_is_discard, word.eq_ignore_ascii_case("discard"));
        word.eq_ignore_ascii_case("deallocate") || follows_discard && word.eq_ignore_ascii_case("all")
    })
}

/// Replaces comments of SQL, `--` to the end of the line and nested `/* */`, by spaces. It doesn't
/// recognise quotes, so that it also replaces what looks like a comment in them.
fn without_comments(script: &str) -> String {
    let (mut text, mut rest, mut depth) = (String::with_capacity(script.len()), script, 0_usize);
    while let Some(letter) = rest.chars().next() {
        let mut consumed = letter.len_utf8();
        if rest.starts_with("/*") {
            (depth, consumed) = (depth + 1, 2);
        } else if depth > 0 {
            if rest.starts_with("*/") {
                (depth, consumed) = (depth - 1, 2);
                text.push(' ');
            }
        } else if rest.starts_with("--") {
            consumed = rest.find('\n').unwrap_or(rest.len());
        } else {
            text.push(letter);
        }
        rest = &rest[consumed..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_statement_is_dropped_at_the_capacity() {
        let mut cache = StatementCache::new(2);
        assert_eq!(cache.insert("a", 1), None);
        assert_eq!(cache.insert("b", 2), None);
        assert_eq!(cache.get("a"), Some(1));
        assert_eq!(cache.insert("c", 3), Some(2), "b was used before a");
        assert_eq!((cache.get("a"), cache.get("b"), cache.get("c")), (Some(1), None, Some(3)));
        assert_eq!(cache.insert("a", 4), Some(1), "the same text replaces its statement");
        assert_eq!((cache.get("a"), cache.get("c")), (Some(4), Some(3)));
        let mut left = cache.clear();
        left.sort_unstable();
        assert_eq!((left, cache.is_empty()), (vec![3, 4], true));
    }

    #[test]
    fn a_cache_of_no_statements_keeps_none() {
        let mut cache = StatementCache::new(0);
        assert_eq!((cache.insert("a", 1), cache.get("a"), cache.is_empty()), (None, None, true));
    }

    #[test]
    fn scripts_that_drop_prepared_statements_are_recognised() {
        let dropping = [
            "DISCARD ALL",
            "rollback;discard\tall;",
            "ROLLBACK; DEALLOCATE ALL",
            "deallocate prepare s1",
            "DISCARD /* a /* nested */ comment */ ALL",
            "DISCARD -- everything\n ALL",
            "SET x = 'a--b'; DEALLOCATE ALL",
            "SET x = 'a/*b'; DISCARD ALL",
            "-- DISCARD ALL",
            "/* DEALLOCATE ALL */ ROLLBACK",
        ];
        for script in dropping {
            assert!(drops_statements(script), "{script}");
        }
        let keeping = [
            "",
            "ROLLBACK",
            "ROLLBACK; CLOSE ALL; RESET ALL; DISCARD TEMP; DISCARD SEQUENCES",
            "DISCARD PLANS; RESET ALL",
            "SELECT discard_all()",
            "-- DISCARD TEMP\nRESET ALL",
            "/* DISCARD */ ROLLBACK",
        ];
        for script in keeping {
            assert!(!drops_statements(script), "{script}");
        }
    }
}
