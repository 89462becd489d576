//! Config file of `forebay serve`. Sections that `forebay gate` has, too, are in
//! `settings_file.rs`.

use std::path::PathBuf;

use serde::Deserialize;

use super::electric_variables::ELECTRIC_VARIABLES;
use super::field_names::field_names;
use super::imported_variables::{self, ImportedSettings, UnreadableVariable};
use super::opentelemetry_variables::OPENTELEMETRY_VARIABLES;
use super::secret_text::SecretText;
use super::settings_file::{
    AdminSection, AdmissionSection, HttpSection, IdentitySection, LogSection, OtelSection, QuotaSection,
    RedisSection, SectionKeys, SettingsFile, common_sections,
};

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServeFile {
    pub(crate) database: DatabaseSection,
    pub(crate) serve: ServeSection,
    pub(crate) storage: StorageSection,
    pub(crate) http: HttpSection,
    pub(crate) admission: AdmissionSection,
    pub(crate) identity: IdentitySection,
    pub(crate) redis: RedisSection,
    pub(crate) quota: QuotaSection,
    pub(crate) admin: AdminSection,
    pub(crate) log: LogSection,
    pub(crate) otel: OtelSection,
}

impl SettingsFile for ServeFile {
    fn sections() -> Vec<SectionKeys> {
        let own = [
            field_names::<DatabaseSection>(),
            field_names::<ServeSection>(),
            field_names::<StorageSection>(),
        ];
        field_names::<ServeFile>().iter().copied().zip(own.into_iter().chain(common_sections())).collect()
    }

    fn import_variables(variables: &[(String, String)]) -> Result<ImportedSettings, UnreadableVariable> {
        imported_variables::import(variables, &[OPENTELEMETRY_VARIABLES, ELECTRIC_VARIABLES])
    }
}

/// The Postgres database.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DatabaseSection {
    /// Connection string of libpq: `postgres://USER:PASSWORD@HOST:PORT/NAME?sslmode=…`, or
    /// `KEY=VALUE` pairs. Required. Replication needs a direct connection; a pooler does not work.
    pub(crate) url: Option<SecretText>,
    /// Connection string for queries and snapshots, for example through PgBouncer in transaction
    /// mode. Default: `url`.
    pub(crate) pooled_url: Option<SecretText>,
    /// File with the password. It is read for each connection, so that the password can change.
    /// Default: the password in the URL.
    pub(crate) password_file: Option<PathBuf>,
    /// Program, with its arguments, that prints the password. It runs for each connection. Default:
    /// the password in the URL.
    pub(crate) password_command: Option<Vec<String>>,
    /// PEM file with the certificate authorities of the server. With it, TLS is verified in full,
    /// unless the URL has an `sslmode`. Default: `sslmode` of the URL decides.
    pub(crate) ca_file: Option<PathBuf>,
    /// Replication slot. It is also the lock: of the instances with the same slot, one is active at
    /// a time. Default `forebay`.
    pub(crate) slot: Option<String>,
    /// Uses a temporary slot, which Postgres drops when the connection ends. No WAL is retained
    /// without a connection, and all shapes start over after each reconnection. Default false.
    pub(crate) temporary_slot: Option<bool>,
    /// Creates the slot with `failover`, so that standbys synchronize it (PostgreSQL 17 and newer).
    /// Default false, because the standbys must be configured for it.
    pub(crate) failover_slot: Option<bool>,
    /// Publication. Default `forebay`.
    pub(crate) publication: Option<String>,
    /// The publication is managed by an administrator. Forebay only verifies it. Default false.
    pub(crate) manual_publication: Option<bool>,
    /// Time that a table stays in the publication after its last shape is deleted; 0: forever. It
    /// has no effect on a manual publication, nor while the database has another slot with
    /// pgoutput. Default 600,000.
    pub(crate) unpublish_after_ms: Option<u64>,
    /// Number of connections besides replication: a quarter, 1 to 4, for metadata, the rest for
    /// snapshots. Default 20: a fifth of the default `max_connections` of Postgres.
    pub(crate) pool_size: Option<u32>,
    /// Maximum number of pool connections of all instances with the same Redis. Default 0: only the
    /// pool sizes limit them.
    pub(crate) max_connections: Option<u32>,
    /// Maximum number of pool connections that all instances with the same Redis open in a second.
    /// Default 100: the limit of Aurora DSQL.
    pub(crate) connections_per_second: Option<u32>,
    /// Time without a request after which all connections are closed. The next request opens them
    /// again. Default 0: never.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// Interval at which an instance that waits for the slot checks the holder of the slot. Default
    /// 10,000.
    pub(crate) lock_check_ms: Option<u64>,
    /// Time without a sign of life after which the connection of a holder that does not stream is
    /// terminated. Default 30,000: a healthy holder sends six signs of life in that time.
    pub(crate) lock_silence_ms: Option<u64>,
}

