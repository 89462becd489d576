//! What the database's answers mean. Pure: rows in, findings out.

use forebay_replication::reservoir::SslMode;
use forebay_replication::{ReplicationError, decodes_with_stale_catalog};

use super::finding::{Area, Finding};
use super::postgres::Row;
use crate::terminal::escape_controls as shown;

const AREA: Area = Area::Postgres;
/// As `forebay_replication` has it.
const OLDEST: u32 = 150_000;
/// A new shape takes several round trips, and each change one way.
const FAR_MS: f64 = 50.0;
/// Beyond it the lag that is shown is mostly the clocks'.
const APART_MS: i128 = 1_000;
const GI: f64 = (1u64 << 30) as f64;

/// What is wanted of the database.
pub(super) struct Wanted<'a> {
    pub(super) slot: &'a str,
    pub(super) publication: &'a str,
    pub(super) manual_publication: bool,
    pub(super) pool_size: u32,
    /// `database.max_connections`.
    pub(super) most_connections: Option<u32>,
    /// The pool connects elsewhere.
    pub(super) is_pooled: bool,
}

/// Everything about the server and the user, in one row. Senders are counted whoever runs them, and so are connections.
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

/// Version, log, rights, slots, senders, connections.
pub(super) fn server(about: &Row, place: &str, wanted: &Wanted<'_>) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(AREA, "reachable", format!("connected to {}", shown(place)))];
    let version = number(about, "version_num").and_then(|version| u32::try_from(version).ok());
    findings.push(match version {
        Some(version) if version < OLDEST => {
            Finding::fail(AREA, "version", ReplicationError::TooOld { version }.to_string(), "upgrade the server")
        }
        Some(version) if decodes_with_stale_catalog(version) => {
            let what = format!(
                "PostgreSQL {} may lose changes of a table that is published while transactions write to it (mended in \
                 15.13, 16.9 and 17.5)",
                shown(text(about, "version"))
            );
            let advice = "upgrade to the newest minor version; until then, Forebay waits for the writers of a table, and lets no \
                          other write for up to 2 s, when it publishes it";
            Finding::warn(AREA, "version", what, advice)
        }
        Some(_) | None => {
            Finding::ok(AREA, "version", format!("PostgreSQL {}", shown(text(about, "version"))))
        }
    });
    if is_so(about, "is_standby") {
        findings.push(Finding::fail(
            AREA,
            "primary",
            ReplicationError::Standby.to_string(),
            "name the primary in database.url",
        ));
    }
    let found = text(about, "wal_level");
    findings.push(match found {
        "logical" => Finding::ok(AREA, "wal_level", "wal_level is logical"),
        found => {
            let advice = "ALTER SYSTEM SET wal_level = 'logical', then restart the server (on Amazon RDS: rds.logical_replication = 1)";
            let what = format!("wal_level is {}, and logical replication needs logical", shown(found));
            Finding::fail(AREA, "wal_level", what, advice)
        }
    });
    findings.push(replication_right(about));
    findings.push(places(
        about,
        "slots",
        "replication slots",
        ["slots", "max_slots"],
        "max_replication_slots",
    ));
    findings.push(places(about, "senders", "WAL senders", ["senders", "max_senders"], "max_wal_senders"));
    findings.push(connections(about, wanted));
    if text(about, "keeps") == "-1" {
        let what =
            "max_slot_wal_keep_size is -1: while nobody follows, the slot keeps the log without a bound";
        let advice = "bound it by what the disk can spare; a slot that falls behind is lost then, and shapes start over";
        findings.push(Finding::warn(AREA, "wal_kept", what, advice));
    } else {
        let what =
            format!("the slot keeps up to {} of log (max_slot_wal_keep_size)", shown(text(about, "keeps")));
        findings.push(Finding::ok(AREA, "wal_kept", what));
    }
    findings
}

fn replication_right(about: &Row) -> Finding {
    let user = shown(text(about, "user"));
    if is_so(about, "may_replicate") {
        return Finding::ok(AREA, "replication_right", format!("{user} may replicate"));
    }
    let advice = format!(
        "as a superuser: ALTER ROLE {user} REPLICATION (on Amazon RDS: GRANT rds_replication TO {user})"
    );
    Finding::fail(AREA, "replication_right", format!("{user} may not replicate"), advice)
}

