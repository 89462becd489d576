//! What may be said on the command line. Each flag is a setting of the file, and stronger than it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use toml::Value;

use crate::client::Endpoint;
use crate::config::{GateFile, Hidden, Layers, ServeFile, Shape};
use crate::tail::TailStart;

/// Manages every connection between clients and a service.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What there is to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Stands before an HTTP service and admits streams to it, up to a limit in all and for each user
    Gate(GateArgs),
    /// Follows a Postgres database and streams shapes of it to HTTP clients
    Serve(ServeArgs),
    /// Prints the rows of a table and then its changes as they come, from a running `forebay serve`
    #[command(after_long_help = TAIL_HELP, after_help = "--help has examples.")]
    Tail(TailArgs),
    /// Shows the state of a running instance, live on a terminal
    #[command(after_long_help = STATUS_HELP, after_help = "")]
    Status(StatusArgs),
    /// Looks whether the database, Redis and this machine are fit for `forebay serve`, and says what to do
    #[command(after_long_help = CHECK_HELP, after_help = "")]
    Check(Box<CheckArgs>),
    /// Prints every setting as it holds, and where it came from; secrets are hidden
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Config(Box<ConfigArgs>),
    /// Tries it all on this machine: a throwaway Postgres with a sample that lives, the server and its dashboard
    #[cfg(target_os = "linux")]
    // a Postgres that ends with its owner, however that ends, is one of Linux
    Dev(DevArgs),
}

const GATE_HELP: &str = "\
Examples:
  forebay gate --upstream http://127.0.0.1:8000
      Every request takes one of 10,000 permits while it runs.

  forebay gate --upstream http://127.0.0.1:8000 --stream-route 'POST /api/v1/stream' \\
      --redis redis://127.0.0.1:6379 --total 5000
      Only that route takes permits, and all gates at that Redis share 5,000 of them.

Settings come from the file (--config), then from the environment, then from the flags; the last one counts. Each key
of the file is a variable: `listen` in [gate] is FOREBAY_GATE_LISTEN. A password in a URL is seen by everybody on this
machine when it is in a flag; use FOREBAY_REDIS_URL or the file. --example-config prints a file with all keys, their defaults
and reasons.

SIGTERM or SIGINT: new streams are refused, open ones may go on for the drain timeout; a second signal ends at once.
SIGHUP: limits, secrets, keys, the certificate and the log's filter are read again; the log names what needs a restart.
Operators find a page at /, and /healthz, /readyz, /metrics and /v1/status, on the admin address.";

/// Flags of `forebay gate`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = GATE_HELP, after_help = "--help has examples.")]
pub struct GateArgs {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Prints a config file with every key, and ends
    #[arg(long)]
    pub example_config: bool,
    /// The service behind the gate, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// Where clients connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// A route whose requests take a permit: 'METHOD PATH' or 'METHOD PATH CLASS', with * for one segment and ** for the
    /// rest; may be repeated [default: every request takes one]
    #[arg(long = "stream-route", value_name = "ROUTE")]
    pub stream_routes: Vec<String>,
    /// Streams in all, over all gates at the same Redis [default: 10000]
    #[arg(long, value_name = "N")]
    pub total: Option<u32>,
    /// Streams of one user, over all gates at the same Redis [default: 3]
    #[arg(long, value_name = "N")]
    pub per_user: Option<u32>,
    /// Where gates meet [default: none, this one counts alone]
    #[arg(long, value_name = "URL")]
    pub redis: Option<Hidden>,
    /// A proxy, or a network of them, whose word about clients counts; may be repeated [default: none]
    #[arg(long = "trusted-proxy", value_name = "IP[/BITS]")]
    pub trusted_proxies: Vec<String>,
    /// How long open streams may go on after SIGTERM [default: 25000]
    #[arg(long, value_name = "MS")]
    pub drain_timeout_ms: Option<u32>,
    /// Where operators look, or `off` [default: 127.0.0.1:8081]
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<String>,
    /// Allows an admin address beyond this machine
    #[arg(long)]
    pub insecure_admin: bool,
    /// text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// The least level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

impl GateArgs {
    /// Adds what was said to what the file and the environment say.
    pub(crate) fn apply(self, layers: &mut Layers<GateFile>) {
        let redis = self.redis.map(|url| url.reveal().to_owned());
        let texts = [
            ("--upstream", "gate", "upstream", self.upstream),
            ("--listen", "gate", "listen", self.listen),
            ("--redis", "redis", "url", redis),
            ("--admin", "admin", "listen", self.admin),
            ("--log-format", "log", "format", self.log_format),
            ("--log", "log", "filter", self.log),
        ];
        let numbers = [
            ("--total", "admission", "total", self.total),
            ("--per-user", "admission", "per_user", self.per_user),
            ("--drain-timeout-ms", "gate", "drain_timeout_ms", self.drain_timeout_ms),
        ];
        let lists = [
            ("--stream-route", "stream_routes", self.stream_routes),
            ("--trusted-proxy", "trusted_proxies", self.trusted_proxies),
        ];
        for (flag, key, values) in lists {
            if !values.is_empty() {
                layers.flag(flag, "gate", key, Value::Array(values.into_iter().map(Value::String).collect()));
            }
        }
        add(layers, texts);
        add(layers, numbers);
        add(layers, [("--insecure-admin", "admin", "insecure", self.insecure_admin.then_some(true))]);
    }
}

const SERVE_HELP: &str = "\
Examples:
  DATABASE_URL=postgres://postgres:password@localhost:5432/shop forebay serve
      Follows that database. Clients get a table and its changes from http://127.0.0.1:3000:
      curl 'http://127.0.0.1:3000/v1/shape?table=products&offset=-1'

