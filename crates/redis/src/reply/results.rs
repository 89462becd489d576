//! The replies of a pipeline: each slot its value or its own error.

use bytes::Bytes;

use super::decode::FromReply;
use super::reader::{Reader, Token};
use crate::core::frame::{Framer, Limits, Step};
use crate::core::pipeline::Replies;
use crate::error::ReplyError;

/// What a pipeline's replies become: a tuple of types for a tuple of commands, a `Vec` for a list.
pub trait FromReplies {
    /// A tuple, or a `Vec`, of `Result<_, ReplyError>`.
    type Results;

    #[doc(hidden)]
    fn from_replies(replies: &mut Cursor<'_>, count: usize) -> Self::Results;
}

/// Hands out one reply after another. One that can't be read spoils no other: the next begins where the framer said.
#[derive(Debug)]
pub struct Cursor<'a> {
    bytes: &'a Bytes,
    rest: std::slice::Iter<'a, Bytes>,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(replies: &'a Replies) -> Self {
        Cursor { bytes: &replies.first, rest: replies.rest.iter(), at: 0 }
    }

    pub(crate) fn next<T: FromReply>(&mut self) -> Result<T, ReplyError> {
        let mut reader = self.reader();
        let result = T::from_reply(&mut reader);
        if result.is_err() {
            // It stopped somewhere inside; the framer, which passed over this reply before, knows where it ends.
            self.at += whole_frame(&self.bytes[self.at..]);
        } else {
            self.at = reader.at();
        }
        result
    }

    /// Goes into the next reply: its items are handed out next.
    pub(crate) fn enter(&mut self) -> Result<Token<'a>, ReplyError> {
        let mut reader = self.reader();
        let token = reader.token()?;
        self.at = reader.at();
        Ok(token)
    }

    fn reader(&mut self) -> Reader<'a> {
        while self.at >= self.bytes.len() {
            let Some(part) = self.rest.next() else { break };
            (self.bytes, self.at) = (part, 0);
        }
        Reader::new(self.bytes, self.at)
    }
}

fn whole_frame(bytes: &[u8]) -> usize {
    match Framer::new(Limits::NONE).next(bytes) {
        Ok(Step::Frame(_, range)) => range.end,
        Ok(Step::Need(_)) | Err(_) => bytes.len(),
    }
}

pub(crate) fn single<T: FromReply>(replies: &Replies) -> Result<T, ReplyError> {
    T::from_reply(&mut Reader::new(&replies.first, 0))
}

impl<T: FromReply> FromReplies for Vec<T> {
    type Results = Vec<Result<T, ReplyError>>;

    fn from_replies(replies: &mut Cursor<'_>, count: usize) -> Self::Results {
        (0..count).map(|_| replies.next()).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: FromReply),+> FromReplies for ($($name,)+) {
            type Results = ($(Result<$name, ReplyError>,)+);

            fn from_replies(replies: &mut Cursor<'_>, _: usize) -> Self::Results {
                ($(replies.next::<$name>(),)+)
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);
