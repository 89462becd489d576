//! Shape protocol: parses HTTP requests for shapes, and writes response heads and refusals.
//!
//! Invariant: a request is either parsed completely or refused with a list of all its problems.
//! Invariant: this module writes no text of a client unchanged to SQL, a header or a log. Two
//! exceptions: the filter parses the where clause, and CORS headers echo the origin and the
//! requested header names.
//! Enforced by: names and orders are parsed and written again in quotes (`names.rs`,
//! `order_by.rs`). Text is echoed only inside JSON strings. `Debug` prints no secret
//! (`forebay_admission::Secret`).
//! Out of scope: I/O, clocks and randomness. The time and random numbers are parameters.
//!
//! | topic | file |
//! |---|---|
//! | paths and methods | `route.rs` |
//! | secrets, tokens and grants | `access.rs`, `grants.rs` |
//! | the query string; the body of a POST | `query_params.rs`; `post_body.rs` |
//! | parameters of a request | `shape_request.rs`, `subset.rs`, `params.rs`, `order_by.rs`, `names.rs` |
//! | problems of a request | `invalid_request.rs` |
//! | responses without data | `request_refusal.rs`, `fixed_responses.rs` |
//! | headers of responses with data | `headers.rs`, `cache_policy.rs`, `cursor.rs`, `etag.rs`, `encoding.rs`, `schema.rs`, `cors.rs` |

mod access;
pub mod cache_policy;
pub mod cors;
pub mod cursor;
pub mod encoding;
pub mod etag;
pub mod fixed_responses;
mod grants;
pub mod headers;
mod invalid_request;
pub mod names;
mod order_by;
mod params;
mod post_body;
#[cfg(test)]
mod protocol_page_tests;
mod query_params;
mod request_refusal;
mod route;
pub mod schema;
mod shape_request;
#[cfg(test)]
mod shape_request_tests;
mod subset;

pub use self::access::{Access, AccessLevel, DeletePolicy};
pub use self::grants::{Grant, GrantError, GrantFault, TokenBearer, parse_grants};
pub use self::invalid_request::InvalidRequest;
pub use self::order_by::{NullsOrder, OrderByError, OrderByItem, OrderKey};
pub use self::params::MAX_PARAMS;
pub use self::post_body::MAX_BODY_BYTES;
pub use self::query_params::{MAX_QUERY_BYTES, MAX_QUERY_CLAUSE_BYTES, QueryParams, decode_hex_pair};
pub use self::request_refusal::RequestRefusal;
pub use self::route::Route;
pub use self::shape_request::{LiveMode, ShapeRequest};
pub use self::subset::Subset;