  FOREBAY_SERVE_SECRET=... DATABASE_URL=... forebay serve --listen 0.0.0.0:3000 --storage /var/lib/forebay
      Serves other machines, too, if they show the secret as `?secret=`.

The database needs wal_level=logical, and a user that may replicate (ALTER ROLE name REPLICATION) and owns the tables. A
slot and a publication are made in it. The slot keeps the log while nobody follows: drop it when you are done, with
SELECT pg_drop_replication_slot('forebay'). `forebay check` says whether a database is fit, and what to do about it.

Settings come from the file (--config), then from the environment, then from the flags; the last one counts. Each key
of the file is a variable: `listen` in [serve] is FOREBAY_SERVE_LISTEN. DATABASE_URL is FOREBAY_DATABASE_URL, if that is not
set, and Electric's own variables are understood, too; `forebay config` shows what holds. A password in a URL is seen by everybody on this machine when it is in a flag; use the variables or the file.
--example-config prints a file with all keys, their defaults and reasons.

SIGTERM or SIGINT: new streams are refused, open ones end, and what came from the database is made durable; a second
signal ends at once. SIGHUP: limits, secrets, keys, the certificate and the log's filter are read again; the log names what
needs a restart. Operators find a page at /, and /healthz, /readyz, /metrics and /v1/status, on the admin address.";

/// Flags of `forebay serve`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = SERVE_HELP, after_help = "--help has examples.")]
pub struct ServeArgs {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Prints a config file with every key, and ends
    #[arg(long)]
    pub example_config: bool,
    /// The database to follow, such as postgres://user@localhost/name. Others on this machine see flags: with a password in
    /// it, use the variable DATABASE_URL
    #[arg(long, value_name = "URL")]
    pub database_url: Option<Hidden>,
    /// The replication slot; instances with the same one take turns [default: forebay]
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// The publication [default: forebay]
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,
    /// Where shapes are kept [default: ./forebay-data]
    #[arg(long, value_name = "DIR")]
    pub storage: Option<String>,
    /// Where clients connect [default: 127.0.0.1:3000]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// Serves whoever comes, beyond this machine too, without a secret (FOREBAY_SERVE_SECRET)
    #[arg(long)]
    pub insecure: bool,
    /// Allows clients to delete shapes
    #[arg(long)]
    pub allow_delete: bool,
    /// Streams in all, over all instances at the same Redis [default: 10000]
    #[arg(long, value_name = "N")]
    pub total: Option<u32>,
    /// Streams of one user, over all instances at the same Redis [default: 100]
    #[arg(long, value_name = "N")]
    pub per_user: Option<u32>,
    /// Where instances meet [default: none, this one counts alone]
    #[arg(long, value_name = "URL")]
    pub redis: Option<Hidden>,
    /// Where operators look, or `off` [default: 127.0.0.1:3001]
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<String>,
    /// Allows an admin address beyond this machine
    #[arg(long)]
    pub insecure_admin: bool,
    /// text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// The least level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

impl ServeArgs {
    /// Adds what was said to what the file and the environment say.
    pub(crate) fn apply(self, layers: &mut Layers<ServeFile>) {
        let text = |hidden: Option<Hidden>| hidden.map(|text| text.reveal().to_owned());
        let texts = [
            ("--database-url", "database", "url", text(self.database_url)),
            ("--slot", "database", "slot", self.slot),
            ("--publication", "database", "publication", self.publication),
            ("--storage", "storage", "dir", self.storage),
            ("--listen", "serve", "listen", self.listen),
            ("--redis", "redis", "url", text(self.redis)),
            ("--admin", "admin", "listen", self.admin),
            ("--log-format", "log", "format", self.log_format),
            ("--log", "log", "filter", self.log),
        ];
        let numbers = [
            ("--total", "admission", "total", self.total),
            ("--per-user", "admission", "per_user", self.per_user),
        ];
        let switches = [
            ("--insecure", "serve", "insecure", self.insecure.then_some(true)),
            ("--allow-delete", "serve", "allow_delete", self.allow_delete.then_some(true)),
            ("--insecure-admin", "admin", "insecure", self.insecure_admin.then_some(true)),
        ];
        add(layers, texts);
        add(layers, numbers);
        add(layers, switches);
    }
}

const TAIL_HELP: &str = "\
Examples:
  forebay tail orders
  forebay tail shop.orders --where 'status = $1 AND total > 100' --param 1=open --columns id,status,total
  forebay tail orders --from now --json | jq 'select(.key) | .value'

One line for each row and change; on a terminal coloured by what happened: insert, update, delete. With --json each line is a message \
of the protocol. What happens meanwhile (a lost connection, a shape that starts over) is told on standard error. A lost \
connection is made again, and nothing is missed or printed twice. Ctrl-C and a closed pipe end it.

The server's secret, if it has one, comes from FOREBAY_SERVE_SECRET. With https, SSL_CERT_FILE may name an authority of your own.";

/// Flags of `forebay tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// The table, as `name` or `schema.name`
    pub table: String,
    /// Only rows for which this holds, such as 'total > 100'
    #[arg(long = "where", value_name = "CLAUSE")]
    pub clause: Option<String>,
    /// Only these columns, parted by commas; the primary key must be among them
    #[arg(long, value_name = "NAMES")]
    pub columns: Option<String>,
    /// The value of $N in the clause; may be repeated
    #[arg(long = "param", value_name = "N=VALUE", value_parser = param)]
    pub params: Vec<(u32, String)>,
    /// Where to begin: `start` with all rows, `now` with the next change
    #[arg(long, value_enum, default_value = "start")]
    pub from: TailStart,
    /// Prints each message as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// Where `forebay serve` is
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000")]
    pub url: Endpoint,
}

fn param(text: &str) -> Result<(u32, String), String> {
    let (number, value) = text.split_once('=').ok_or("write it as N=VALUE, such as 1=open")?;
    let number =
        number.trim_start_matches('$').parse().map_err(|_| "the number before = must be that of a $N")?;
    Ok((number, value.to_owned()))
}

const STATUS_HELP: &str = "\
On a terminal it is drawn again each second until Ctrl-C; otherwise it is printed once. The admin address's secret, if it has one, \
comes from FOREBAY_ADMIN_SECRET. A gate's address is http://127.0.0.1:8081.";

/// Flags of `forebay status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The admin address of the instance
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3001")]
    pub url: Endpoint,
    /// Prints all that the instance tells, as JSON
    #[arg(long)]
    pub json: bool,
    /// Prints it once, on a terminal, too
    #[arg(long)]
    pub once: bool,
}

