//! Evaluation of the database server: version, rights, slots, connections and TLS. Pure.

use forebay_replication::reservoir::SslMode;
use forebay_replication::{ReplicationError, decodes_with_stale_catalog};

use super::catalog_row::{CatalogRow, is_true, number, text};
use super::finding::{CheckArea, Finding};
use crate::terminal::escape_controls;

const AREA: CheckArea = CheckArea::Postgres;
/// Oldest supported version, the same as in `forebay_replication`.
const MIN_VERSION: u32 = 150_000;

/// Requirements of the settings on the database.
pub(super) struct DatabaseRequirements<'a> {
    pub(super) slot: &'a str,
    pub(super) publication: &'a str,
    pub(super) manual_publication: bool,
    pub(super) pool_size: u32,
    /// Maximum number of connections of that size, with those that replace others.
    pub(super) max_pool_connections: u32,
    /// Setting `database.max_connections`.
    pub(super) most_connections: Option<u32>,
    /// Whether the pool connects through a pooler.
    pub(super) is_pooled: bool,
}

/// Query for the server and the user, one row. Senders and connections of all users are counted.
pub(super) const ABOUT: &str = "\
SELECT current_setting('server_version_num') AS version_num, current_setting('server_version') AS version, \
current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS is_standby, current_user AS user, \
(SELECT rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication' AND \
pg_has_role(g.oid, 'USAGE')) FROM pg_roles WHERE rolname = current_user) AS may_replicate, \
has_database_privilege(current_database(), 'CREATE') AS may_create, \
current_setting('max_replication_slots') AS max_slots, (SELECT count(*) FROM pg_replication_slots) AS slots, \
current_setting('max_wal_senders') AS max_senders, (SELECT count(*) FROM pg_stat_replication) AS senders, \
current_setting('max_connections') AS max_connections, \
current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved, \
(SELECT sum(numbackends) FROM pg_stat_database) AS connections, \
(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS user_limit, \
(SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit, \
(SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS ssl, \
(SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS ssl_version, \
current_setting('max_slot_wal_keep_size') AS keeps";

/// Evaluates version, WAL level, rights, slots, senders and connections.
pub(super) fn server(about: &CatalogRow, target: &str, required: &DatabaseRequirements<'_>) -> Vec<Finding> {
    let mut findings =
        vec![Finding::ok(AREA, "reachable", format!("connected to {}", escape_controls(target)))];
    let version = number(about, "version_num").and_then(|version| u32::try_from(version).ok());
    findings.push(match version {
        Some(version) if version < MIN_VERSION => {
            Finding::fail(AREA, "version", ReplicationError::TooOld { version }.to_string(), "upgrade the server")
        }
        Some(version) if decodes_with_stale_catalog(version) => {
            let what = format!(
                "PostgreSQL {} may lose changes of a table that is added to a publication while transactions write to it (fixed in \
                 15.13, 16.9 and 17.5)",
                escape_controls(text(about, "version"))
            );
            let advice = "upgrade to the newest minor version; until then, Forebay waits for the writers of a table and blocks \
                          other writers for up to 2 s when it publishes the table";
            Finding::warn(AREA, "version", what, advice)
        }
        Some(_) | None => {
            Finding::ok(AREA, "version", format!("PostgreSQL {}", escape_controls(text(about, "version"))))
        }
    });
    if is_true(about, "is_standby") {
        findings.push(Finding::fail(
            AREA,
            "primary",
            ReplicationError::Standby.to_string(),
            "set database.url to the primary",
        ));
    }
    let found = text(about, "wal_level");
    findings.push(match found {
        "logical" => Finding::ok(AREA, "wal_level", "wal_level is logical"),
        found => {
            let advice = "ALTER SYSTEM SET wal_level = 'logical', then restart the server (on Amazon RDS: rds.logical_replication = 1)";
            let what = format!("wal_level is {}, but logical replication needs `logical`", escape_controls(found));
            Finding::fail(AREA, "wal_level", what, advice)
        }
    });
    findings.push(replication_right(about));
    findings.push(free_of_limit(
        about,
        "slots",
        "replication slots",
        ["slots", "max_slots"],
        "max_replication_slots",
    ));
    findings.push(free_of_limit(
        about,
        "senders",
        "WAL senders",
        ["senders", "max_senders"],
        "max_wal_senders",
    ));
    findings.push(connections(about, required));
    if text(about, "keeps") == "-1" {
        let what = "max_slot_wal_keep_size is -1: while Forebay is not connected, the slot retains WAL without limit";
        let advice =
            "set it to what the disk can spare; a slot that exceeds it is lost, and shapes start over";
        findings.push(Finding::warn(AREA, "wal_kept", what, advice));
    } else {
        let what = format!(
            "the slot retains up to {} of WAL (max_slot_wal_keep_size)",
            escape_controls(text(about, "keeps"))
        );
        findings.push(Finding::ok(AREA, "wal_kept", what));
    }
    findings
}

