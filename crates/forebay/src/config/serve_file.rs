//! The shape of the config file of `forebay serve`. What it has in common with the gate's is in `file.rs`.

use std::path::PathBuf;

use serde::Deserialize;

use super::borrowed::{self, Borrowed, Misread};
use super::electric;
use super::fields::fields_of;
use super::file::{
    AdminSection, AdmissionSection, HttpSection, IdentitySection, LogSection, OtelSection, QuotaSection,
    RedisSection, Section, Shape, shared,
};
use super::hidden::Hidden;
use super::opentelemetry;

/// All of `forebay serve`.
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

impl Shape for ServeFile {
    fn sections() -> Vec<Section> {
        let own =
            [fields_of::<DatabaseSection>(), fields_of::<ServeSection>(), fields_of::<StorageSection>()];
        fields_of::<ServeFile>().iter().copied().zip(own.into_iter().chain(shared())).collect()
    }

    fn borrowed(variables: &[(String, String)]) -> Result<Borrowed, Misread> {
        borrowed::read(variables, &[opentelemetry::KNOWN, electric::KNOWN])
    }
}

/// The database that is followed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DatabaseSection {
    /// Where it is, as libpq takes it: `postgres://USER:PASSWORD@HOST:PORT/NAME?sslmode=…`, or words. No default; the one
    /// thing that must be said. Replication needs the server itself, not a pooler.
    pub(crate) url: Option<Hidden>,
    /// Where queries and snapshots go, if that is elsewhere: through PgBouncer in transaction mode, say. Default: as `url`.
    pub(crate) pooled_url: Option<Hidden>,
    /// A file with the password, read for each connection, so that it can be changed. Default: the URL's.
    pub(crate) password_file: Option<PathBuf>,
    /// A program and its arguments that say the password, run for each connection. Default: the URL's.
    pub(crate) password_command: Option<Vec<String>>,
    /// The authorities (PEM) that may vouch for the server; TLS is verified in full then, unless the URL says otherwise.
    /// Default: as the URL says.
    pub(crate) ca_file: Option<PathBuf>,
    /// The replication slot, which is the lock, too: instances with the same name take turns. Default `forebay`.
    pub(crate) slot: Option<String>,
    /// A slot that ends with its connection: nothing is kept for us while we are away, and each reconnection starts over.
    /// Default false.
    pub(crate) temporary_slot: Option<bool>,
    /// A slot that standbys keep in step (PostgreSQL 17 and newer). Default false: they must be set up for it.
    pub(crate) failover_slot: Option<bool>,
    /// The publication. Default `forebay`.
    pub(crate) publication: Option<String>,
    /// The publication is made and kept by somebody else, and only checked. Default false.
    pub(crate) manual_publication: Option<bool>,
    /// How long a table stays in the publication after its last shape has gone; 0: for ever. It has
    /// no effect on a publication
    /// that is kept by hand, nor while the database has another slot for pgoutput. Default 600,000.
    pub(crate) unpublish_after_ms: Option<u64>,
    /// Connections beside replication's: a quarter, 1 to 4, for metadata, the rest for snapshots. Default 20: a fifth of what
    /// Postgres takes unless told.
    pub(crate) pool_size: Option<u32>,
    /// Pool connections of all instances at the same Redis together. Default 0: as many as their pools want.
    pub(crate) max_connections: Option<u32>,
    /// Pool connections opened a second, by all instances at the same Redis together. Default 100: what Aurora DSQL takes.
    pub(crate) connections_per_second: Option<u32>,
    /// Closes all connections after so long without a request; the next one wakes them. Default 0: never.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// How often those who wait for the slot look whether its holder lives. Default 10,000.
    pub(crate) lock_check_ms: Option<u64>,
    /// How long a holder that isn't streaming may be silent, before its connection is ended. Default 30,000: a living one
    /// speaks six times as often.
    pub(crate) lock_silence_ms: Option<u64>,
}

