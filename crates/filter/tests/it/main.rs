//! Where clauses compared with real servers, and with hostile input.

mod agreement;
mod catalog;
mod docs;
mod grammar;
mod index;
mod letters;
mod refusals;
mod robustness;
mod server;
mod speed;
mod table;
mod tanstack;
mod types;
