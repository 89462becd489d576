//! Scanning of jsonb texts: kinds of values, where a value ends, and members of containers.
//!
//! Invariant: no recursion. Skipping a value takes time in proportion to its length.

use super::Malformed;

/// Kind of a value, in the order in which jsonb values of different kinds compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `null`
    Null,
    /// A string.
    String,
    /// A number.
    Number,
    /// `true` or `false`
    Bool,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    /// Returns the kind of the value with which a text begins.
    pub fn of(json: &str) -> Result<Kind, Malformed> {
        match json.as_bytes().first() {
            Some(b'n') => Ok(Kind::Null),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'[') => Ok(Kind::Array),
            Some(b'{') => Ok(Kind::Object),
            _ => Err(Malformed),
        }
    }

    /// Returns whether it is an array or an object.
    pub fn is_container(self) -> bool {
        matches!(self, Kind::Array | Kind::Object)
    }
}

/// Returns the position after the string that begins at `at`.
pub(super) fn string_end(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    let mut at = at + 1;
    loop {
        match bytes.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return Err(Malformed),
        }
    }
}

/// Returns the position after the value that begins at `at`.
pub(super) fn value_end(bytes: &[u8], mut at: usize) -> Result<usize, Malformed> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at) {
            Some(b'"') => at = string_end(bytes, at)?,
            Some(b'{' | b'[') => {
                depth += 1;
                at += 1;
                continue;
            }
            Some(b'}' | b']') => {
                depth = depth.checked_sub(1).ok_or(Malformed)?;
                at += 1;
            }
            Some(b',' | b':' | b' ') if depth > 0 => {
                at += 1;
                continue;
            }
            Some(byte) if byte.is_ascii_alphanumeric() || *byte == b'-' => at = word_end(bytes, at),
            _ => return Err(Malformed),
        }
        if depth == 0 {
            return Ok(at);
        }
    }
}

/// Returns the position after a number, `true`, `false` or `null`.
pub(super) fn word_end(bytes: &[u8], at: usize) -> usize {
    let word = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    at + bytes[at..].iter().take_while(word).count()
}

/// Iterator over the members of an object or the elements of an array.
#[derive(Clone, Copy, Debug)]
pub struct Members<'t> {
    text: &'t str,
    at: usize,
    is_object: bool,
    is_first: bool,
}

impl<'t> Members<'t> {
    /// Returns the members of an object or array. The text may go on after it.
    pub fn of(json: &'t str) -> Result<Self, Malformed> {
        let kind = Kind::of(json)?;
        if !kind.is_container() {
            return Err(Malformed);
        }
        Ok(Members { text: json, at: 1, is_object: kind == Kind::Object, is_first: true })
    }

    /// Returns the next member's key, in quotes, and where its value begins; `None` at the end. An
    /// element of an array has an empty key. The caller must then call `skip` or `value_of`.
    pub(crate) fn next_member(&mut self) -> Result<Option<(&'t str, usize)>, Malformed> {
        let bytes = self.text.as_bytes();
        let end = if self.is_object { b'}' } else { b']' };
        if bytes.get(self.at) == Some(&end) {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.is_first, false) {
            if !bytes[self.at.min(bytes.len())..].starts_with(b", ") {
                return Err(Malformed);
            }
            self.at += 2;
        }
        if !self.is_object {
            return Ok(Some(("", self.at)));
        }
        if bytes.get(self.at) != Some(&b'"') {
            return Err(Malformed);
        }
        let after = string_end(bytes, self.at)?;
        let key = self.text.get(self.at..after).ok_or(Malformed)?;
        if !bytes[after..].starts_with(b": ") {
            return Err(Malformed);
        }
        self.at = after + 2;
        Ok(Some((key, self.at)))
    }

    /// Skips the member's value, which begins at `start`.
    pub(crate) fn skip(&mut self, start: usize) -> Result<(), Malformed> {
        self.at = value_end(self.text.as_bytes(), start)?;
        Ok(())
    }

    /// Returns the member's value, which begins at `start`, and skips it.
    pub(crate) fn value(&mut self, start: usize) -> Result<&'t str, Malformed> {
        self.skip(start)?;
        self.text.get(start..self.at).ok_or(Malformed)
    }

    /// Returns the next member's key, in quotes, and its value; `None` at the end.
    pub fn next_pair(&mut self) -> Result<Option<(&'t str, &'t str)>, Malformed> {
        match self.next_member()? {
            Some((key, start)) => Ok(Some((key, self.value(start)?))),
            None => Ok(None),
        }
    }

    /// Returns the number of members that are left.
    pub fn count(mut self) -> Result<usize, Malformed> {
        let mut count = 0;
        while let Some((_, start)) = self.next_member()? {
            self.skip(start)?;
            count += 1;
        }
        Ok(count)
    }
}
