//! Decoding of replies into the caller's types, in the caller's task.
//!
//! Hand-made, as the framer is; `core/frame.rs` has the reason and the figures.
//!
//! [`reader`] reads elements, [`decode`] decodes standard types, [`value`] holds any reply,
//! [`results`] decodes the replies of a pipeline, and [`serde`] supports every `Deserialize` type.

mod decode;
mod decoder;
mod reader;
mod results;
#[cfg(feature = "serde")]
mod serde;
mod value;

pub use decode::FromReply;
pub use decoder::RespDecoder;
pub use reader::{RemainingItems, ReplyReader, ReplyToken};
pub use results::FromReplies;
pub(crate) use results::{ReplyCursor, single};
#[cfg(feature = "serde")]
pub use serde::Serde;
pub use value::{BigNumber, RespValue, VerbatimString, WithAttributes};
