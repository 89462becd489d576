//! Checks of this machine: file descriptors and addresses.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, getrlimit};

use super::finding::{CheckArea, Finding};
use crate::config::ServeConfig;
use crate::run::{StartError, listen};

const AREA: CheckArea = CheckArea::Machine;
/// Estimate of the descriptors for the log, Redis, replication and libraries.
const OTHER_DESCRIPTORS: u64 = 64;

pub(super) fn check(config: &ServeConfig) -> Vec<Finding> {
    let mut findings = vec![descriptors(config)];
    findings.push(address("--listen", config.listen));
    findings.extend(config.admin.map(|admin| address("--admin", admin)));
    findings
}

/// Checks the limit of file descriptors. The soft limit is raised to the hard limit at the start.
fn descriptors(config: &ServeConfig) -> Finding {
    let (limit, most) = (getrlimit(Resource::Nofile), config.http.max_connections as u64);
    let pools = config.manager.outline().max_pool_connections;
    let others = config.store.open_files as u64 + u64::from(pools) + OTHER_DESCRIPTORS;
    compare_limits([limit.current, limit.maximum], most, others)
}

/// Compares the limits (soft, hard; `None` is unlimited) with the maximum number of clients and the
/// other descriptors.
fn compare_limits([soft, hard]: [Option<u64>; 2], most: u64, others: u64) -> Finding {
    const CHECK: &str = "descriptors";
    let needed = most + others;
    match hard {
        Some(hard) if hard < needed => {
            let what = format!(
                "{hard} file descriptors are allowed, and up to {needed} may be needed (http.max_connections is {most})"
            );
            let advice =
                "raise the hard limit (LimitNOFILE= in systemd, `ulimit -Hn`), or lower http.max_connections";
            Finding::warn(AREA, CHECK, what, advice)
        }
        hard => {
            let display =
                |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
            let what = format!(
                "file descriptors: soft limit {}, hard limit {}, raised at the start; up to {needed} may be needed",
                display(soft),
                display(hard)
            );
            Finding::ok(AREA, CHECK, what)
        }
    }
}

/// Checks that an address can be bound.
fn address(flag: &'static str, address: SocketAddr) -> Finding {
    match listen(flag, address) {
        Ok(_free) => Finding::ok(AREA, "address", format!("{address} is free ({flag})")),
        Err(StartError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            let what = format!("{address} is in use ({flag})");
            let advice = format!(
                "this is expected if that instance of Forebay is running; otherwise choose another address with {flag}"
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
    use super::super::finding::FindingLevel;
    use super::*;

    #[test]
    fn the_hard_limit_must_allow_all_connections() {
        let level = |hard| compare_limits([Some(1024), hard], 10_000, 600).level;
        assert_eq!(level(None), FindingLevel::Ok);
        assert_eq!(level(Some(10_600)), FindingLevel::Ok, "the soft limit is raised");
        assert_eq!(level(Some(10_599)), FindingLevel::Warn);
        let few = compare_limits([Some(1024), Some(4096)], 10_000, 600);
        assert!(few.what.starts_with("4096 ") && few.what.contains("10600"), "{few:?}");
    }
}
