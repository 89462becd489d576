//! State of the servers for operators: readiness, status, dashboard samples and metrics.
//!
//! | server | look in |
//! |---|---|
//! | `forebay gate` | `gate.rs` |
//! | `forebay serve` | `serve.rs`; its list of shapes, `shape_lister.rs` |

mod gate;
mod serve;
mod shape_lister;

pub(crate) use self::gate::GateReport;
pub(crate) use self::serve::ServeReport;
pub(crate) use self::shape_lister::ShapeLister;
