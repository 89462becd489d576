//! The crate pgwire-replication: it hands out the bytes of each change, undecoded.

use std::time::Instant;

use anyhow::{Context, Result};
use pgwire_replication::client::ReplicationEvent;
use pgwire_replication::{Lsn, ReplicationClient, ReplicationConfig, TlsConfig};

use super::{Drained, PUBLICATION, Terms};
use crate::machine;

pub(super) async fn drain(terms: &Terms) -> Result<Drained> {
    let (address, database) =
        terms.url.rsplit_once('@').and_then(|(_, rest)| rest.split_once('/')).context("a URL")?;
    let (host, port) = address.split_once(':').context("a port")?;
    let config = ReplicationConfig::new(host, "postgres", "", database, &terms.slot, PUBLICATION)
        .with_port(port.parse()?)
        .with_tls(TlsConfig::disabled());
    let mut client = ReplicationClient::connect(config).await?;
    client.wait_started().await?;
    let (began, cpu) = (Instant::now(), machine::cpu_time());
    let mut rows = 0_u64;
    loop {
        match client.recv().await?.context("the stream ended")? {
            ReplicationEvent::XLogData { data, .. } => {
                rows += u64::from(matches!(data.first(), Some(b'I' | b'U')))
            }
            ReplicationEvent::Commit { end_lsn, .. } => {
                client.update_applied_lsn(end_lsn);
                if end_lsn >= Lsn::from_u64(terms.end) {
                    break;
                }
            }
            _ => {}
        }
    }
    let drained = Drained { wall: began.elapsed(), cpu: Some(machine::cpu_time() - cpu) };
    client.abort();
    terms.check("pgwire-replication", rows)?;
    Ok(drained)
}