/// Of something that the server has so many of, one must be free; a running instance has one already.
fn places(about: &Row, check: &'static str, what: &str, [used, most]: [&str; 2], setting: &str) -> Finding {
    let (used, most) = (number(about, used).unwrap_or(0), number(about, most).unwrap_or(0));
    if used < most {
        return Finding::ok(AREA, check, format!("{} of {most} {what} are free", most - used));
    }
    let advice = format!(
        "raise {setting} and restart the server, or free one; all is well if one of them is that of a running Forebay"
    );
    Finding::warn(AREA, check, format!("none of {most} {what} is free"), advice)
}

fn connections(about: &Row, wanted: &Wanted<'_>) -> Finding {
    const CHECK: &str = "connections";
    // What a reservoir may have: room to replace one before it goes.
    let pool = wanted.pool_size + (wanted.pool_size / 8).max(1);
    let needed = i64::from(wanted.most_connections.map_or(pool, |most| most.min(pool)));
    if wanted.is_pooled {
        return Finding::ok(AREA, CHECK, format!("the pool's {needed} connections go through the pooler"));
    }
    let get = |key| number(about, key).unwrap_or(0);
    let limits = [get("user_limit"), get("database_limit")].into_iter().filter(|limit| *limit >= 0);
    let most = limits.chain([get("max_connections") - get("reserved")]).min().unwrap_or(0);
    let free = (most - get("connections")).max(0);
    let what = format!(
        "{free} of {most} connections are free, and up to {needed} are used (database.pool_size {})",
        wanted.pool_size
    );
    if needed > most {
        Finding::fail(AREA, CHECK, what, "lower database.pool_size, or raise max_connections of the server")
    } else if needed > free {
        let advice = "lower database.pool_size, or free some; all is well if a running Forebay has them";
        Finding::warn(AREA, CHECK, what, advice)
    } else {
        Finding::ok(AREA, CHECK, what)
    }
}

pub(super) fn tls(about: &Row, mode: SslMode, endpoint: &str) -> Finding {
    const CHECK: &str = "tls";
    let is_local = |host: &str| {
        let host = host.trim_start_matches('[');
        ["/", "127.", "localhost", "::1"].iter().any(|local| host.starts_with(local))
    };
    match (is_so(about, "ssl"), mode) {
        (true, SslMode::VerifyCa | SslMode::VerifyFull) => {
            let version = shown(text(about, "ssl_version"));
            Finding::ok(
                AREA,
                CHECK,
                format!("encrypted ({version}), and the server's certificate was verified"),
            )
        }
        (true, _) => {
            let advice = "say sslmode=verify-full in the URL, and name its authority in database.ca_file";
            Finding::warn(AREA, CHECK, "encrypted, but nobody verified who the server is", advice)
        }
        (false, _) if endpoint.split(',').all(is_local) => {
            Finding::ok(AREA, CHECK, "not encrypted, on this machine")
        }
        (false, _) => {
            let advice = "say sslmode=verify-full in the URL, and have the server use TLS (ssl = on)";
            Finding::warn(AREA, CHECK, "not encrypted: whoever is on the way reads along", advice)
        }
    }
}

pub(super) fn latency(area: Area, median_ms: f64) -> Finding {
    let what = format!("a round trip takes {median_ms:.1} ms");
    if median_ms < FAR_MS {
        return Finding::ok(area, "latency", what);
    }
    Finding::warn(
        area,
        "latency",
        what,
        "run Forebay near it: new shapes and limits wait for several of them",
    )
}

pub(super) fn clock(area: Area, ahead_ms: i128) -> Finding {
    let (by, how) = (ahead_ms.abs(), if ahead_ms < 0 { "behind" } else { "ahead of" });
    if by < APART_MS {
        return Finding::ok(area, "clock", format!("its clock agrees with ours within {by} ms"));
    }
    let what = format!("its clock is {:.1} s {how} ours", by as f64 / 1e3);
    Finding::warn(area, "clock", what, "keep both by NTP: the lag that is shown would be wrong by as much")
}

