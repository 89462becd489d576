//! From a reply's bytes to a caller's type, in the caller's task.
//!
//! [`reader`] walks the bytes, [`decode`] makes the standard types of them, [`value`] keeps any reply as it is,
//! [`results`] handles the several replies of a pipeline, and [`serde`] leads to every other type.

mod decode;
mod decoder;
mod reader;
mod results;
#[cfg(feature = "serde")]
mod serde;
mod value;

pub use decode::FromReply;
pub use decoder::Decoder;
pub use reader::{Items, Reader, Token};
pub use results::FromReplies;
pub(crate) use results::{Cursor, single};
#[cfg(feature = "serde")]
pub use serde::Serde;
pub use value::{Attributed, BigNumber, Value, Verbatim};
