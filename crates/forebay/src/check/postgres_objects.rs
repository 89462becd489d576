//! Queries for tables, the slot and the publication, and the evaluation of their rows. Pure.

use forebay_replication::ReplicationError;

use super::catalog_row::{CatalogRow, is_true, number, text};
use super::finding::{CheckArea, Finding};
use super::postgres_server::DatabaseRequirements;
use crate::terminal::escape_controls;

const AREA: CheckArea = CheckArea::Postgres;
const GI: f64 = (1u64 << 30) as f64;

/// Returns the query for the tables that clients could request.
pub(super) fn tables_sql() -> String {
    "SELECT count(*) AS tables, count(*) FILTER (WHERE NOT has_table_privilege(c.oid, 'SELECT')) AS unread, \
     count(*) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS foreign_tables, \
     min(format('%I.%I', n.nspname, c.relname)) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS example, \
     min(pg_get_userbyid(c.relowner)) FILTER (WHERE NOT pg_has_role(c.relowner, 'USAGE')) AS owner \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition \
     AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"
        .to_owned()
}

/// Evaluates ownership and read privileges of the tables.
pub(super) fn tables(
    row: Option<&CatalogRow>,
    about: &CatalogRow,
    required: &DatabaseRequirements<'_>,
) -> Vec<Finding> {
    let Some(row) = row else { return vec![] };
    let get = |key| number(row, key).unwrap_or(0);
    let (all, user) = (get("tables"), escape_controls(text(about, "user")));
    let mut findings = Vec::new();
    let (foreign, unread) = (get("foreign_tables"), get("unread"));
    if foreign > 0 && !required.manual_publication {
        let (example, owner) = (escape_controls(text(row, "example")), escape_controls(text(row, "owner")));
        let what = format!(
            "{foreign} of {all} tables can't be added to the publication, because {user} doesn't own them ({example})"
        );
        let advice =
            format!("GRANT {owner} TO {user}, or publish them yourself and set database.manual_publication");
        findings.push(Finding::warn(AREA, "tables", what, advice));
    } else if unread > 0 {
        let what = format!("{unread} of {all} tables can't be read by {user}");
        let advice = format!("GRANT SELECT ON the tables to be served TO {user}");
        findings.push(Finding::warn(AREA, "tables", what, advice));
    } else {
        findings.push(Finding::ok(AREA, "tables", format!("all {all} tables can be served")));
    }
    findings
}

/// Returns the query for the slot.
pub(super) fn slot_sql(required: &DatabaseRequirements<'_>) -> String {
    format!(
        "SELECT plugin = 'pgoutput' AND database = current_database() AND NOT two_phase AS is_ours, \
         concat_ws(' ', slot_type, plugin, 'of ' || database) AS what, active, active_pid, wal_status, \
         CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END AS kept \
         FROM pg_replication_slots WHERE slot_name = {}",
        literal(required.slot)
    )
}

/// Evaluates the slot.
pub(super) fn slot(
    row: Option<&CatalogRow>,
    _: &CatalogRow,
    required: &DatabaseRequirements<'_>,
) -> Vec<Finding> {
    const CHECK: &str = "slot";
    let name = required.slot;
    let Some(row) = row else {
        return vec![Finding::ok(
            AREA,
            CHECK,
            format!("the slot {name} does not exist yet; Forebay creates it at the start"),
        )];
    };
    let kept = number(row, "kept").unwrap_or(0) as f64 / GI;
    vec![if !is_true(row, "is_ours") {
        let foreign =
            ReplicationError::ForeignSlot { slot: name.to_owned(), what: escape_controls(text(row, "what")) };
        Finding::fail(AREA, CHECK, foreign.to_string(), "set another name in database.slot")
    } else if text(row, "wal_status") == "lost" {
        let what = format!("the slot {name} is lost: the server removed WAL that it needs");
        Finding::warn(AREA, CHECK, what, "Forebay creates it again at the start, and all shapes start over")
    } else if is_true(row, "active") {
        let pid = escape_controls(text(row, "active_pid"));
        let what = format!(
            "the slot {name} is used by a running instance (server process {pid}); another instance would wait for it"
        );
        Finding::ok(AREA, CHECK, what)
    } else if kept >= 1.0 {
        let what = format!("the slot {name} is idle, and the server retains {kept:.1} GiB of WAL for it");
        let advice = format!(
            "start Forebay, or drop the slot if it is not needed: SELECT pg_drop_replication_slot('{name}')"
        );
        Finding::warn(AREA, CHECK, what, advice)
    } else {
        Finding::ok(
            AREA,
            CHECK,
            format!("the slot {name} exists, idle, WAL status {}", escape_controls(text(row, "wal_status"))),
        )
    }]
}