/// Checks that the user may replicate.
fn replication_right(about: &CatalogRow) -> Finding {
    let user = escape_controls(text(about, "user"));
    if is_true(about, "may_replicate") {
        return Finding::ok(AREA, "replication_right", format!("{user} may replicate"));
    }
    let advice = format!(
        "as a superuser: ALTER ROLE {user} REPLICATION (on Amazon RDS: GRANT rds_replication TO {user})"
    );
    Finding::fail(AREA, "replication_right", format!("{user} may not replicate"), advice)
}

/// Checks that a replication slot or a WAL sender is free. If not, the finding is only a warning,
/// because a running instance of Forebay may use one.
fn free_of_limit(
    about: &CatalogRow,
    check: &'static str,
    what: &str,
    [used, most]: [&str; 2],
    setting: &str,
) -> Finding {
    let (used, most) = (number(about, used).unwrap_or(0), number(about, most).unwrap_or(0));
    if used < most {
        return Finding::ok(AREA, check, format!("{} of {most} {what} are free", most - used));
    }
    let advice = format!(
        "increase {setting} and restart the server, or free one; this is expected if a running Forebay uses one of them"
    );
    Finding::warn(AREA, check, format!("none of {most} {what} is free"), advice)
}

/// Compares the connections that the pool needs with those that the server and the user allow.
fn connections(about: &CatalogRow, required: &DatabaseRequirements<'_>) -> Finding {
    const CHECK: &str = "connections";
    let pools = required.max_pool_connections;
    let needed = i64::from(required.most_connections.map_or(pools, |most| most.min(pools)));
    if required.is_pooled {
        return Finding::ok(
            AREA,
            CHECK,
            format!("the {needed} connections of the pool go through the pooler"),
        );
    }
    let get = |key| number(about, key).unwrap_or(0);
    let limits = [get("user_limit"), get("database_limit")].into_iter().filter(|limit| *limit >= 0);
    let most = limits.chain([get("max_connections") - get("reserved")]).min().unwrap_or(0);
    let free = (most - get("connections")).max(0);
    let what = format!(
        "{free} of {most} connections are free, and up to {needed} are needed (database.pool_size {})",
        required.pool_size
    );
    if needed > most {
        Finding::fail(
            AREA,
            CHECK,
            what,
            "decrease database.pool_size, or increase max_connections of the server",
        )
    } else if needed > free {
        let advice =
            "decrease database.pool_size, or free some; this is expected if a running Forebay uses them";
        Finding::warn(AREA, CHECK, what, advice)
    } else {
        Finding::ok(AREA, CHECK, what)
    }
}

