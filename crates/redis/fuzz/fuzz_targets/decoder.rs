//! Fuzz target for arbitrary bytes in arbitrary reads: `cargo +nightly fuzz run decoder` in
//! `crates/redis`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
