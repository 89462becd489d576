//! Integration tests of the program `forebay`: each test starts it as a process, with real
//! Postgres, Redis, Chromium and published clients.
//!
//! "The published client" is Electric's npm package `@electric-sql/client`.

#![allow(clippy::unwrap_used, reason = "in tests and their helpers, unwrap is an assertion")]

mod adaptive_limit;
mod admin;
#[cfg(feature = "aws")]
mod aws;
mod bodies;
mod check;
mod chromium;
mod clients;
mod config;
mod dashboard;
mod dev;
mod drain;
mod echo_upstream;
mod event_source;
mod fastapi;
mod floods;
mod forebay_process;
#[path = "../../src/config/generated_page.rs"]
mod generated_page;
mod headers;
mod hostile_clients;
mod killed_instances;
mod limits;
mod many_streams;
#[cfg(feature = "otel")]
mod otel;
mod outcomes;
mod process_pressure;
mod python_app;
mod random_load;
mod readme;
mod redis;
mod reload;
mod scripted_upstream;
mod scripts;
mod serve;
mod serve_config;
mod silent_instances;
mod startup;
mod status;
mod streaming_upstream;
mod streams;
mod tail;
mod tls;
mod upgraded_connections;
mod upstream;
mod websocket;
mod wire;
