//! What tests share: a TCP proxy that fails on command, throwaway servers, patience, Python, and a look at READMEs.
//!
//! Invariant: a fault is in force, for every connection made before it, when the call that asked for it returns; and
//! nothing here is random.
//! Kept by: bytes move and faults strike under one lock (`proxy.rs`).
//! Not here: anything that ships. Only dev-dependencies may name this crate (`tests/arrows.rs`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use forebay_testkit::{Direction, Proxy, sandbox::Redis};
//! use tokio::net::TcpStream;
//!
//! let proxy = Proxy::start(Redis::shared().addr());
//! let client = TcpStream::connect(proxy.addr()).await?;
//! proxy.stall(Direction::ToClient); // requests still arrive, replies don't
//! proxy.resume();
//! proxy.reset(); // the client sees ECONNRESET
//! # drop(client);
//! # Ok(())
//! # }
//! ```

mod dice;
mod markdown;
mod patience;
mod proxy;
mod python;
mod readme;

pub use forebay_sandbox as sandbox;

pub use crate::dice::{Dice, seed};
pub use crate::markdown::{named, quoted, rows, section};
pub use crate::patience::{PATIENCE, eventually, within};
pub use crate::proxy::{Direction, Proxy};
pub use crate::python::python;
pub use crate::readme::{readme_blocks, readme_blocks_run};
