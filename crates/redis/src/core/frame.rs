//! Where each reply ends.
//!
//! Invariant: a byte is looked at once, however the stream is cut into reads; only a length header, which is at most 24
//! bytes long, may be read again when it was cut in two. A header that announces more than [`Limits`] allow is refused
//! before anything is allocated for it.
//!
//! Not here: what a reply means. Callers find that out in their own task, see `reply/`.

use std::ops::Range;

/// What a server may send in one reply; beyond that the connection is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one whole reply with everything in it. Default 1 GiB: twice the longest string that Redis stores.
    pub max_reply_bytes: usize,
    /// Elements of one reply over all levels, attributes included. Default 16 Mi.
    pub max_elements: usize,
    /// Levels of arrays, maps and sets inside each other. Default 64: replies are decoded recursively.
    pub max_depth: usize,
}

impl Limits {
    /// For bytes that were framed under real limits before.
    pub(crate) const NONE: Limits =
        Limits { max_reply_bytes: usize::MAX, max_elements: usize::MAX, max_depth: usize::MAX };
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_reply_bytes: 1 << 30, max_elements: 1 << 24, max_depth: 64 }
    }
}

/// The bytes from a server are not RESP, or more than the limits allow. The connection can't go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply must begin with one of the type bytes of RESP2 or RESP3.
    #[error(
        "expected a RESP type byte, found {0:#04x}: is this a Redis server, and is TLS on at both ends or neither?"
    )]
    Type(u8),
    /// A length or count isn't a number.
    #[error("malformed length after {:?}", char::from(*.0))]
    Length(u8),
    /// A line or a string doesn't end in CR LF.
    #[error("missing CR LF after {0}")]
    Terminator(&'static str),
    /// A chunk, an end marker or a map's value stands where it can't.
    #[error("misplaced {:?} in a streamed reply", char::from(*.0))]
    Misplaced(u8),
    /// [`Limits::max_reply_bytes`].
    #[error("a reply of at least {found} bytes is over the limit of {limit}")]
    TooLong {
        /// Bytes announced or received so far.
        found: u64,
        /// What is allowed.
        limit: usize,
    },
    /// [`Limits::max_elements`].
    #[error("a reply of at least {found} elements is over the limit of {limit}")]
    TooMany {
        /// Elements announced so far.
        found: u64,
        /// What is allowed.
        limit: usize,
    },
    /// [`Limits::max_depth`].
    #[error("a reply nested deeper than the limit of {limit}")]
    TooDeep {
        /// What is allowed.
        limit: usize,
    },
    /// A reply arrived although no request waits for one.
    #[error("a reply came although no request is open")]
    Unasked,
    /// A command that Redis 7 doesn't have was answered with no reply or with several, as a sentinel after it showed.
    #[error(
        "a command was not answered with exactly one reply, so that no later reply can be told apart; \
         don't send this command through this client"
    )]
    OutOfStep,
}

/// Whom a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The answer to the oldest open request.
    Reply,
    /// Likewise, and it is an error.
    Error,
    /// Likewise, and an element directly inside it is an error, as in the results of `EXEC`.
    HasErrors,
    /// Nobody's answer: a message or an invalidation.
    Push,
}

/// What [`Framer::next`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// One whole frame, at this place in the bytes.
    Frame(Kind, Range<usize>),
    /// The frame isn't whole; at least this many more bytes belong to it.
    Need(usize),
}

/// A resumable scanner over a growing buffer.
#[derive(Debug)]
pub(crate) struct Framer {
    limits: Limits,
    /// Where the current frame begins in the buffer.
    start: usize,
    /// Everything before this place is scanned.
    at: usize,
    /// How far a line without an end has been searched.
    searched: usize,
    /// End of the string whose header is scanned, its CR LF included.
    string_end: Option<usize>,
    kind: Option<Kind>,
    elements: u64,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, Copy)]
