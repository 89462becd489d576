//! The program, as a process of its own, before real services.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod admin;
mod bodies;
mod browser;
mod check;
mod chromium;
mod clients;
mod config;
mod crowd;
mod dashboard;
mod dev;
mod drain;
mod echo;
mod fastapi;
mod floods;
mod gate;
mod heads;
mod hostile;
mod limits;
mod origin;
#[cfg(feature = "otel")]
mod otel;
mod python;
mod readme;
mod redis;
mod reload;
mod scripts;
mod serve;
mod serve_config;
mod startup;
mod status;
mod storm;
mod tail;
mod tls;
mod upstream;
mod wire;
