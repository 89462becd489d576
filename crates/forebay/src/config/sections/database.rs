//! Settings of `[database]`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_settings::{SecretText, SettingChoice};

use crate::config::dsql_variables::{go_duration, lease_limit, lease_switch};
use crate::config::electric_variables::{own_name, switch, time};
use crate::config::imported_variables::{DATABASE_URL, text};
use crate::config::settings_macro::settings;

/// Maximum length of a name in Postgres, in bytes.
const MAX_NAME: usize = 63;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Reason for the minimum interval of lock checks.
const LOCK_REASON: &str = "at least 100, because shorter intervals would load the server";

/// How the database user authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseAuth {
    Password,
    RdsIam,
    DsqlIam,
}

impl SettingChoice for DatabaseAuth {
    const CHOICES: &'static [(&'static str, DatabaseAuth)] = &[
        ("password", DatabaseAuth::Password),
        ("rds-iam", DatabaseAuth::RdsIam),
        ("dsql-iam", DatabaseAuth::DsqlIam),
    ];
}

settings! {
    /// The Postgres database.
    DatabaseSection: "database" {
        /// Database to replicate: a connection string of libpq, such as
        /// `postgres://USER:PASSWORD@HOST:PORT/NAME?sslmode=verify-full`, or `KEY=VALUE` pairs.
        /// Replication needs a direct connection; a pooler does not work. The user needs
        /// `REPLICATION` and must own the tables. Other users of this machine can see flags: put a
        /// URL with a password into the variable `DATABASE_URL` or into the file.
        url: SecretText,
            required("set the URL of the database, such as \
                      `DATABASE_URL=postgres://user:password@localhost:5432/name forebay serve`"),
            example("postgres://forebay@127.0.0.1:5432/app"),
            flag("--database-url", "URL"),
            electric(DATABASE_URL, text, "");

        /// Connection string for queries and snapshots, for example through PgBouncer in
        /// transaction mode.
        pooled_url: Option<SecretText>,
            unset("`url`"),
            example("postgres://forebay@127.0.0.1:6432/app"),
            electric("ELECTRIC_QUERY_DATABASE_URL", text, "the older name of the next variable"),
            electric("ELECTRIC_POOLED_DATABASE_URL", text, "");

        /// How the database user authenticates: `password`, `rds-iam` (RDS and Aurora PostgreSQL)
        /// or `dsql-iam` (Aurora DSQL). The last two sign a token of 15 minutes with the
        /// credentials that the AWS SDK finds. They need `sslmode=require` or stronger, and a
        /// build with the feature `aws`. RDS needs `rds.iam_auth_for_replication = 1`. Aurora
        /// DSQL has no logical replication yet, so `forebay serve` can't follow it.
        auth: DatabaseAuth = "password";

        /// AWS region of the database, for `rds-iam` and `dsql-iam`.
        aws_region: Option<String>, unset("the region in the host name"), example("eu-central-1");

        /// File with the password. It is read for each connection, so that the password can change.
        password_file: Option<PathBuf>,
            unset("the password in the URL"),
            example("/run/secrets/database-password");

        /// Program, with its arguments, that prints the password. It runs for each connection. Set
        /// this or `password_file`, not both.
        password_command: Option<Vec<String>>,
            unset("the password in the URL"),
            example(r#"["aws", "rds", "generate-db-auth-token", "--hostname", "db.example"]"#);

        /// PEM file with the certificate authorities of the server. With it, TLS is verified in
        /// full, unless the URL has an `sslmode`.
        ca_file: Option<PathBuf>,
            unset("none, and `sslmode` of the URL decides"),
            example("/etc/ssl/database-ca.pem"),
            electric(
                "ELECTRIC_DATABASE_CA_CERTIFICATE_FILE",
                text,
                "`sslmode` may also be `verify-ca` or `verify-full`",
            );

        /// Replication slot. It is also the lock: instances with the same slot share a storage
        /// directory, and one is active at a time. While no instance runs, the slot retains WAL.
        /// Drop it when you no longer need it.
        slot: String = "forebay",
            rule(check_slot),
            flag("--slot", "NAME"),
            electric(
                "ELECTRIC_REPLICATION_STREAM_ID",
                own_name,
                "both are named `forebay_ID`, unlike those of Electric, so that both can run side by side during \
                 a migration",
            );

        /// Uses a temporary slot, which Postgres drops when the connection ends. No WAL is retained
        /// without a connection, and all shapes start over after each reconnection.
        temporary_slot: bool = false;

        /// Drops the slot and the publication at shutdown, unless another instance holds the slot.
        /// All shapes start over at the next start. A manual publication stays. A killed process
        /// drops nothing.
        drop_slot_on_shutdown: bool = false,
            electric(
                "CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN",
                switch,
                "drops the publication, too; the slot is an ordinary one and survives reconnections",
            );

        /// Creates the slot with `failover`: standbys synchronize it, and shapes survive a
        /// promotion (PostgreSQL 17 and newer). The standbys must be configured for it.
        failover_slot: bool = false;

        /// Publication in the database. A table is added when a client requests it.
        publication: String = "forebay",
            rule(check_publication),
            flag("--publication", "NAME"),
            electric("ELECTRIC_REPLICATION_STREAM_ID", own_name, "");

        /// The publication is managed by an administrator. Forebay only verifies it.
        manual_publication: bool = false,
            electric(
                "ELECTRIC_MANUAL_TABLE_PUBLISHING",
                switch,
                "the default name of the publication is `forebay`",
            );

        /// Time that a table stays in the publication after its last shape is deleted; 0: forever.
        /// `REPLICA IDENTITY` stays `FULL`. It has no effect on a manual publication, nor while the
        /// database has another slot with pgoutput.
        unpublish_after_ms: Duration = 600_000, or_zero();

        /// Exits with status 1 if an operator must act before the database can be followed: wrong
        /// password, missing role, right or database, wrong `wal_level`. Without it, the process
        /// logs the reason, and tries again every 30 s and on SIGHUP. After a first success,
        /// failures are retried in any case.
        exit_when_unfit: bool = false, flag("--exit-when-unfit", "");

        /// Number of connections besides replication: a quarter, 1 to 4, for metadata, the rest for
        /// snapshots. These are two pools: snapshots can't take connections for metadata. The
        /// default is a fifth of the default `max_connections` of Postgres.
        pool_size: u32 = 20,
            bounds(2, 10_000),
            reason("at least one connection for metadata and one for snapshots"),
            electric("ELECTRIC_DB_POOL_SIZE", text, "at least 2"),
            dsql("DSQL_RESERVOIR_TARGET_READY", text, "at least 2");

        /// Number of free pool connections below which new ones are opened eight at a time. The
        /// start also waits for this number. With the whole pool as the default, one connection
        /// that can't be opened would delay each start. The metadata connections are always
        /// included: a lower value has no effect on them.
        pool_low_watermark: Option<u32>,
            at_least(1),
            unset("those for metadata, and half of those for snapshots"),
            example("10"),
            dsql("DSQL_RESERVOIR_LOW_WATERMARK", text, "at most `database.pool_size`");

        /// Time that a pool connection lives at least. It is replaced before its end.
        pool_lifetime_ms: Duration = 660_000, dsql("DSQL_RESERVOIR_BASE_LIFETIME", go_duration, "");

        /// Maximum random addition to the lifetime, so that connections don't end together.
        pool_lifetime_jitter_ms: Duration = 120_000,
            or_zero(),
            dsql("DSQL_RESERVOIR_LIFETIME_JITTER", go_duration, "");

        /// Time before its end in which a pool connection is no longer lent.
        pool_guard_window_ms: Duration = 45_000,
            or_zero(),
            dsql("DSQL_RESERVOIR_GUARD_WINDOW", go_duration, "less than the lifetime");

        /// Maximum number of pool connections of all instances with the same Redis, at least 2; 0:
        /// only the pool sizes limit them. Snapshots leave room in it for the metadata connections
        /// and for one that replaces another.
        max_connections: u32 = 0,
            dsql("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", lease_switch, "`true` is a limit of 10,000"),
            dsql(
                "DSQL_DISTRIBUTED_CONN_LIMIT",
                lease_limit,
                "only with `DSQL_DISTRIBUTED_CONN_LEASE_ENABLED`",
            );

        /// Maximum number of pool connections that all instances with the same Redis open in a
        /// second. The default is the limit of Aurora DSQL.
        connections_per_second: u32 = 100, at_least(1);

        /// Time without a request after which all connections are closed, so that the database can
        /// suspend; 0: never. The next request opens them again. Meanwhile, the slot retains WAL.
        idle_timeout_ms: Duration = 0,
            or_zero(),
            electric(
                "ELECTRIC_REPLICATION_IDLE_TIMEOUT",
                time,
                "measured from the last request, not from the last change",
            );

        /// Interval at which an instance that waits for the slot checks the holder of the slot. It
        /// must be the same for all instances.
        lock_check_ms: Duration = 10_000, bounds(100, DAY_MS), reason(LOCK_REASON);

        /// Time without a sign of life after which the connection of a holder that does not stream
        /// is terminated. It must be the same for all instances. In the default time, a healthy
        /// holder sends six signs of life.
        lock_silence_ms: Duration = 30_000, bounds(100, DAY_MS), reason(LOCK_REASON);
    }
}

fn check_slot(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err("is not a valid slot name: Postgres allows 1 to 63 of a-z, 0-9 and _".to_owned())
}

fn check_publication(name: &str) -> Result<(), String> {
    if (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0') {
        return Ok(());
    }
    Err("is not a valid publication name: Postgres allows 1 to 63 bytes".to_owned())
}