enum Level {
    /// An aggregate that announced its size.
    Counted { left: u64, attribute: bool },
    /// An aggregate that ends with `.`; a map may not end between key and value.
    Streamed { pairs: bool, odd: bool, attribute: bool },
    /// A string that comes in `;` chunks.
    Chunks,
}

impl Framer {
    /// A framer at the beginning of a connection's bytes.
    pub(crate) fn new(limits: Limits) -> Self {
        Framer {
            limits,
            start: 0,
            at: 0,
            searched: 0,
            string_end: None,
            kind: None,
            elements: 0,
            levels: Vec::new(),
        }
    }

    /// Goes on with `bytes`: what the last call saw, less what was [`consumed`](Self::consumed), plus what came since.
    #[inline]
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Step, ProtocolError> {
        match self.whole_string(bytes) {
            Some(frame) => Ok(Step::Frame(Kind::Reply, frame)),
            None => self.scan(bytes),
        }
    }

    /// The commonest frame of all: a string that is there in full. Everything else, errors included, is `scan`'s.
    #[inline]
    fn whole_string(&mut self, bytes: &[u8]) -> Option<Range<usize>> {
        let (start, fresh) = (self.start, self.at == self.start);
        if !fresh || self.string_end.is_some() || bytes.get(start) != Some(&b'$') {
            return None;
        }
        let header = header(bytes, start, b'$').ok()??;
        let Length::Known(length) = header.length else { return None };
        let end = header.end.checked_add(usize::try_from(length).ok()?)?.checked_add(2)?;
        if end - start > self.limits.max_reply_bytes || bytes.get(end - 2..end) != Some(b"\r\n") {
            return None;
        }
        (self.start, self.at) = (end, end);
        Some(start..end)
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<Step, ProtocolError> {
        loop {
            let scanned = match self.string_end {
                Some(end) => self.string(bytes, end)?,
                None => self.element(bytes)?,
            };
            match scanned {
                Scanned::More(need) => {
                    let held = bytes.len() - self.start;
                    self.check_bytes(held as u64 + need as u64)?;
                    return Ok(Step::Need(need));
                }
                Scanned::Inside => {}
                Scanned::Element => {
                    if self.close_levels()? {
                        let frame = self.start..self.at;
                        // As if it had come in pieces: a reply is over the limit however it is cut.
                        self.check_bytes(frame.len() as u64)?;
                        self.start = self.at;
                        self.elements = 0;
                        let kind = self.kind.take().expect("a whole frame has had its type byte");
                        return Ok(Step::Frame(kind, frame));
                    }
                }
            }
        }
    }

    /// The first `count` bytes of the buffer are gone; they must be whole frames.
    pub(crate) fn consumed(&mut self, count: usize) {
        debug_assert!(count <= self.start, "only whole frames can be consumed");
        self.start -= count;
        self.at -= count;
        self.searched = self.searched.saturating_sub(count);
        self.string_end = self.string_end.map(|end| end - count);
    }

    fn element(&mut self, bytes: &[u8]) -> Result<Scanned, ProtocolError> {
        let Some(&tag) = bytes.get(self.at) else { return Ok(Scanned::More(1)) };
        let in_chunks = matches!(self.levels.last(), Some(Level::Chunks));
        if in_chunks != (tag == b';') {
            return Err(ProtocolError::Misplaced(tag));
        }
        if self.levels.is_empty() && tag != b'|' {
            self.kind = Some(match tag {
                b'>' => Kind::Push,
                b'-' | b'!' => Kind::Error,
                _ => Kind::Reply,
            });
        } else if matches!(tag, b'-' | b'!') && self.levels.len() == 1 && self.kind == Some(Kind::Reply) {
            // Inside an attribute before the reply, `kind` is still `None`.
            self.kind = Some(Kind::HasErrors);
        }
        match tag {
            b'$' | b'!' | b'=' | b';' => self.string_header(bytes, tag),
            b'*' | b'~' | b'>' => self.aggregate_header(bytes, tag, 1),
            b'%' | b'|' => self.aggregate_header(bytes, tag, 2),
            b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => self.line(bytes),
            b'.' => self.end_of_stream(bytes),
            other => Err(ProtocolError::Type(other)),
        }
    }

    fn line(&mut self, bytes: &[u8]) -> Result<Scanned, ProtocolError> {
        let from = self.searched.max(self.at + 1);
        match memchr::memchr(b'\n', &bytes[from..]) {
            Some(offset) => {
                let newline = from + offset;
                if bytes[newline - 1] != b'\r' {
                    return Err(ProtocolError::Terminator("a line"));
                }
                self.at = newline + 1;
                self.check_bytes((self.at - self.start) as u64)?;
                Ok(Scanned::Element)
            }
            None => {
                self.searched = bytes.len();
                Ok(Scanned::More(1))
            }
        }
    }

    fn string_header(&mut self, bytes: &[u8], tag: u8) -> Result<Scanned, ProtocolError> {
        let header = match header(bytes, self.at, tag)? {
            Some(header) => header,
            None => return Ok(Scanned::More(1)),
        };
        match header.length {
            Length::Null if tag == b'$' => {
                self.at = header.end;
                Ok(Scanned::Element)
            }
            Length::Streamed if tag == b'$' => {
                self.at = header.end;
                self.open(Level::Chunks)
            }
            Length::Null | Length::Streamed => Err(ProtocolError::Length(tag)),
            Length::Known(0) if tag == b';' => {
                self.at = header.end;
                self.levels.pop();
                Ok(Scanned::Element)
            }
            Length::Known(length) => {
                self.check_bytes((header.end - self.start) as u64 + length + 2)?;
                self.string(bytes, header.end + length as usize + 2)
            }
        }
    }

    /// Passes over a string that ends, with its CR LF, at `end`.
    fn string(&mut self, bytes: &[u8], end: usize) -> Result<Scanned, ProtocolError> {
        if bytes.len() < end {
            self.string_end = Some(end);
            return Ok(Scanned::More(end - bytes.len()));
        }
        if &bytes[end - 2..end] != b"\r\n" {
            return Err(ProtocolError::Terminator("a string"));
        }
        self.string_end = None;
        self.at = end;
        Ok(match self.levels.last() {
            Some(Level::Chunks) => Scanned::Inside,
            _ => Scanned::Element,
        })
    }

    fn aggregate_header(&mut self, bytes: &[u8], tag: u8, width: u64) -> Result<Scanned, ProtocolError> {
        let header = match header(bytes, self.at, tag)? {
            Some(header) => header,
            None => return Ok(Scanned::More(1)),
        };
        let attribute = tag == b'|';
        let level = match header.length {
            Length::Null if tag == b'*' => {
                self.at = header.end;
                return Ok(Scanned::Element);
            }
            Length::Null => return Err(ProtocolError::Length(tag)),
            Length::Streamed => Level::Streamed { pairs: width == 2, odd: false, attribute },
            Length::Known(count) => Level::Counted { left: count.saturating_mul(width), attribute },
        };
        let announced = if let Level::Counted { left, .. } = level { left } else { 0 };
        self.count_elements(announced + 1)?;
        self.at = header.end;
        match level {
            Level::Counted { left: 0, attribute: false } => Ok(Scanned::Element),
            Level::Counted { left: 0, attribute: true } => Ok(Scanned::Inside),
            level => self.open(level),
        }
    }

    fn end_of_stream(&mut self, bytes: &[u8]) -> Result<Scanned, ProtocolError> {
        let attribute = match self.levels.last() {
            Some(Level::Streamed { odd: false, attribute, .. }) => *attribute,
            Some(Level::Streamed { odd: true, .. } | Level::Counted { .. } | Level::Chunks) | None => {
                return Err(ProtocolError::Misplaced(b'.'));
            }
        };
        let end = self.at + 3;
        if bytes.len() < end {
            return Ok(Scanned::More(end - bytes.len()));
        }
        if &bytes[self.at + 1..end] != b"\r\n" {
            return Err(ProtocolError::Terminator("an end marker"));
        }
        self.at = end;
        self.levels.pop();
        Ok(if attribute { Scanned::Inside } else { Scanned::Element })
    }

    fn open(&mut self, level: Level) -> Result<Scanned, ProtocolError> {
        if self.levels.len() >= self.limits.max_depth {
            return Err(ProtocolError::TooDeep { limit: self.limits.max_depth });
        }
        self.levels.push(level);
        Ok(Scanned::Inside)
    }

    /// An element is whole: so may be what it stands in. True if the whole frame is.
    fn close_levels(&mut self) -> Result<bool, ProtocolError> {
        while let Some(level) = self.levels.last_mut() {
            match level {
                Level::Counted { left, attribute } => {
                    *left -= 1;
                    if *left > 0 {
                        return Ok(false);
                    }
                    let attribute = *attribute;
                    self.levels.pop();
                    if attribute {
                        return Ok(false); // it only announces the element that follows
                    }
                }
                Level::Streamed { pairs, odd, .. } => {
                    *odd = *pairs && !*odd;
                    // Nothing announced these, so they are counted as they come.
                    self.count_elements(1)?;
                    return Ok(false);
                }
                Level::Chunks => return Ok(false),
            }
        }
        Ok(true)
    }

    fn count_elements(&mut self, more: u64) -> Result<(), ProtocolError> {
        self.elements = self.elements.saturating_add(more);
        if self.elements > self.limits.max_elements as u64 {
            return Err(ProtocolError::TooMany { found: self.elements, limit: self.limits.max_elements });
        }
        Ok(())
    }

    fn check_bytes(&self, found: u64) -> Result<(), ProtocolError> {
        if found > self.limits.max_reply_bytes as u64 {
            return Err(ProtocolError::TooLong { found, limit: self.limits.max_reply_bytes });
        }
        Ok(())
    }
}

enum Scanned {
    /// The buffer ends here; at least this many more bytes are needed.
    More(usize),
    /// A header, an attribute or a chunk: the element goes on.
    Inside,
    /// A whole element.
    Element,
}

/// The length that a header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Known(u64),
    /// `-1`, as RESP2 writes null.
    Null,
    /// `?`: the end is marked.
    Streamed,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) length: Length,
    /// Just behind the header's CR LF.
    pub(crate) end: usize,
}

/// Reads `<tag><length>\r\n` at `at`; `None` if the bytes end inside it.
#[inline]
pub(crate) fn header(bytes: &[u8], at: usize, tag: u8) -> Result<Option<Header>, ProtocolError> {
    let malformed = Err(ProtocolError::Length(tag));
    let rest = bytes.get(at + 1..).unwrap_or_default();
    let (length, digits) = match rest.first() {
        None => return Ok(None),
        Some(b'?') => (Length::Streamed, 1),
        Some(b'-') => match rest.get(1) {
            None => return Ok(None),
            Some(b'1') => (Length::Null, 2),
            Some(_) => return malformed,
        },
        Some(_) => {
            let mut value: u64 = 0;
            let mut digits = 0;
            while let Some(digit @ b'0'..=b'9') = rest.get(digits) {
                if digits == 18 {
                    return malformed; // far beyond any limit, and the sum below can't overflow
                }
                value = value * 10 + u64::from(digit - b'0');
                digits += 1;
            }
            if digits == 0 {
                return malformed;
            }
            (Length::Known(value), digits)
        }
    };
    match (rest.get(digits), rest.get(digits + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(Header { length, end: at + 1 + digits + 2 })),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        (Some(_), _) => malformed,
    }
}
