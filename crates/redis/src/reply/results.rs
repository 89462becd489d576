//! Replies of a pipeline: each command's result is a value or an error.

use bytes::Bytes;

use super::decode::FromReply;
use super::reader::{ReplyReader, ReplyToken};
use crate::core::frame::{FrameStep, Framer, ReplyLimits};
use crate::core::pipeline::Replies;
use crate::error::ReplyError;

/// Types that the replies of a pipeline are decoded into: a tuple for a tuple of commands, a `Vec`
/// for a list.
pub trait FromReplies {
    /// A tuple or a `Vec` of `Result<_, ReplyError>`.
    type Results;

    #[doc(hidden)]
    fn from_replies(replies: &mut ReplyCursor<'_>, count: usize) -> Self::Results;
}

/// Decodes one reply after another. A reply that cannot be decoded does not affect the next one.
#[derive(Debug)]
pub struct ReplyCursor<'a> {
    bytes: &'a Bytes,
    rest: std::slice::Iter<'a, Bytes>,
    at: usize,
}

impl<'a> ReplyCursor<'a> {
    pub(crate) fn new(replies: &'a Replies) -> Self {
        ReplyCursor { bytes: &replies.first, rest: replies.rest.iter(), at: 0 }
    }

    pub(crate) fn next<T: FromReply>(&mut self) -> Result<T, ReplyError> {
        let mut reader = self.reader();
        let result = T::from_reply(&mut reader);
        if result.is_err() {
            // Decoding stopped inside the reply; the framer finds where it ends.
            self.at += frame_length(&self.bytes[self.at..]);
        } else {
            self.at = reader.at();
        }
        result
    }

    /// Reads the header of the next reply, so that its items are decoded next.
    pub(crate) fn enter(&mut self) -> Result<ReplyToken<'a>, ReplyError> {
        let mut reader = self.reader();
        let token = reader.token()?;
        self.at = reader.at();
        Ok(token)
    }

    fn reader(&mut self) -> ReplyReader<'a> {
        while self.at >= self.bytes.len() {
            let Some(part) = self.rest.next() else { break };
            (self.bytes, self.at) = (part, 0);
        }
        ReplyReader::new(self.bytes, self.at)
    }
}

fn frame_length(bytes: &[u8]) -> usize {
    match Framer::new(ReplyLimits::NONE).next(bytes) {
        Ok(FrameStep::Frame(_, range)) => range.end,
        Ok(FrameStep::Need(_)) | Err(_) => bytes.len(),
    }
}

pub(crate) fn single<T: FromReply>(replies: &Replies) -> Result<T, ReplyError> {
    T::from_reply(&mut ReplyReader::new(&replies.first, 0))
}

impl<T: FromReply> FromReplies for Vec<T> {
    type Results = Vec<Result<T, ReplyError>>;

    fn from_replies(replies: &mut ReplyCursor<'_>, count: usize) -> Self::Results {
        (0..count).map(|_| replies.next()).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: FromReply),+> FromReplies for ($($name,)+) {
            type Results = ($(Result<$name, ReplyError>,)+);

            fn from_replies(replies: &mut ReplyCursor<'_>, _: usize) -> Self::Results {
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
