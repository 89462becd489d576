//! The manager against real servers.

mod data;
mod exactly_once;
mod journal;
mod life;
mod lock;
mod publication;
mod load;
mod reaching;
mod refusals;
mod shutdown;
mod slot;
mod stranger;
mod sleep;
mod supervision;
mod support;
mod timeline;