/// Returns the query for the publication.
pub(super) fn publication_sql(required: &DatabaseRequirements<'_>) -> String {
    format!(
        "SELECT pg_get_userbyid(pubowner) AS owner, pg_has_role(pubowner, 'USAGE') AS is_ours, \
         (SELECT count(*) FROM pg_publication_tables t WHERE t.pubname = p.pubname) AS tables, concat_ws(', ', \
         CASE WHEN NOT pubinsert THEN 'insert' END, CASE WHEN NOT pubupdate THEN 'update' END, \
         CASE WHEN NOT pubdelete THEN 'delete' END, CASE WHEN NOT pubtruncate THEN 'truncate' END) AS missing \
         FROM pg_publication p WHERE pubname = {}",
        literal(required.publication)
    )
}

/// Evaluates the publication.
pub(super) fn publication(
    row: Option<&CatalogRow>,
    about: &CatalogRow,
    required: &DatabaseRequirements<'_>,
) -> Vec<Finding> {
    const CHECK: &str = "publication";
    let (name, user) = (required.publication.to_owned(), escape_controls(text(about, "user")));
    let shown_name = escape_controls(&name);
    vec![match row {
        None if required.manual_publication => {
            let advice = format!("as the owner of the tables: CREATE PUBLICATION {shown_name} FOR TABLE …");
            Finding::fail(
                AREA,
                CHECK,
                format!(
                    "the publication {shown_name} does not exist, and Forebay does not create it (database.manual_publication)"
                ),
                advice,
            )
        }
        None if !is_true(about, "may_create") => {
            let what = format!("the publication {shown_name} does not exist, and {user} may not create one");
            Finding::fail(
                AREA,
                CHECK,
                what,
                format!("as the owner of the database: GRANT CREATE ON DATABASE … TO {user}"),
            )
        }
        None => Finding::ok(
            AREA,
            CHECK,
            format!("the publication {shown_name} does not exist yet; Forebay creates it at the start"),
        ),
        Some(row) => {
            let (owner, missing) =
                (escape_controls(text(row, "owner")), escape_controls(text(row, "missing")));
            if !required.manual_publication && !is_true(row, "is_ours") {
                let failure = ReplicationError::NotOwner { name, owner, user };
                Finding::fail(AREA, CHECK, failure.to_string(), "or set another name in database.publication")
            } else if required.manual_publication && !missing.is_empty() {
                let failure = ReplicationError::PublicationOperations { name, missing };
                Finding::fail(AREA, CHECK, failure.to_string(), "all four operations are needed")
            } else {
                let tables = number(row, "tables").unwrap_or(0);
                Finding::ok(
                    AREA,
                    CHECK,
                    format!("the publication {shown_name} exists, owned by {owner}, with {tables} tables"),
                )
            }
        }
    }]
}

/// Quotes a text as an SQL literal, independent of `standard_conforming_strings`. Names in the
/// settings may contain any character.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "''");
    format!(" E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::super::postgres_samples::{REQUIREMENTS, row};
    use super::*;

    #[test]
    fn a_slot_is_idle_in_use_lost_or_foreign() {
        let level =
            |pairs: &[(&str, &str)]| slot(Some(&row(pairs)), &CatalogRow::new(), &REQUIREMENTS)[0].level;
        let ours = ("is_ours", "t");
        assert_eq!(level(&[ours, ("active", "t")]), FindingLevel::Ok);
        assert_eq!(level(&[ours, ("active", "f"), ("kept", "1000")]), FindingLevel::Ok);
        assert_eq!(level(&[ours, ("active", "f"), ("kept", "9999999999")]), FindingLevel::Warn);
        assert_eq!(level(&[ours, ("wal_status", "lost")]), FindingLevel::Warn);
        assert_eq!(level(&[("is_ours", "f")]), FindingLevel::Fail);
        assert_eq!(slot(None, &CatalogRow::new(), &REQUIREMENTS)[0].level, FindingLevel::Ok);
    }

    #[test]
    fn a_literal_escapes_quotes_and_backslashes() {
        assert_eq!(literal("a'b\\c"), " E'a''b\\\\c'");
    }
}