/// The HTTP interface for clients.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServeSection {
    /// Address for clients. Default `127.0.0.1:3000`: the port of Electric, reachable from this
    /// machine only.
    pub(crate) listen: Option<String>,
    /// PEM file with the certificate for clients and its chain. It is reloaded when it changes.
    /// Default none: plain HTTP.
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    pub(crate) tls_key_file: Option<PathBuf>,
    /// Secret that clients must send as `?secret=`. Default none: then `listen` must be a loopback
    /// address, unless tokens are required or `insecure` is set.
    pub(crate) secret: Option<SecretText>,
    /// `required`: a client without the secret must send a signed token (see `[identity]`) that
    /// grants the requested shape. Default `off`: a token only identifies the user of a stream.
    pub(crate) tokens: Option<String>,
    /// Claim with the grants. Default `shapes`.
    pub(crate) tokens_claim: Option<String>,
    /// Allows an address that other machines can reach, without a secret, and accepts any `Host`.
    /// Default false.
    pub(crate) insecure: Option<bool>,
    /// Allows clients to delete shapes. Default false; then 405.
    pub(crate) allow_delete: Option<bool>,
    /// Time that a live request waits for a change. Default 20,000: below the 30 s and 60 s of
    /// common proxies.
    pub(crate) long_poll_ms: Option<u64>,
    /// Interval of keep-alive messages on an event stream without changes. Default 21,000:
    /// below the 30 s and 60 s of common proxies.
    pub(crate) sse_keep_alive_ms: Option<u64>,
    /// Duration of an event stream; then its client requests a new one. While the stream catches
    /// up, it ends at the next up-to-date message instead. Default 60,000: a cache may share the
    /// stream for that time.
    pub(crate) sse_timeout_ms: Option<u64>,
    /// `max-age` of responses that are not live. Default 60.
    pub(crate) max_age_s: Option<u32>,
    /// `stale-while-revalidate` of responses that are not live. Default 300.
    pub(crate) stale_age_s: Option<u32>,
    /// Maximum number of concurrent snapshots; further ones wait. Default: the number of snapshot
    /// connections of `database.pool_size`.
    pub(crate) snapshots: Option<u32>,
    /// Addresses and networks of the proxies whose headers about clients are trusted. Default none.
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// Header that the trusted proxies write: `x-forwarded-for` (the default, as most do) or
    /// `forwarded` (RFC 7239).
    pub(crate) forwarded_by: Option<String>,
    /// Time without data from a client whose request body is incomplete. The whole body may take
    /// four times as long. Default 30,000; then the connection is closed.
    pub(crate) request_idle_timeout_ms: Option<u64>,
    /// Time that open requests may continue after SIGTERM; then they are cut. Default 25,000:
    /// Kubernetes allows 30 s, and the rest is for returning permits and closing the store.
    pub(crate) drain_timeout_ms: Option<u64>,
}

/// The storage directory of shapes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StorageSection {
    /// Directory. It is created if it does not exist. Instances with the same slot share it.
    /// Default `./forebay-data`.
    pub(crate) dir: Option<PathBuf>,
    /// A chunk ends with the message that reaches this size. Default 10 Mi, as clients and caches
    /// expect.
    pub(crate) chunk_bytes: Option<u64>,
    /// Maximum number of shapes. Above it, the least recently used is deleted. Default 100,000.
    pub(crate) max_shapes: Option<u32>,
    /// Maximum size of all shapes on disk. Above it, the least recently used are deleted. Default
    /// 0: no limit.
    pub(crate) max_bytes: Option<u64>,
    /// Size of the messages that are only in memory and in the WAL of the store. Above it, they are
    /// written to the files of their shapes. Default 64 Mi.
    pub(crate) unwritten_bytes: Option<u64>,
    /// Size of the WAL of the store above which it is truncated. Default 256 Mi: after a crash,
    /// that is replayed in a second or two.
    pub(crate) wal_bytes: Option<u64>,
    /// Size of a shape's log before its last two chunks from which that part is compacted. Default
    /// 64 Mi; 0: never.
    pub(crate) compact_bytes: Option<u64>,
    /// Maximum number of shape files that are open at once. Default 512.
    pub(crate) open_files: Option<u32>,
    /// Maximum size of a snapshot that is written through the WAL of the store and needs no sync of
    /// its own. Default 256 Ki.
    pub(crate) small_snapshot_bytes: Option<u64>,
    /// Maximum size of the changes that are held for a shape until its snapshot starts. Above it,
    /// the shape is dropped. Default 16 Mi.
    pub(crate) held_bytes: Option<u64>,
    /// Maximum size of the changes that wait to be written. Above it, the replication stream
    /// pauses. Default 16 Mi.
    pub(crate) queued_bytes: Option<u64>,
}
