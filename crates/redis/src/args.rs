//! Arguments of commands, encoded in RESP.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::RedisCommand;
use crate::command_guard::{CommandGuard, GuardVerdict};
use crate::core::echo_probe::EchoProbe;
use crate::error::RequestError;

/// Writes arguments in RESP.
pub struct ArgWriter<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) written: usize,
    guard: Option<CommandGuard>,
    refused: Option<RequestError>,
    /// True if a command with an unknown number of replies was written.
    needs_probe: bool,
}

/// Result of encoding a request under a [`CommandGuard`].
#[derive(Debug)]
pub(crate) struct EncodedRequest {
    /// The probe that was appended, if the request needs one.
    pub(crate) probe: Option<EchoProbe>,
    /// State of the guard after the request's commands.
    pub(crate) guard: Option<CommandGuard>,
}

impl<'a> ArgWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        ArgWriter { out, written: 0, guard: None, refused: None, needs_probe: false }
    }

    /// Creates a writer that checks whether the connection accepts each command.
    /// [`finish`](Self::finish) returns the result.
    pub(crate) fn guarded(out: &'a mut Vec<u8>, guard: CommandGuard) -> Self {
        ArgWriter { guard: Some(guard), ..ArgWriter::new(out) }
    }

    /// Finishes the request and appends a probe if it needs one. Fails if the connection does not
    /// accept a command.
    #[inline]
    pub(crate) fn finish(mut self) -> Result<EncodedRequest, RequestError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let probe = if self.needs_probe { Some(self.append_probe()) } else { None };
        Ok(EncodedRequest { probe, guard: self.guard })
    }

    #[cold]
    fn append_probe(&mut self) -> EchoProbe {
        let probe = EchoProbe::new();
        for _ in 0..EchoProbe::ECHO_COUNT {
            self.unguarded_command(&(EchoProbe::COMMAND, probe.argument()));
        }
        probe
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
    pub(crate) fn command(&mut self, command: &(impl RedisCommand + ?Sized)) {
        let arguments = self.unguarded_command(command);
        let Some(guard) = self.guard else { return };
        match guard.check(&self.out[arguments..]) {
            Ok(GuardVerdict::SingleReply) => {}
            Ok(GuardVerdict::BeginsQueuing) => self.set_queuing(true),
            Ok(GuardVerdict::EndsQueuing) => self.set_queuing(false),
            Ok(GuardVerdict::NeedsProbe) => self.needs_probe = true,
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
    }

    /// Writes `EXEC`; later commands are no longer queued by the server.
    pub(crate) fn end_transaction(&mut self) {
        self.unguarded_command(&("EXEC",));
        self.set_queuing(false);
    }

    fn set_queuing(&mut self, now: bool) {
        if let Some(CommandGuard::Dedicated { queuing }) = &mut self.guard {
            *queuing = now;
        }
    }

    /// Writes a command of this crate, without the guard. Returns the position of its arguments.
    pub(crate) fn unguarded_command(&mut self, command: &(impl RedisCommand + ?Sized)) -> usize {
        let count = command.count();
        if count == 0 {
            // The server ignores an empty command, so every later reply would go to the wrong
            // request.
            let (command, instead) = ("an empty command", "a command with a name");
            self.refused.get_or_insert(RequestError::UnsupportedCommand { command, instead });
        }
        self.header(b'*', count);
        let arguments = self.out.len();
        self.written = 0;
        command.write(self);
        // A wrong count would break the framing of all later requests.
        assert_eq!(
            self.written, count,
            "a ToArgs or RedisCommand wrote another number of arguments than it counted"
        );
        arguments
    }
}

/// Omits the written bytes: they may hold secrets.
impl fmt::Debug for ArgWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgWriter").field("written", &self.written).finish_non_exhaustive()
    }
}

/// A value that is written as arguments of a command. A list is one argument for each item; `None`
/// is no argument.
///
/// Both methods run in the task that sends the request, and no lock is held. They may block, which
/// delays only their own request, and may use the same client.
pub trait ToArgs {
    /// Returns the number of arguments that [`write`](Self::write) writes.
    fn count(&self) -> usize {
        1
    }

    /// Writes the arguments.
    fn write(&self, out: &mut ArgWriter<'_>);

    /// Returns the number of arguments of a slice of these values.
    #[doc(hidden)]
    fn slice_count(items: &[Self]) -> usize
    where
        Self: Sized,
    {
        items.iter().map(Self::count).sum()
    }

    /// Writes a slice of these values. `u8` overrides it, because a byte slice is one argument.
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
            /// Writes `inf`, `-inf` and `nan` in lower case, as Redis expects.
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
