//! Commands: a tuple is a command, a tuple or a list of commands is a batch.
//!
//! Both borrow their arguments and are encoded once, in the task that sends them.

use crate::args::{ArgWriter, ToArgs};

/// One command with its arguments: a tuple such as `("GET", "key")`, or a [`Cmd`] built at run
/// time.
pub trait RedisCommand {
    /// Returns the number of arguments, including the command's name.
    fn count(&self) -> usize;

    /// Writes the arguments.
    fn write(&self, out: &mut ArgWriter<'_>);
}

impl<C: RedisCommand + ?Sized> RedisCommand for &C {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        (**self).write(out);
    }
}

/// A command built at run time; start with [`cmd`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cmd {
    count: usize,
    encoded: Vec<u8>,
}

/// Starts a command whose arguments are known only at run time.
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
    /// Appends the argument or arguments of a value.
    pub fn arg(mut self, arg: impl ToArgs) -> Self {
        let mut writer = ArgWriter::new(&mut self.encoded);
        arg.write(&mut writer);
        self.count += writer.written;
        self
    }
}

impl RedisCommand for Cmd {
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
/// A tuple of commands gives a tuple of results with as many types, checked by the compiler. A list
/// gives a `Vec`.
pub trait CommandBatch<R> {
    /// Returns the number of commands.
    fn len(&self) -> usize;

    /// Returns true if there are no commands.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes all commands.
    #[doc(hidden)]
    fn write(&self, out: &mut ArgWriter<'_>);
}

impl<R, B: CommandBatch<R> + ?Sized> CommandBatch<R> for &B {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn write(&self, out: &mut ArgWriter<'_>) {
        (**self).write(out);
    }
}

macro_rules! lists {
    ($([$($generics:tt)*] $type:ty)*) => {$(
        impl<T, C: RedisCommand, $($generics)*> CommandBatch<Vec<T>> for $type {
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
        impl<$($name: ToArgs),+> RedisCommand for ($($name,)+) {
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

        impl<$($name: RedisCommand, $reply),+> CommandBatch<($($reply,)+)> for ($($name,)+) {
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
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;

    fn encode(command: impl RedisCommand) -> String {
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
    fn lists_and_options_become_one_argument_per_item() {
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
    fn numbers_are_written_in_the_format_of_redis() {
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
