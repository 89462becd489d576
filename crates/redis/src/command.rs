//! Commands and their arguments, written straight into the bytes that go out.
//!
//! A tuple is a command: `("SET", key, value)`. A tuple or a list of commands is a [`Batch`]. Both borrow what they are
//! given, and are encoded once, into the connection's own buffer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::core::sentinel::Sentinel;
use crate::error::RequestError;
use crate::guard::{Guard, Passed};

/// Writes arguments in RESP.
pub struct ArgWriter<'a> {
    out: &'a mut Vec<u8>,
    written: usize,
    guard: Option<Guard>,
    refused: Option<RequestError>,
    /// A command was written whose number of replies is unknown.
    unverified: bool,
}

/// What a guarded writer found out about a request.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The sentinel that was appended, if the request needs one.
    pub(crate) sentinel: Option<Sentinel>,
    /// The guard as the commands leave it.
    pub(crate) guard: Option<Guard>,
}

impl<'a> ArgWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        ArgWriter { out, written: 0, guard: None, refused: None, unverified: false }
    }

    /// One that checks whether the connection can take the commands; [`verdict`](Self::verdict) tells.
    pub(crate) fn guarded(out: &'a mut Vec<u8>, guard: Guard) -> Self {
        ArgWriter { guard: Some(guard), ..ArgWriter::new(out) }
    }

    /// Ends the request, with a sentinel if it needs one; or says why the connection can't take it.
    #[inline]
    pub(crate) fn verdict(mut self) -> Result<Verdict, RequestError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let sentinel = if self.unverified { Some(self.append_sentinel()) } else { None };
        Ok(Verdict { sentinel, guard: self.guard })
    }

    #[cold]
    fn append_sentinel(&mut self) -> Sentinel {
        let sentinel = Sentinel::new();
        for _ in 0..Sentinel::TIMES {
            self.own_command(&(Sentinel::COMMAND, sentinel.argument()));
        }
        sentinel
    }

    /// Writes one argument.
    #[inline]
    pub fn arg(&mut self, bytes: &[u8]) {
        self.written += 1;
        self.out.reserve(bytes.len() + 24);
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn header(&mut self, tag: u8, length: usize) {
        if length < 10 {
            self.out.extend_from_slice(&[tag, b'0' + length as u8, b'\r', b'\n']);
        } else {
            self.out.push(tag);
            self.out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            self.out.extend_from_slice(b"\r\n");
        }
    }

    #[inline]
    pub(crate) fn command(&mut self, command: &(impl Command + ?Sized)) {
        let arguments = self.own_command(command);
        let Some(guard) = self.guard else { return };
        match guard.check(&self.out[arguments..]) {
            Ok(Passed::Once) => {}
            Ok(Passed::BeginsQueuing) => self.set_queuing(true),
            Ok(Passed::EndsQueuing) => self.set_queuing(false),
            Ok(Passed::Unverified) => self.unverified = true,
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
    }

    /// Writes `EXEC`, after which no command is queued any more.
    pub(crate) fn end_transaction(&mut self) {
        self.own_command(&("EXEC",));
        self.set_queuing(false);
    }

    fn set_queuing(&mut self, now: bool) {
        if let Some(Guard::Dedicated { queuing }) = &mut self.guard {
            *queuing = now;
        }
    }

    /// Likewise, for a command that is ours and needs no guard. Says where its arguments begin.
    pub(crate) fn own_command(&mut self, command: &(impl Command + ?Sized)) -> usize {
        let count = command.count();
        if count == 0 {
            // The server passes over it without a reply, and every later reply would be somebody else's.
            let (command, instead) = ("a command without a word", "one with a name");
            self.refused.get_or_insert(RequestError::Unsuitable { command, instead });
        }
        self.header(b'*', count);
        let arguments = self.out.len();
        self.written = 0;
        command.write(self);
        // Anything else would put every reply after this one out of step.
        assert_eq!(
            self.written, count,
            "a ToArgs or Command wrote another number of arguments than it counted"
        );
        arguments
    }
}

/// What it has written stays its secret: it may be anybody's.
impl fmt::Debug for ArgWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgWriter").field("written", &self.written).finish_non_exhaustive()
    }
}

/// Something that is one argument of a command, or several: a list is as many as it has items, `None` is none.
///
/// Arguments are written into the connection's buffer while others wait for it, so [`write`](Self::write) should do nothing
/// but write, and must not use the same client.
pub trait ToArgs {
    /// How many arguments [`write`](Self::write) will write.
    fn count(&self) -> usize {
        1
    }

