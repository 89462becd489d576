//! Tests of the follower: the effect of replication messages on the logs of shapes.

mod changes;
mod holds;
mod keys;
mod partitions;
mod snapshots;
mod stream;
mod tables;
