//! Fuzz target: texts of addresses. Run `cargo +nightly fuzz run network` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::network(input));