/// Checks that the connection is encrypted and the server verified, unless it is local.
pub(super) fn tls(about: &CatalogRow, mode: SslMode, endpoint: &str) -> Finding {
    const CHECK: &str = "tls";
    let is_local = |host: &str| {
        let host = host.trim_start_matches('[');
        ["/", "127.", "localhost", "::1"].iter().any(|local| host.starts_with(local))
    };
    match (is_true(about, "ssl"), mode) {
        (true, SslMode::VerifyCa | SslMode::VerifyFull) => {
            let version = escape_controls(text(about, "ssl_version"));
            Finding::ok(
                AREA,
                CHECK,
                format!("encrypted ({version}), and the certificate of the server was verified"),
            )
        }
        (true, _) => {
            let advice =
                "set sslmode=verify-full in the URL, and database.ca_file to its certificate authority";
            Finding::warn(AREA, CHECK, "encrypted, but the identity of the server was not verified", advice)
        }
        (false, _) if endpoint.split(',').all(is_local) => {
            Finding::ok(AREA, CHECK, "not encrypted, but local to this machine")
        }
        (false, _) => {
            let advice = "set sslmode=verify-full in the URL, and enable TLS on the server (ssl = on)";
            Finding::warn(
                AREA,
                CHECK,
                "not encrypted: other machines on the network path can read the data",
                advice,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::super::postgres_samples::{REQUIREMENTS, row};
    use super::*;

    fn connected(max: &str, used: &str, user_limit: &str, most: Option<u32>) -> FindingLevel {
        let about = row(&[
            ("max_connections", max),
            ("reserved", "3"),
            ("connections", used),
            ("user_limit", user_limit),
            ("database_limit", "-1"),
        ]);
        connections(&about, &DatabaseRequirements { most_connections: most, ..REQUIREMENTS }).level
    }

    #[test]
    fn the_pool_must_fit_into_the_limits_of_the_server() {
        assert_eq!(connected("100", "10", "-1", None), FindingLevel::Ok);
        assert_eq!(connected("100", "80", "-1", None), FindingLevel::Warn, "not enough are free");
        assert_eq!(connected("20", "1", "-1", None), FindingLevel::Fail, "the server allows too few");
        assert_eq!(connected("100", "1", "10", None), FindingLevel::Fail, "the limit of the user is ten");
        assert_eq!(
            connected("20", "1", "-1", Some(10)),
            FindingLevel::Ok,
            "the limit of all instances is ten"
        );
        assert_eq!(connected("24", "0", "-1", None), FindingLevel::Fail, "22 and three reserved ones");
    }

    #[test]
    fn minor_versions_that_decode_with_a_stale_catalog_are_reported() {
        let evaluate = |number: &str, version: &str| {
            let about = row(&[("version_num", number), ("version", version)]);
            let finding = server(&about, "db", &REQUIREMENTS).swap_remove(1);
            assert_eq!(finding.check, "version");
            (finding.level, finding.what)
        };
        let (level, what) = evaluate("150012", "15.12");
        assert_eq!(level, FindingLevel::Warn);
        assert!(what.contains("15.12") && what.contains("15.13, 16.9 and 17.5"), "{what}");
        assert_eq!(evaluate("170005", "17.5").0, FindingLevel::Ok);
        assert_eq!(evaluate("180000", "18.0").0, FindingLevel::Ok);
    }

    #[test]
    fn a_remote_connection_must_be_encrypted_and_verified() {
        let evaluate = |ssl, mode, at| tls(&row(&[("ssl", ssl)]), mode, at).level;
        assert_eq!(evaluate("t", SslMode::VerifyFull, "db:5432"), FindingLevel::Ok);
        assert_eq!(evaluate("t", SslMode::Require, "db:5432"), FindingLevel::Warn);
        assert_eq!(evaluate("f", SslMode::Prefer, "db:5432"), FindingLevel::Warn);
        assert_eq!(evaluate("f", SslMode::Prefer, "127.0.0.1:5432,[::1]:5432"), FindingLevel::Ok);
        assert_eq!(evaluate("f", SslMode::Prefer, "127.0.0.1:5432,db:5432"), FindingLevel::Warn);
    }

    /// Returns the findings that are not ok, for a good server with these changes.
    fn problems(changes: &[(&str, &str)]) -> Vec<(&'static str, FindingLevel)> {
        let mut about = row(&[
            ("version_num", "150018"),
            ("version", "15.4"),
            ("is_standby", "f"),
            ("wal_level", "logical"),
            ("user", "forebay"),
            ("may_replicate", "t"),
            ("slots", "9"),
            ("max_slots", "10"),
            ("senders", "9"),
            ("max_senders", "10"),
            ("max_connections", "100"),
            ("reserved", "3"),
            ("connections", "1"),
            ("user_limit", "-1"),
            ("database_limit", "-1"),
            ("keeps", "10GB"),
        ]);
        about.extend(row(changes));
        let findings = server(&about, "db:5432", &REQUIREMENTS).into_iter();
        findings
            .filter(|finding| finding.level != FindingLevel::Ok)
            .map(|finding| (finding.check, finding.level))
            .collect()
    }

    #[test]
    fn each_problem_of_a_server_is_a_finding_of_its_own() {
        assert_eq!(problems(&[]), []);
        for (key, value, check, level) in [
            ("version_num", "140012", "version", FindingLevel::Fail),
            ("is_standby", "t", "primary", FindingLevel::Fail),
            ("wal_level", "replica", "wal_level", FindingLevel::Fail),
            ("may_replicate", "f", "replication_right", FindingLevel::Fail),
            ("max_connections", "10", "connections", FindingLevel::Fail),
            // A running instance may use one of them.
            ("max_slots", "9", "slots", FindingLevel::Warn),
            ("max_slots", "0", "slots", FindingLevel::Warn),
            ("max_senders", "9", "senders", FindingLevel::Warn),
            ("keeps", "-1", "wal_kept", FindingLevel::Warn),
        ] {
            assert_eq!(problems(&[(key, value)]), [(check, level)], "{key} = {value}");
        }
    }
}
