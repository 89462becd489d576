//! Command line of `forebay`. The flags of `serve` and `gate` override keys of the config file,
//! except `--config` and `--example-config`. The declarations of the settings (`config/sections/`)
//! have their names and help texts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use forebay_settings::{SettingFlags, Value};

use crate::client::Endpoint;
use crate::config::{GateSettings, SecretText, ServeSettings};
use crate::tail::TailStart;

/// Serves live Postgres tables over HTTP, or limits the streams of an HTTP service.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a reverse proxy that limits the streams of an HTTP service, in total and for each user
    Gate(GateArgs),
    /// Replicates a Postgres database, and serves its tables and their changes to HTTP clients
    Serve(ServeArgs),
    /// Prints the rows of a table and then its changes, from a running `forebay serve`
    #[command(after_long_help = TAIL_HELP, after_help = "--help has examples.")]
    Tail(TailArgs),
    /// Shows the state of a running instance, live on a terminal
    #[command(after_long_help = STATUS_HELP, after_help = "")]
    Status(StatusArgs),
    /// Checks whether the database, Redis and this machine are ready for `forebay serve`, and
    /// prints what to change
    #[command(after_long_help = CHECK_HELP, after_help = "")]
    Check(Box<CheckArgs>),
    /// Prints every effective setting and its origin; secrets are hidden
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Config(Box<ConfigArgs>),
    /// Runs a demo on this machine: a temporary Postgres with sample data that changes, the server
    /// and its dashboard
    #[cfg(target_os = "linux")]
    // Linux only: there, the kernel ends Postgres with this process, even after SIGKILL.
    Dev(DevArgs),
}

const GATE_HELP: &str = "\
Examples:
  forebay gate --upstream http://127.0.0.1:8000
      Each request holds one of 10,000 permits until its response ends.

  forebay gate --upstream http://127.0.0.1:8000 --stream-route 'POST /api/v1/stream' \\
      --redis redis://127.0.0.1:6379 --total 5000
      Only requests of that route take permits. All gates with the same Redis share 5,000 permits.

Settings come from the config file (--config), the environment and the flags. Variables override the file, and \
flags override variables. Each key of the file is also a variable: `listen` in [gate] is FOREBAY_GATE_LISTEN. Other \
users of this machine can see flags: put a URL with a password into FOREBAY_REDIS_URL or into the file. \
--example-config prints a file with all keys, their defaults and the reasons.

SIGTERM or SIGINT: new streams are refused, and open streams may continue for the drain timeout. A second signal \
ends the process at once. SIGHUP: limits, secrets, keys, the certificate and the log filter are reloaded; the log \
lists the changed settings that need a restart. The admin address has a dashboard at /, and /healthz, /readyz, \
/metrics and /v1/status.";

/// Flags of `forebay gate`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = GATE_HELP, after_help = "--help has examples.")]
pub struct GateArgs {
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print a config file with every key, and exit
    #[arg(long)]
    pub example_config: bool,
    /// Flags of settings.
    #[command(flatten)]
    pub(crate) flags: SettingFlags<GateSettings>,
}

const SERVE_HELP: &str = "\
Examples:
  DATABASE_URL=postgres://postgres:password@localhost:5432/shop forebay serve
      Replicates that database. Clients read a table and its changes from http://127.0.0.1:3000:
      curl 'http://127.0.0.1:3000/v1/shape?table=products&offset=-1'

  FOREBAY_SERVE_SECRET=... DATABASE_URL=... forebay serve --listen 0.0.0.0:3000 \\
      --storage /var/lib/forebay
      Also serves clients on other machines, if they send the secret as `?secret=`.

The database needs wal_level=logical. Its user needs REPLICATION (ALTER ROLE name REPLICATION) and must own the \
tables. Forebay creates a slot and a publication. While Forebay does not run, the slot retains WAL. Drop the slot \
if you no longer need it: SELECT pg_drop_replication_slot('forebay'). `forebay check` verifies a database and \
prints what to change.

Settings come from the config file (--config), the environment and the flags. Variables override the file, and \
flags override variables. Each key of the file is also a variable: `listen` in [serve] is FOREBAY_SERVE_LISTEN. \
DATABASE_URL is used if FOREBAY_DATABASE_URL is not set. Electric's variables are accepted, too. `forebay config` \
prints the effective settings. Other users of this machine can see flags: put a URL with a password into a variable \
or into the file. --example-config prints a file with all keys, their defaults and the reasons.

SIGTERM or SIGINT: new streams are refused, open streams end, and all received changes are made durable. A second \
signal ends the process at once. SIGHUP: limits, secrets, keys, the certificate and the log filter are reloaded; \
the log lists the changed settings that need a restart. A connection to the database that has failed is retried at \
once, with the password that its file has now. The admin address has a dashboard at /, and /healthz, \
/readyz, /metrics and /v1/status.";

/// Flags of `forebay serve`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = SERVE_HELP, after_help = "--help has examples.")]
pub struct ServeArgs {
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print a config file with every key, and exit
    #[arg(long)]
    pub example_config: bool,
    /// Flags of settings.
    #[command(flatten)]
    pub(crate) flags: SettingFlags<ServeSettings>,
}

impl ServeArgs {
    /// Sets the flag of a setting, such as `--total`.
    ///
    /// # Panics
    /// Panics if no setting has this flag.
    #[must_use]
    pub fn with_flag(mut self, flag: &str, value: impl Into<Value>) -> ServeArgs {
        self.flags.set(flag, value);
        self
    }
}

