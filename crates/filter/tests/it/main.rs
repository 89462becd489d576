//! Where clauses compared with real servers, and with hostile input.

mod agreement;
mod catalog;
mod clock_texts;
mod docs;
mod fuzz_corpus;
mod grammar;
mod index;
mod large_clauses;
mod letters;
mod postgres_conditions;
mod refusals;
mod robustness;
mod server;
mod speed;
mod subqueries;
mod table;
mod tanstack;
mod types;
