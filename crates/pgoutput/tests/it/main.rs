//! Decoder tests: against an independent encoder, and against real servers.

mod decoder;
mod server;
