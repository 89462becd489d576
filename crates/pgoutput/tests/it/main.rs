//! The decoder against itself, written the other way round, and against real servers.

mod decoder;
mod server;
