//! What messages of the stream do to the logs of shapes.

mod changes;
mod snapshots;
mod stream;
mod tables;
