//! Looks at this machine: file descriptors, addresses.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, getrlimit};

use super::finding::{Area, Finding};
use crate::config::ServeConfig;
use crate::starting::{StartError, listen};

const AREA: Area = Area::Machine;
/// The log, Redis, replication, and what libraries open.
const OTHERS: u64 = 64;

pub(super) fn check(config: &ServeConfig) -> Vec<Finding> {
    let mut findings = vec![descriptors(config)];
    findings.push(address("--listen", config.listen));
    findings.extend(config.admin.map(|admin| address("--admin", admin)));
    findings
}

/// The soft limit is raised to the hard one at the start.
fn descriptors(config: &ServeConfig) -> Finding {
    const CHECK: &str = "descriptors";
    let (limit, most) = (getrlimit(Resource::Nofile), config.http.max_connections as u64);
    let needed =
        most + config.store.open_files as u64 + u64::from(config.manager.outline().pool_size) + OTHERS;
    match limit.maximum {
        Some(hard) if hard < needed => {
            let what = format!(
                "{hard} file descriptors at most, and {needed} may be needed (http.max_connections is {most})"
            );
            let advice =
                "raise the hard limit (LimitNOFILE= in systemd, `ulimit -Hn`), or lower http.max_connections";
            Finding::warn(AREA, CHECK, what, advice)
        }
        hard => {
            let shown =
                |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
            let what = format!(
                "file descriptors: {} now, {} at most, raised at the start; {needed} may be needed",
                shown(limit.current),
                shown(hard)
            );
            Finding::ok(AREA, CHECK, what)
        }
    }
}

fn address(flag: &'static str, address: SocketAddr) -> Finding {
    match listen(flag, address) {
        Ok(_free) => Finding::ok(AREA, "address", format!("{address} is free ({flag})")),
        Err(StartError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            let what = format!("{address} is taken ({flag})");
            let advice = format!(
                "all is well if that is the Forebay you asked about; otherwise choose another with {flag}"
            );
            Finding::warn(AREA, "address", what, advice)
        }
        Err(error) => {
            Finding::fail(AREA, "address", error.to_string(), format!("choose another address with {flag}"))
        }
    }
}
