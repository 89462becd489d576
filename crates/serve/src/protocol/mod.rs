//! The shape protocol: from a request's head and body to what is asked for, and from an answer to its headers.
//!
//! Invariant: what a client sent is either understood in full or refused with all that is wrong with it; nothing of it reaches SQL, a
//! header or a log as it was written, except the where clause, which is the filter's to read.
//! Kept by: names and orders are parsed, and written anew in quotes (`names.rs`, `order_by.rs`); what is echoed is cut short
//! (`names.rs`) or JSON; a secret can't be shown (`forebay_admission::Secret`).
//! Not here: I/O, clocks, randomness. Time and chance are parameters.
//!
//! | to find | look in |
//! |---|---|
//! | paths, methods, who may pass | `routes.rs`; what a token grants, `grants.rs` |
//! | the query string | `query.rs` |
//! | what is asked for | `request.rs`, `subset.rs`, `params.rs`, `order_by.rs`, `names.rs` |
//! | what is wrong with it | `invalid.rs` |
//! | answers that are no data | `refusal.rs`, `answers.rs` |
//! | headers of those that are | `headers.rs`, `caching.rs`, `cursor.rs`, `etag.rs`, `encoding.rs`, `schema.rs`, `cors.rs` |

pub mod answers;
pub mod caching;
pub mod cors;
pub mod cursor;
#[cfg(test)]
mod documented;
pub mod encoding;
pub mod etag;
mod grants;
pub mod headers;
mod invalid;
pub mod names;
mod order_by;
mod params;
mod query;
mod refusal;
mod request;
#[cfg(test)]
mod request_tests;
mod routes;
pub mod schema;
mod subset;

pub use self::grants::{Bearer, Grant, GrantError, of_claim};
pub use self::invalid::Invalid;
pub use self::order_by::{Nulls, OrderBy, OrderByError, OrderKey};
pub use self::params::MAX_PARAMS;
pub use self::query::{MAX_QUERY_BYTES, Query, unescaped};
pub use self::refusal::Refusal;
pub use self::request::ShapeRequest;
pub use self::routes::{Access, Pass, Route};
pub use self::subset::{MAX_BODY_BYTES, Subset};
