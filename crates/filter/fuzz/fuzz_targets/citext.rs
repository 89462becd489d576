//! Fuzz target: compares any two texts as citext. Run `cargo +nightly fuzz run citext` in
//! `crates/filter`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::citext(input));
