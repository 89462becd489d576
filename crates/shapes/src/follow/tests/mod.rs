//! What messages of the stream do to the logs of shapes.

mod changes;
mod keys;
mod partitions;
mod snapshots;
mod stream;
mod tables;