const TAIL_HELP: &str = "\
Examples:
  forebay tail orders
  forebay tail shop.orders --where 'status = $1 AND total > 100' --param 1=open \\
      --columns id,status,total
  forebay tail orders --from now --json | jq 'select(.key) | .value'

Prints one line for each row and each change. On a terminal, the color shows the operation: insert, update or \
delete. With --json, each line is a message of the protocol. Notes (a lost connection, a shape that starts over) \
are printed to standard error. After a lost connection, `tail` reconnects; no change is missed or printed twice. \
Ctrl-C or a closed output ends it. If the shape is new, the server creates it and publishes its table.

The secret of the server, if it has one, is read from FOREBAY_SERVE_SECRET or ELECTRIC_SECRET. With https, \
SSL_CERT_FILE may name a file with your own certificate authority.";

/// Flags of `forebay tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Table, as `name` or `schema.name`
    pub table: String,
    /// WHERE clause for the rows, such as 'total > 100'
    #[arg(long = "where", value_name = "CLAUSE")]
    pub clause: Option<String>,
    /// Columns, separated by commas; they must include the primary key
    #[arg(long, value_name = "NAMES")]
    pub columns: Option<String>,
    /// Value of $N in the clause; may be repeated
    #[arg(long = "param", value_name = "N=VALUE", value_parser = param)]
    pub params: Vec<(u32, String)>,
    /// Where to start: `start` with all rows, `now` with the next change
    #[arg(long, value_enum, default_value = "start")]
    pub from: TailStart,
    /// Print each message as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// URL of `forebay serve`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000")]
    pub url: Endpoint,
}

fn param(text: &str) -> Result<(u32, String), String> {
    let (number, value) = text.split_once('=').ok_or("expected N=VALUE, such as 1=open")?;
    let number =
        number.trim_start_matches('$').parse().map_err(|_| "the text before = must be the number of a $N")?;
    Ok((number, value.to_owned()))
}

const STATUS_HELP: &str = "\
On a terminal, the output is refreshed every second until Ctrl-C; otherwise it is printed once. The secret of the \
admin address, if it has one, is read from FOREBAY_ADMIN_SECRET. The default admin address of a gate is \
http://127.0.0.1:8081.

With --streams, the oldest 1,000 open streams of all instances that share a Redis are printed: thread id, user (hashed), \
instance, route, and since when. To end one: curl -X POST -H \"Authorization: Bearer $FOREBAY_ADMIN_SECRET\" \
'http://127.0.0.1:3001/v1/streams/end?thread_id=ID'.";

/// Flags of `forebay status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// URL of the admin address of the instance
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3001")]
    pub url: Endpoint,
    /// Print the whole status as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the status once, even on a terminal
    #[arg(long)]
    pub once: bool,
    /// Print the open streams of all instances instead, once
    #[arg(long)]
    pub streams: bool,
}

const CHECK_HELP: &str = "\
Takes the flags of `forebay serve`, and reads the same file and environment. Each line is ok, warn or fail, with \
what to do. Nothing is changed in the database or in Redis; one file is written to the storage directory \
and removed. Exit code: 0 if no check failed, 1 if one failed, 2 if \
the settings are invalid.";

/// Flags of `forebay check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Print one JSON object, for programs
    #[arg(long)]
    pub json: bool,
    /// Flags of `forebay serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

const CONFIG_HELP: &str = "\
Takes the flags of `forebay serve`, or after `gate` those of `forebay gate`, and reads the same file and \
environment. Exit code: 0 if the settings are valid; otherwise 2, and the reason is printed.";

/// Flags of `forebay config`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConfigArgs {
    /// Command whose settings are printed; default `forebay serve`.
    #[command(subcommand)]
    pub target: Option<ConfigTarget>,
    /// Flags of `forebay serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Command whose settings are printed.
#[derive(Debug, Subcommand)]
pub enum ConfigTarget {
    /// Settings of `forebay serve`
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Serve(ServeArgs),
    /// Settings of `forebay gate`
    #[command(after_long_help = CONFIG_HELP, after_help = "")]
    Gate(GateArgs),
}

const DEV_HELP: &str = "\
Examples:
  forebay dev
      Starts a temporary Postgres with sample orders that change, and serves it. Ctrl-C removes
      everything.

  forebay dev --database-url postgres://user@localhost/name
      Serves your own database. It creates a temporary slot and a publication there, and drops
      both at the end. A table that a client requests is set to REPLICA IDENTITY FULL, and
      stays so. The database needs wal_level=logical.

All addresses are on this machine only. If a default port is in use, the next free one is taken. Variables of the \
shell (FOREBAY_..., DATABASE_URL) are for `forebay serve`, and are ignored here.";

/// Flags of `forebay dev`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = DEV_HELP, after_help = "--help has examples.")]
pub struct DevArgs {
    /// URL of your own database, instead of a temporary one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<SecretText>,
    /// URL of the Redis that instances share [default: none, the limits are for this instance
    /// alone]
    #[arg(long, value_name = "URL")]
    pub redis: Option<SecretText>,
    /// Address for clients [default: 127.0.0.1:3000, or the next free port]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// Address of the dashboard [default: 127.0.0.1:3001, or the next free port]
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<String>,
    /// Minimum log level: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}