/// The tables that could be asked for.
pub(super) fn tables_sql() -> String {
    "SELECT count(*) AS tables, count(*) FILTER (WHERE NOT has_table_privilege(c.oid, 'SELECT')) AS unread, \
     count(*) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS foreign_tables, \
     min(format('%I.%I', n.nspname, c.relname)) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS example, \
     min(pg_get_userbyid(c.relowner)) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS owner \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition \
     AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"
        .to_owned()
}

pub(super) fn tables(row: Option<&Row>, about: &Row, wanted: &Wanted<'_>) -> Vec<Finding> {
    let Some(row) = row else { return vec![] };
    let get = |key| number(row, key).unwrap_or(0);
    let (all, user) = (get("tables"), shown(text(about, "user")));
    let mut findings = Vec::new();
    let (foreign, unread) = (get("foreign_tables"), get("unread"));
    if foreign > 0 && !wanted.manual_publication {
        let (example, owner) = (shown(text(row, "example")), shown(text(row, "owner")));
        let what = format!(
            "{foreign} of {all} tables can't be published, since {user} doesn't own them ({example})"
        );
        let advice =
            format!("GRANT {owner} TO {user}, or publish them yourself and say database.manual_publication");
        findings.push(Finding::warn(AREA, "tables", what, advice));
    } else if unread > 0 {
        let what = format!("{unread} of {all} tables can't be read by {user}");
        let advice = format!("GRANT SELECT ON the tables that are to be served TO {user}");
        findings.push(Finding::warn(AREA, "tables", what, advice));
    } else {
        findings.push(Finding::ok(AREA, "tables", format!("all {all} tables can be served")));
    }
    findings
}

pub(super) fn slot_sql(wanted: &Wanted<'_>) -> String {
    format!(
        "SELECT plugin = 'pgoutput' AND database = current_database() AND NOT two_phase AS is_ours, \
         concat_ws(' ', slot_type, plugin, 'of ' || database) AS what, active, active_pid, wal_status, \
         CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END AS kept \
         FROM pg_replication_slots WHERE slot_name = {}",
        literal(wanted.slot)
    )
}

pub(super) fn slot(row: Option<&Row>, _: &Row, wanted: &Wanted<'_>) -> Vec<Finding> {
    const CHECK: &str = "slot";
    let name = wanted.slot;
    let Some(row) = row else {
        return vec![Finding::ok(
            AREA,
            CHECK,
            format!("there is no slot {name} yet; it is made at the start"),
        )];
    };
    let kept = number(row, "kept").unwrap_or(0) as f64 / GI;
    vec![if !is_so(row, "is_ours") {
        let foreign = ReplicationError::ForeignSlot { slot: name.to_owned(), what: shown(text(row, "what")) };
        Finding::fail(AREA, CHECK, foreign.to_string(), "name another in database.slot")
    } else if text(row, "wal_status") == "lost" {
        let what = format!("the slot {name} is lost: the server dropped log that it needed");
        Finding::warn(AREA, CHECK, what, "it is made anew at the start, and all shapes start over")
    } else if is_so(row, "active") {
        let pid = shown(text(row, "active_pid"));
        let what = format!(
            "the slot {name} is used by a running instance (server process {pid}); another waits its turn"
        );
        Finding::ok(AREA, CHECK, what)
    } else if kept >= 1.0 {
        let what = format!("the slot {name} is idle, and the server keeps {kept:.1} GiB of log for it");
        let advice =
            format!("start Forebay, or, if it is not needed: SELECT pg_drop_replication_slot('{name}')");
        Finding::warn(AREA, CHECK, what, advice)
    } else {
        Finding::ok(
            AREA,
            CHECK,
            format!("the slot {name} is there, idle, {}", shown(text(row, "wal_status"))),
        )
    }]
}

