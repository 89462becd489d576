//! Where clauses against real servers, and against whatever else may come.

mod agreement;
mod catalog;
mod grammar;
mod index;
mod letters;
mod refusals;
mod robustness;
mod server;
mod speed;
mod table;
