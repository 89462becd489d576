//! Looks at this machine: file descriptors, addresses.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, getrlimit};

use super::finding::{Area, Finding};
use crate::config::ServeConfig;
use crate::run::{StartError, listen};

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
    let (limit, most) = (getrlimit(Resource::Nofile), config.http.max_connections as u64);
    let others = config.store.open_files as u64 + u64::from(config.manager.outline().pool_size) + OTHERS;
    suffice([limit.current, limit.maximum], most, others)
}

/// The soft limit and the hard one, `None` for none; how many clients may be connected, and what else is open.
fn suffice([soft, hard]: [Option<u64>; 2], most: u64, others: u64) -> Finding {
    const CHECK: &str = "descriptors";
    let needed = most + others;
    match hard {
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
                shown(soft),
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

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn descriptors_must_suffice_for_all_connections_that_there_may_be() {
        let judged = |hard| suffice([Some(1024), hard], 10_000, 600).level;
        assert_eq!(judged(None), Level::Ok);
        assert_eq!(judged(Some(10_600)), Level::Ok, "the soft limit is raised");
        assert_eq!(judged(Some(10_599)), Level::Warn);
        let few = suffice([Some(1024), Some(4096)], 10_000, 600);
        assert!(few.what.starts_with("4096 ") && few.what.contains("10600"), "{few:?}");
    }
}
