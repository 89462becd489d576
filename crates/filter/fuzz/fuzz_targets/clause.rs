//! Fuzz target: parses any text as a where clause. Run `cargo +nightly fuzz run clause` in
//! `crates/filter`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::clause(input));