    /// Writes them.
    fn write(&self, out: &mut ArgWriter<'_>);

    /// How many arguments a slice of these makes.
    #[doc(hidden)]
    fn slice_count(items: &[Self]) -> usize
    where
        Self: Sized,
    {
        items.iter().map(Self::count).sum()
    }

    /// Writes a slice of these; bytes override it, since a slice of bytes is one argument.
    #[doc(hidden)]
    fn write_slice(items: &[Self], out: &mut ArgWriter<'_>)
    where
        Self: Sized,
    {
        items.iter().for_each(|item| item.write(out));
    }
}

impl ToArgs for str {
    #[inline]
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(self.as_bytes());
    }
}

impl ToArgs for String {
    #[inline]
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(self.as_bytes());
    }
}

impl ToArgs for Bytes {
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(self);
    }
}

impl ToArgs for char {
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(self.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl ToArgs for u8 {
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(itoa::Buffer::new().format(*self).as_bytes());
    }

    fn slice_count(_: &[Self]) -> usize {
        1
    }

    fn write_slice(items: &[Self], out: &mut ArgWriter<'_>) {
        out.arg(items);
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl ToArgs for $type {
            #[inline]
            fn write(&self, out: &mut ArgWriter<'_>) {
                out.arg(itoa::Buffer::new().format(*self).as_bytes());
            }
        }
    )*};
}
integers!(i8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize);

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl ToArgs for $type {
            /// As Redis reads it: `inf`, `-inf` and `nan` in lower case.
            fn write(&self, out: &mut ArgWriter<'_>) {
                if self.is_finite() {
                    out.arg(ryu::Buffer::new().format_finite(*self).as_bytes());
                } else {
                    out.arg(if self.is_nan() { b"nan" } else if *self > 0.0 { b"inf" } else { b"-inf" });
                }
            }
        }
    )*};
}
floats!(f32 f64);

impl<T: ToArgs> ToArgs for [T] {
    fn count(&self) -> usize {
        T::slice_count(self)
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        T::write_slice(self, out);
    }
}

impl<T: ToArgs, const N: usize> ToArgs for [T; N] {
    fn count(&self) -> usize {
        T::slice_count(self)
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        T::write_slice(self, out);
    }
}

impl<T: ToArgs> ToArgs for Vec<T> {
    fn count(&self) -> usize {
        T::slice_count(self)
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        T::write_slice(self, out);
    }
}

impl<T: ToArgs> ToArgs for Option<T> {
    fn count(&self) -> usize {
        self.as_ref().map_or(0, T::count)
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        if let Some(value) = self {
            value.write(out);
        }
    }
}

macro_rules! pointers {
    ($([$($generics:tt)*] $type:ty)*) => {$(
        impl<$($generics)*> ToArgs for $type {
            #[inline]
            fn count(&self) -> usize {
                (**self).count()
            }

            #[inline]
            fn write(&self, out: &mut ArgWriter<'_>) {
                (**self).write(out);
            }
        }
    )*};
}
pointers!([T: ToArgs + ?Sized] &T [T: ToArgs + ?Sized] Box<T> [T: ToArgs + ?Sized] Arc<T> [T: ToArgs + ?Sized] Rc<T>
    [T: ToArgs + ToOwned + ?Sized] Cow<'_, T>);

macro_rules! collections {
    ($([$($generics:tt)*] $type:ty, $item:pat => $($part:ident)+;)*) => {$(
        impl<$($generics)*> ToArgs for $type {
            fn count(&self) -> usize {
                self.iter().map(|$item| 0 $(+ $part.count())+).sum()
            }

            fn write(&self, out: &mut ArgWriter<'_>) {
                for $item in self {
                    $($part.write(out);)+
                }
            }
        }
    )*};
}
collections! {
    [T: ToArgs, H] HashSet<T, H>, item => item;
    [T: ToArgs] BTreeSet<T>, item => item;
    [K: ToArgs, V: ToArgs, H] HashMap<K, V, H>, (key, value) => key value;
    [K: ToArgs, V: ToArgs] BTreeMap<K, V>, (key, value) => key value;
}

/// One command with its arguments: a tuple such as `("GET", "key")`, or a [`Cmd`] built at run time.
pub trait Command {
    /// How many words it has, its name included.
    fn count(&self) -> usize;

    /// Writes them.
    fn write(&self, out: &mut ArgWriter<'_>);
}

impl<C: Command + ?Sized> Command for &C {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        (**self).write(out);
    }
}

/// A command built at run time; begin with [`cmd`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cmd {
    count: usize,
    encoded: Vec<u8>,
}

/// Begins a command whose arguments aren't known until run time.
///
/// ```
/// # use forebay_redis::cmd;
/// let mut zadd = cmd("ZADD").arg("scores");
/// for (score, player) in [(3, "ada"), (5, "grace")] {
///     zadd = zadd.arg(score).arg(player);
/// }
/// ```
pub fn cmd(name: &str) -> Cmd {
    Cmd { count: 0, encoded: Vec::with_capacity(64) }.arg(name)
}

