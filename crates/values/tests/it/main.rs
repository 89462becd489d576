//! Properties of all types, through the public interface.

mod fuzz_corpus;