/// What clients see.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServeSection {
    /// Where clients connect. Default `127.0.0.1:3000`: Electric's port, on this machine only, until told.
    pub(crate) listen: Option<String>,
    /// A PEM file with the certificate that clients see, and those that lead to an authority; read again when it changes. Default none:
    /// plain HTTP.
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// A PEM file with its key.
    pub(crate) tls_key_file: Option<PathBuf>,
    /// What clients must show as `?secret=`. Default none, and then only this machine is served.
    pub(crate) secret: Option<Hidden>,
    /// `required`: whoever doesn't show the secret must show a signed token (see [identity]) that grants what is asked for. Default
    /// `off`: a token only says whose stream it is.
    pub(crate) tokens: Option<String>,
    /// The claim with the grants. Default `shapes`.
    pub(crate) tokens_claim: Option<String>,
    /// Serves whoever comes, without a secret: beyond this machine, and by whatever name it is asked. Default false.
    pub(crate) insecure: Option<bool>,
    /// Whether clients may delete shapes. Default false; then 405.
    pub(crate) allow_delete: Option<bool>,
    /// How long a live request waits for a change. Default 20,000: below the 30 s and 60 s of the usual proxies.
    pub(crate) long_poll_ms: Option<u64>,
    /// How often a silent event stream says that it lives. Default 21,000, for the same reason.
    pub(crate) sse_keep_alive_ms: Option<u64>,
    /// When an event stream ends, and its client asks again; while it is catching up, at its
    /// next up-to-date. Default 60,000: a cache may share it for so long.
    pub(crate) sse_timeout_ms: Option<u64>,
    /// How long a cache may give what is not live without asking. Default 60.
    pub(crate) max_age_s: Option<u32>,
    /// And for how long after that, while it asks. Default 300.
    pub(crate) stale_age_s: Option<u32>,
    /// How many snapshots are taken at once; others wait for their turn. Default: as many as `database.pool_size` leaves for
    /// them.
    pub(crate) snapshots: Option<u32>,
    /// Addresses and networks of the proxies whose word about clients counts. Default none.
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// Which header they write: `x-forwarded-for` (the default, as most do) or `forwarded` (RFC 7239).
    pub(crate) forwarded_by: Option<String>,
    /// How long a client that owes its request's body may send nothing, and a quarter of how long all of it may take. Default
    /// 30,000; then it is closed.
    pub(crate) request_idle_timeout_ms: Option<u64>,
    /// How long the end may take after SIGTERM. Default 25,000: what is left of the 30 s that Kubernetes grants is for giving
    /// back what was held.
    pub(crate) drain_timeout_ms: Option<u64>,
}

/// Where shapes are kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StorageSection {
    /// The directory; made if it isn't there. Default `./forebay-data`. Instances of one slot share it.
    pub(crate) dir: Option<PathBuf>,
    /// A chunk closes with the message that reaches this size. Default 10 Mi, as clients and caches expect.
    pub(crate) chunk_bytes: Option<u64>,
    /// How many shapes there may be; the least recently used goes for another. Default 100,000.
    pub(crate) max_shapes: Option<u32>,
    /// How much they may take on disk together; the least recently used go. Default 0: as much as there is.
    pub(crate) max_bytes: Option<u64>,
    /// Messages that are only in memory and in the log are written to the shapes' files beyond this. Default 64 Mi.
    pub(crate) unwritten_bytes: Option<u64>,
    /// The log is made short beyond this. Default 256 Mi, which are read again in a second or two after a crash.
    pub(crate) wal_bytes: Option<u64>,
    /// When so much of a log is old, it is merged. Default 64 Mi; 0: never.
    pub(crate) compact_bytes: Option<u64>,
    /// How many of the shapes' files are open at once. Default 512.
    pub(crate) open_files: Option<u32>,
    /// A snapshot up to this size goes through the log, and needs no sync of its own. Default 256 Ki.
    pub(crate) small_snapshot_bytes: Option<u64>,
    /// How much of the stream is held for a shape whose snapshot is about to begin; with more, it is given up. Default 16 Mi.
    pub(crate) held_bytes: Option<u64>,
    /// How much may wait to be written; with more, the stream waits. Default 16 Mi.
    pub(crate) queued_bytes: Option<u64>,
}