pub(super) fn publication_sql(wanted: &Wanted<'_>) -> String {
    format!(
        "SELECT pg_get_userbyid(pubowner) AS owner, pg_has_role(pubowner, 'USAGE') AS is_ours, \
         (SELECT count(*) FROM pg_publication_tables t WHERE t.pubname = p.pubname) AS tables, concat_ws(', ', \
         CASE WHEN NOT pubinsert THEN 'insert' END, CASE WHEN NOT pubupdate THEN 'update' END, \
         CASE WHEN NOT pubdelete THEN 'delete' END, CASE WHEN NOT pubtruncate THEN 'truncate' END) AS missing \
         FROM pg_publication p WHERE pubname = {}",
        literal(wanted.publication)
    )
}

pub(super) fn publication(row: Option<&Row>, about: &Row, wanted: &Wanted<'_>) -> Vec<Finding> {
    const CHECK: &str = "publication";
    let (name, user) = (wanted.publication.to_owned(), shown(text(about, "user")));
    let shown_name = shown(&name);
    vec![match row {
        None if wanted.manual_publication => {
            let advice = format!("as the tables' owner: CREATE PUBLICATION {shown_name} FOR TABLE …");
            Finding::fail(
                AREA,
                CHECK,
                format!("there is no publication {shown_name}, and it is yours to make"),
                advice,
            )
        }
        None if !is_so(about, "may_create") => {
            let what = format!("there is no publication {shown_name}, and {user} may not make one");
            Finding::fail(
                AREA,
                CHECK,
                what,
                format!("as the database's owner: GRANT CREATE ON DATABASE … TO {user}"),
            )
        }
        None => Finding::ok(
            AREA,
            CHECK,
            format!("there is no publication {shown_name} yet; it is made at the start"),
        ),
        Some(row) => {
            let (owner, missing) = (shown(text(row, "owner")), shown(text(row, "missing")));
            if !wanted.manual_publication && !is_so(row, "is_ours") {
                let failure = ReplicationError::NotOwner { name, owner, user };
                Finding::fail(AREA, CHECK, failure.to_string(), "or name another in database.publication")
            } else if wanted.manual_publication && !missing.is_empty() {
                let failure = ReplicationError::PublicationOperations { name, missing };
                Finding::fail(AREA, CHECK, failure.to_string(), "all four are needed")
            } else {
                let tables = number(row, "tables").unwrap_or(0);
                Finding::ok(
                    AREA,
                    CHECK,
                    format!("the publication {shown_name} is there, of {owner}, with {tables} tables"),
                )
            }
        }
    }]
}

fn text<'a>(row: &'a Row, key: &str) -> &'a str {
    row.get(key).map(String::as_str).unwrap_or_default()
}

fn is_so(row: &Row, key: &str) -> bool {
    text(row, key) == "t"
}

fn number(row: &Row, key: &str) -> Option<i64> {
    text(row, key).parse().ok()
}