impl Cmd {
    /// Adds an argument, or as many as the value has.
    pub fn arg(mut self, arg: impl ToArgs) -> Self {
        let mut writer = ArgWriter::new(&mut self.encoded);
        arg.write(&mut writer);
        self.count += writer.written;
        self
    }
}

impl Command for Cmd {
    fn count(&self) -> usize {
        self.count
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        out.written += self.count;
        out.out.extend_from_slice(&self.encoded);
    }
}

/// Several commands that are sent as one request.
///
/// A tuple of commands is answered by a tuple of as many types, which the compiler checks; a list by a `Vec`.
pub trait Batch<R> {
    /// How many commands there are.
    fn len(&self) -> usize;

    /// True for no command at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes them one after another.
    #[doc(hidden)]
    fn write(&self, out: &mut ArgWriter<'_>);
}

impl<R, B: Batch<R> + ?Sized> Batch<R> for &B {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        (**self).write(out);
    }
}

macro_rules! lists {
    ($([$($generics:tt)*] $type:ty)*) => {$(
        impl<T, C: Command, $($generics)*> Batch<Vec<T>> for $type {
            fn len(&self) -> usize {
                <[C]>::len(self)
            }

            fn write(&self, out: &mut ArgWriter<'_>) {
                self.iter().for_each(|command| out.command(command));
            }
        }
    )*};
}
lists!([] [C] [] Vec<C> [const N: usize] [C; N]);

macro_rules! tuples {
    ($($name:ident $reply:ident),+) => {
        impl<$($name: ToArgs),+> Command for ($($name,)+) {
            #[inline]
            fn count(&self) -> usize {
                #[allow(non_snake_case, reason = "the type's name serves as the field's")]
                let ($($name,)+) = self;
                0 $(+ $name.count())+
            }

            #[inline]
            fn write(&self, out: &mut ArgWriter<'_>) {
                #[allow(non_snake_case, reason = "the type's name serves as the field's")]
                let ($($name,)+) = self;
                $($name.write(out);)+
            }
        }

        impl<$($name: Command, $reply),+> Batch<($($reply,)+)> for ($($name,)+) {
            fn len(&self) -> usize {
                [$(stringify!($name)),+].len()
            }

            fn write(&self, out: &mut ArgWriter<'_>) {
                #[allow(non_snake_case, reason = "the type's name serves as the field's")]
                let ($($name,)+) = self;
                $(out.command($name);)+
            }
        }
    };
}
tuples!(A RA);
tuples!(A RA, B RB);
tuples!(A RA, B RB, C RC);
tuples!(A RA, B RB, C RC, D RD);
tuples!(A RA, B RB, C RC, D RD, E RE);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG, H RH);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG, H RH, I RI);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG, H RH, I RI, J RJ);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG, H RH, I RI, J RJ, K RK);
tuples!(A RA, B RB, C RC, D RD, E RE, F RF, G RG, H RH, I RI, J RJ, K RK, L RL);

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(command: impl Command) -> String {
        let mut out = Vec::new();
        ArgWriter::new(&mut out).command(&command);
        String::from_utf8(out).expect("these tests write text")
    }

    #[test]
    fn a_tuple_is_a_command() {
        assert_eq!(
            encode(("SET", "key", "a longer value")),
            "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$14\r\na longer value\r\n"
        );
        assert_eq!(encode(("PING",)), "*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn lists_and_options_are_as_many_arguments_as_they_hold() {
        assert_eq!(
            encode(("DEL", ["a", "b"], None::<&str>, Some("c"))),
            encode(cmd("DEL").arg("a").arg("b").arg("c"))
        );
        assert_eq!(
            encode(("MSET", BTreeMap::from([("a", 1), ("b", -2)]))),
            encode(("MSET", "a", 1, "b", -2))
        );
        assert_eq!(encode(("DEL", Vec::<String>::new())), "*1\r\n$3\r\nDEL\r\n");
    }

    #[test]
    fn bytes_are_one_argument() {
        let expected = encode(("SET", "k", "ab"));
        assert_eq!(encode(("SET", "k", b"ab")), expected);
        assert_eq!(encode(("SET", "k", &b"ab"[..])), expected);
        assert_eq!(encode(("SET", "k", b"ab".to_vec())), expected);
        assert_eq!(encode(("SET", "k", Bytes::from_static(b"ab"))), expected);
        assert_eq!(encode(("SET", "k", [b"ab", b"cd"])), encode(("SET", "k", "ab", "cd")));
    }

    #[test]
    fn numbers_are_written_as_redis_reads_them() {
        assert_eq!(
            encode((1.5f64, f64::INFINITY, f32::NEG_INFINITY, f64::NAN)),
            encode(("1.5", "inf", "-inf", "nan"))
        );
        assert_eq!(
            encode((u8::MAX, i64::MIN, u64::MAX)),
            encode(("255", "-9223372036854775808", "18446744073709551615"))
        );
    }
}
