//! Settings of `[serve]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_admission::{ForwardedHeader, Network, Secret};
use forebay_settings::{Reload, SettingChoice};

use super::EMPTY;
use crate::config::electric_variables::{any_ipv4_address, any_ipv6_address, switch, time};
use crate::config::imported_variables::text;
use crate::config::settings_macro::settings;

const YEAR_S: u64 = 365 * 24 * 60 * 60;

/// Whether a client without the secret must send a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenMode {
    Off,
    Required,
}

impl SettingChoice for TokenMode {
    const CHOICES: &'static [(&'static str, TokenMode)] =
        &[("off", TokenMode::Off), ("required", TokenMode::Required)];
}

settings! {
    /// The HTTP interface for clients.
    ServeSection: "serve" {
        /// Address for clients. The default is the port of Electric, reachable from this machine
        /// only. An address that other machines can reach needs `secret`, `tokens` or `insecure`.
        listen: SocketAddr = "127.0.0.1:3000",
            flag("--listen", "IP:PORT"),
            electric(
                "ELECTRIC_PORT",
                any_ipv4_address,
                "the address is `0.0.0.0:PORT`, which needs a secret; without this variable, only clients on this \
                 machine can connect",
            ),
            electric("ELECTRIC_LISTEN_ON_IPV6", any_ipv6_address, "the address is `[::]:PORT`");

        /// PEM file with the certificate for clients and its chain. It is reloaded when it changes
        /// (within 5 s) and on SIGHUP. If the new pair is invalid, the error is logged and the old
        /// pair stays. A stream with TLS takes about 24 KiB of memory, a plain one 3 KiB. For very
        /// many streams, terminate TLS in a proxy.
        tls_cert_file: Option<PathBuf>, unset("none, plain HTTP"), example("/etc/forebay/tls.crt");

        /// PEM file with the private key of the certificate.
        tls_key_file: Option<PathBuf>, example("/etc/forebay/tls.key");

        /// Secret that clients must send as `?secret=`; usually a proxy that authenticates users
        /// adds it. Better set it in the variable. Without it, `listen` must be a loopback address,
        /// unless tokens are required or `insecure` is set.
        secret: Option<Secret>,
            example("long and random"),
            reload(Reload::AppliedUnlessRemoved),
            electric("ELECTRIC_SECRET", text, "");

        /// `required`: a client without the secret must send a signed token in `Authorization:
        /// Bearer`, and can read only what the token grants. `off`: a token only identifies the
        /// user of a stream. `[identity]` has the keys that verify tokens. A grant is `{"table":
        /// "public.orders", "where": "user_id = $1", "params": {"1": "7"}, "columns": ["id",
        /// "total"]}`; only `table` is required. docs/tokens.md describes grants.
        tokens: TokenMode = "off";

        /// Claim of a token with the list of grants. It needs `tokens = "required"`.
        tokens_claim: Option<String>, unset("`shapes`"), example("shapes"), rule(check_claim);

        /// Allows an address that other machines can reach, without a secret
        /// (`FOREBAY_SERVE_SECRET`), and accepts any `Host`. Every client that can connect can then
        /// read every table that the database user can read.
        insecure: bool = false, flag("--insecure", ""), electric("ELECTRIC_INSECURE", switch, "");

        /// Allows clients to delete shapes. Otherwise they get 405.
        allow_delete: bool = false,
            flag("--allow-delete", ""),
            electric("ELECTRIC_ENABLE_INTEGRATION_TESTING", switch, "");

        /// Time that a live request waits for a change. The default is below the timeouts of common
        /// proxies, 30 s and 60 s.
        long_poll_ms: Duration = 20_000, electric("ELECTRIC_LONG_POLL_TIMEOUT", time, "");

        /// Interval of keep-alive messages on an event stream without changes. The default is below
        /// the timeouts of common proxies, 30 s and 60 s.
        sse_keep_alive_ms: Duration = 21_000;

        /// Duration of an event stream; then its client requests a new one. While the stream
        /// catches up, it ends at the next up-to-date message instead. A cache may share the stream
        /// for that time.
        sse_timeout_ms: Duration = 60_000;

        /// `max-age` of responses that are not live.
        max_age_s: u32 = 60, bounds(0, YEAR_S), electric("ELECTRIC_CACHE_MAX_AGE", text, "");

        /// `stale-while-revalidate` of responses that are not live.
        stale_age_s: u32 = 300, bounds(0, YEAR_S), electric("ELECTRIC_CACHE_STALE_AGE", text, "");

        /// Maximum number of concurrent snapshots; further ones wait.
        snapshots: Option<u32>,
            unset("the number of snapshot connections of `database.pool_size` and `max_connections`"),
            example("16"),
            at_least(1);

        /// Whether a where clause may use what Forebay can't evaluate itself, such as regular
        /// expressions, or the order of text under the database's collation. Postgres then
        /// evaluates the clause on changed rows that Forebay can't decide, in batches on the
        /// connections for metadata. Such a shape follows its changes a few milliseconds later, and
        /// waits while the database is away; other shapes never wait. It is on because most
        /// databases have a collation under which Forebay can't order text. If it is off, such
        /// clauses get a 400, and existing shapes with one are deleted at their next undecided row.
        /// Subsets aren't affected.
        postgres_clauses: bool = true;

        /// Maximum number of shapes with such clauses. Requests for further ones get a 503.
        postgres_clause_shapes: u32 = 1_000, at_least(1);

        /// Maximum number of statements per second that evaluate clauses on changed rows. A
        /// statement has up to 1,000 rows of one shape.
        postgres_clause_statements_per_s: u32 = 100, at_least(1);

        /// Addresses and networks of the proxies whose headers about clients (user, address) are
        /// trusted.
        trusted_proxies: Vec<Network> = EMPTY;

        /// Header that the trusted proxies write: `x-forwarded-for`, as most do, or `forwarded`
        /// (RFC 7239). The other one is ignored.
        forwarded_by: ForwardedHeader = "x-forwarded-for";

        /// Time without data from a client whose request body is incomplete; then the connection is
        /// closed. The whole body may take four times as long.
        request_idle_timeout_ms: Duration = 30_000;

        /// Time that open requests may continue after SIGTERM; then they are cut. The default is
        /// below the 30 s of Kubernetes (`terminationGracePeriodSeconds`): the rest is for
        /// returning permits and closing the store.
        drain_timeout_ms: Duration = 25_000;
    }
}

fn check_claim(claim: &str) -> Result<(), String> {
    if claim.trim().is_empty() { Err("must be the name of a claim".to_owned()) } else { Ok(()) }
}