/// As the server reads it whatever `standard_conforming_strings` says: slots and publications may have any name in the settings.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "''");
    format!(" E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    const WANTED: Wanted<'_> = Wanted {
        slot: "forebay",
        publication: "forebay",
        manual_publication: false,
        pool_size: 20,
        most_connections: None,
        is_pooled: false,
    };

    fn row(pairs: &[(&str, &str)]) -> Row {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn connected(max: &str, used: &str, user_limit: &str, most: Option<u32>) -> Level {
        let about = row(&[
            ("max_connections", max),
            ("reserved", "3"),
            ("connections", used),
            ("user_limit", user_limit),
            ("database_limit", "-1"),
        ]);
        connections(&about, &Wanted { most_connections: most, ..WANTED }).level
    }

    #[test]
    fn the_pool_must_fit_into_what_the_server_takes() {
        assert_eq!(connected("100", "10", "-1", None), Level::Ok);
        assert_eq!(connected("100", "80", "-1", None), Level::Warn, "not now");
        assert_eq!(connected("20", "1", "-1", None), Level::Fail, "never");
        assert_eq!(connected("100", "1", "10", None), Level::Fail, "the user may have ten");
        assert_eq!(connected("20", "1", "-1", Some(10)), Level::Ok, "all instances together have ten");
        assert_eq!(connected("24", "0", "-1", None), Level::Fail, "22 and the three that are reserved");
    }

    #[test]
    fn minors_that_decode_with_a_stale_catalog_are_named() {
        let judged = |number: &str, version: &str| {
            let about = row(&[("version_num", number), ("version", version)]);
            let finding = server(&about, "db", &WANTED).swap_remove(1);
            assert_eq!(finding.check, "version");
            (finding.level, finding.what)
        };
        let (level, what) = judged("150012", "15.12");
        assert_eq!(level, Level::Warn);
        assert!(what.contains("15.12") && what.contains("15.13, 16.9 and 17.5"), "{what}");
        assert_eq!(judged("170005", "17.5").0, Level::Ok);
        assert_eq!(judged("180000", "18.0").0, Level::Ok);
    }

    #[test]
    fn whoever_is_on_the_way_must_not_read_along() {
        let judged = |ssl, mode, at| tls(&row(&[("ssl", ssl)]), mode, at).level;
        assert_eq!(judged("t", SslMode::VerifyFull, "db:5432"), Level::Ok);
        assert_eq!(judged("t", SslMode::Require, "db:5432"), Level::Warn);
        assert_eq!(judged("f", SslMode::Prefer, "db:5432"), Level::Warn);
        assert_eq!(judged("f", SslMode::Prefer, "127.0.0.1:5432,[::1]:5432"), Level::Ok);
        assert_eq!(judged("f", SslMode::Prefer, "127.0.0.1:5432,db:5432"), Level::Warn);
    }

    #[test]
    fn a_slot_is_ours_idle_used_lost_or_somebody_elses() {
        let judged = |pairs: &[(&str, &str)]| slot(Some(&row(pairs)), &Row::new(), &WANTED)[0].level;
        let ours = ("is_ours", "t");
        assert_eq!(judged(&[ours, ("active", "t")]), Level::Ok);
        assert_eq!(judged(&[ours, ("active", "f"), ("kept", "1000")]), Level::Ok);
        assert_eq!(judged(&[ours, ("active", "f"), ("kept", "9999999999")]), Level::Warn);
        assert_eq!(judged(&[ours, ("wal_status", "lost")]), Level::Warn);
        assert_eq!(judged(&[("is_ours", "f")]), Level::Fail);
        assert_eq!(slot(None, &Row::new(), &WANTED)[0].level, Level::Ok);
    }

    #[test]
    fn clocks_that_differ_are_told_by_how_much_and_which_way() {
        assert_eq!(clock(AREA, -20).level, Level::Ok);
        let late = clock(AREA, -90_500);
        assert!(late.level == Level::Warn && late.what.contains("90.5 s behind"), "{late:?}");
    }

    /// A server that is fit, but for this.
    fn levels(but: &[(&str, &str)]) -> Vec<(&'static str, Level)> {
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
        about.extend(row(but));
        let findings = server(&about, "db:5432", &WANTED).into_iter();
        findings
            .filter(|finding| finding.level != Level::Ok)
            .map(|finding| (finding.check, finding.level))
            .collect()
    }

    #[test]
    fn each_thing_that_makes_a_server_unfit_is_told_by_itself() {
        assert_eq!(levels(&[]), []);
        for (key, value, check, level) in [
            ("version_num", "140012", "version", Level::Fail),
            ("is_standby", "t", "primary", Level::Fail),
            ("wal_level", "replica", "wal_level", Level::Fail),
            ("may_replicate", "f", "replication_right", Level::Fail),
            ("max_connections", "10", "connections", Level::Fail),
            // One of them may be a running instance's own.
            ("max_slots", "9", "slots", Level::Warn),
            ("max_slots", "0", "slots", Level::Warn),
            ("max_senders", "9", "senders", Level::Warn),
            ("keeps", "-1", "wal_kept", Level::Warn),
        ] {
            assert_eq!(levels(&[(key, value)]), [(check, level)], "{key} = {value}");
        }
    }

    #[test]
    fn a_server_that_is_far_is_told_in_milliseconds() {
        assert_eq!(latency(AREA, 0.4).level, Level::Ok);
        let far = latency(AREA, 80.0);
        assert!(far.level == Level::Warn && far.what.contains("80.0 ms"), "{far:?}");
    }

    #[test]
    fn a_name_stays_a_name() {
        assert_eq!(literal("a'b\\c"), " E'a''b\\\\c'");
    }
}
