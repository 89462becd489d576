//! Fuzz target: decodes any bytes, within a stream segment and outside. Run `cargo +nightly fuzz
//! run decoder` in `crates/pgoutput`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
