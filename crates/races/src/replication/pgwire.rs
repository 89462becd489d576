//! Peer: the crate pgwire-replication, which returns the bytes of each change without decoding
//! them.

use std::time::Instant;

use anyhow::{Context, Result};
use pgwire_replication::client::ReplicationEvent;
use pgwire_replication::{Lsn, ReplicationClient, ReplicationConfig, TlsConfig};

use super::{DrainResult, DrainTask, PUBLICATION};
use crate::machine;

pub(super) async fn drain(task: &DrainTask) -> Result<DrainResult> {
    let (address, database) = task
        .url
        .rsplit_once('@')
        .and_then(|(_, rest)| rest.split_once('/'))
        .context("the URL has no host and database")?;
    let (host, port) = address.split_once(':').context("the URL has no port")?;
    let config = ReplicationConfig::new(host, "postgres", "", database, &task.slot, PUBLICATION)
        .with_port(port.parse()?)
        .with_tls(TlsConfig::disabled());
    let mut client = ReplicationClient::connect(config).await?;
    client.wait_started().await?;
    let (started, cpu) = (Instant::now(), machine::cpu_time());
    let mut rows = 0_u64;
    loop {
        match client.recv().await?.context("the stream ended")? {
            ReplicationEvent::XLogData { data, .. } => {
                rows += u64::from(matches!(data.first(), Some(b'I' | b'U')))
            }
            ReplicationEvent::Commit { end_lsn, .. } => {
                client.update_applied_lsn(end_lsn);
                if end_lsn >= Lsn::from_u64(task.end) {
                    break;
                }
            }
            _ => {}
        }
    }
    let drained = DrainResult { wall: started.elapsed(), cpu: Some(machine::cpu_time() - cpu) };
    client.abort();
    task.check("pgwire-replication", rows)?;
    Ok(drained)
}
