//! Test support: a fault-injecting TCP proxy, throwaway servers, timeouts, and README checks.
//!
//! Invariant: when a call that sets a fault returns, the fault applies to every connection opened
//! before. The proxy does nothing at random.
//! Enforced by: bytes are moved and faults are set under one lock (`proxy.rs`).
//! Out of scope: product code. Only dev-dependencies may use this crate (`tests/arrows.rs`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use forebay_testkit::{Direction, Proxy, sandbox::Redis};
//! use tokio::net::TcpStream;
//!
//! let proxy = Proxy::start(Redis::shared().addr());
//! let client = TcpStream::connect(proxy.addr()).await?;
//! proxy.stall(Direction::ToClient); // requests pass, replies don't
//! proxy.resume();
//! proxy.reset(); // the client's next read fails with ECONNRESET
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! | topic | file |
//! |---|---|
//! | faults: cut, reset, stall, delay, throttle, truncate, refuse | `proxy.rs` |
//! | when a byte may be forwarded | `proxy/lane.rs` |
//! | throwaway servers | the crate `forebay-sandbox` |
//! | timeouts and polling in tests | `waiting.rs` |
//! | reproducible random numbers | `test_rng.rs` |
//! | memory that a test allocates | `peak_allocator.rs` |
//! | mutex of tests under loom | `loom_mutex.rs` |
//! | READMEs whose code is compiled and run | `readme.rs` |
//! | running the examples of all crates | `bin/run-examples.rs` |

#[cfg(forebay_loom)]
mod loom_mutex;
mod markdown;
mod peak_allocator;
mod proxy;
mod python;
mod readme;
mod test_rng;
mod waiting;

pub use forebay_sandbox as sandbox;

#[cfg(forebay_loom)]
pub use crate::loom_mutex::LoomMutex;
pub use crate::markdown::{named, quoted, rows, section};
pub use crate::peak_allocator::PeakAllocator;
pub use crate::proxy::{Direction, Proxy};
pub use crate::python::python;
pub use crate::readme::{readme_blocks, readme_blocks_run, readme_program_runs};
pub use crate::test_rng::{TestRng, seed};
pub use crate::waiting::{TEST_TIMEOUT, eventually, within};