const CHECK_HELP: &str = "\
Takes the flags of `forebay serve`, and reads the same file and environment. Each line is ok, warn or fail, with what to do. \
Nothing is changed in the database or in Redis. Ends with 0 if nothing failed, with 1 if something did, with 2 if the settings \
can't be used.";

/// Flags of `forebay check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Prints one JSON object, for programs
    #[arg(long)]
    pub json: bool,
    /// As `forebay serve` takes them.
    #[command(flatten)]
    pub serve: ServeArgs,
}

const CONFIG_HELP: &str = "\
Takes the flags of `forebay serve`, or after `gate` those of `forebay gate`, and reads the same file and environment. \
Ends with 2 if the command couldn't start with these settings, and says why.";

/// Flags of `forebay config`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConfigArgs {
    /// Whose settings; those of `forebay serve` if nothing is said.
    #[command(subcommand)]
    pub of: Option<ConfigOf>,
    /// As `forebay serve` takes them.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Whose settings are printed.
#[derive(Debug, Subcommand)]
pub enum ConfigOf {
    /// The settings of `forebay serve`
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Serve(ServeArgs),
    /// The settings of `forebay gate`
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Gate(GateArgs),
}

const DEV_HELP: &str = "\
Examples:
  forebay dev
      Starts a throwaway Postgres with orders that come in and move on, and serves it. Ctrl-C leaves nothing behind.

  forebay dev --database-url postgres://user@localhost/name
      Serves your own database. In it, a temporary slot and a publication are made, which go at the end; and a table that
      somebody asks for is set to REPLICA IDENTITY FULL, as changes can't be told otherwise. It needs wal_level=logical.

Everything is on this machine only. Ports that are taken are passed over, unless you name them. The shell's variables
(FOREBAY_..., DATABASE_URL) are for `forebay serve`, and don't count here.";

/// Flags of `forebay dev`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = DEV_HELP, after_help = "--help has examples.")]
pub struct DevArgs {
    /// Your own database instead of a throwaway one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<Hidden>,
    /// Where instances meet [default: none, this one counts alone]
    #[arg(long, value_name = "URL")]
    pub redis: Option<Hidden>,
    /// Where clients connect [default: 127.0.0.1:3000, or the next free port]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// Where the dashboard is [default: 127.0.0.1:3001, or the next free port]
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<String>,
    /// The least level that is logged: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

/// Adds those of the flags that were said.
fn add<F: Shape, V: Into<Value>, const N: usize>(
    layers: &mut Layers<F>,
    flags: [(&str, &str, &str, Option<V>); N],
) {
    for (flag, section, key, value) in flags {
        if let Some(value) = value {
            layers.flag(flag, section, key, value);
        }
    }
}
