//! Any bytes, in a stream and outside: `cargo +nightly fuzz run decoder` in `crates/pgoutput`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
