//! What operators see of the servers: readiness, status, samples for the dashboard, and metrics.
//!
//! | of | look in |
//! |---|---|
//! | `forebay gate` | `gate.rs` |
//! | `forebay serve` | `serve.rs`; its shapes, `listing.rs` |

mod gate;
mod listing;
mod serve;

pub(crate) use self::gate::GateReport;
pub(crate) use self::listing::Listing;
pub(crate) use self::serve::ServeReport;
