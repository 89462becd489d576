//! Permits for long-lived streams: a limit for all and one for each user, that hold across all instances.
//!
//! What always holds:
//! - A stream holds one permit from the decision until its response's body is gone, however it goes: ended, cut, cancelled,
//!   panicked. Nothing awaits to give it back, and nothing leaks.
//! - Open streams go on. Only new ones are refused: 503 when the house is full, 429 when the user has enough, each with a
//!   body that says so, and when to come again.
//! - Nobody is believed on his word: a user is who a verified token, a known key or a trusted proxy says.
//! - How counting works across machines is [`forebay_quota`]'s; with [`Quota::local`](forebay_quota::Quota::local) there is
//!   just this process.
//!
//! What doesn't: an upgraded connection holds no permit. The body of a 101 ends at once while the WebSocket lives on elsewhere;
//! hold a [`Permit`] from [`Admission::admit`] beside the socket instead.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Identify};
//! use forebay_quota::Quota;
//! use http::{Request, Response};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! let admission = Admission::builder().total(10_000).per_user(1).build(Quota::local());
//! let identify = Identify::new().api_keys(ApiKeys::new().key("s3cr3t", "ada"));
//! let service = service_fn(async |_| Ok::<_, std::io::Error>(Response::new(String::from("data: hello\n\n"))));
//! let service = AdmissionLayer::new(admission.clone(), identify).layer(service);
//!
//! let request = || Request::get("/").header("x-api-key", "s3cr3t").body(String::new());
//! let stream = service.clone().oneshot(request()?).await?; // its body holds the permit
//! assert_eq!(service.oneshot(request()?).await?.status(), 429);
//! drop(stream);
//! assert_eq!(admission.statistics().total_connections, 0);
//! # Ok(())
//! # }
//! ```

mod admission;
mod body;
mod config;
mod core;
mod door;
mod health;
mod identity;
mod layer;
mod machine;
pub mod metrics;
mod permit;
mod problem;
mod problem_json;
mod queue;
mod registry;
mod rejection;
mod sampler;
mod secret;
mod stage;
mod statistics;
mod thread_id;
mod visitor;

pub use admission::Admission;
pub use body::StreamBody;
pub use config::{Builder, MemoryBound};
pub use core::health::State;
pub use core::pressure::Strain;
pub use health::HealthStatus;
pub use identity::{
    ApiKeys, ForwardedBy, Identify, Jwt, KeyError, Network, NetworkError, PeerAddr, Token, TokenFault,
    Unidentified,
};
pub use layer::{AdmissionLayer, AdmissionService};
pub use permit::Permit;
pub use problem_json::problem;
pub use rejection::{Reason, Rejection};
pub use secret::Secret;
pub use statistics::{Limits, MAX_LISTED, MAX_USERS, OpenStream, Process, Statistics, Status, UserStreams};
pub use thread_id::{ThreadId, X_THREAD_ID};
pub use visitor::{BadId, Class, MAX_ID_BYTES, User, Visitor};
