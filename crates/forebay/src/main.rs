//! Program `forebay`: parses the command line, and runs the command.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use forebay::check::Finding;
use forebay::cli::{
    CheckArgs, Cli, Command, ConfigArgs, ConfigTarget, GateArgs, ServeArgs, StatusArgs, TailArgs,
};
use forebay::config::{ConfigError, SecretText};
use forebay::logging::LogConfig;
use forebay::signals::Signals;
use forebay::status::StatusFormat;
use forebay::tail::TailShape;
use forebay::terminal::Paint;
use forebay::{
    GateServer, ServerEnd, ShapeServer, check, config, descriptors, logging, memory, metrics, status, tail,
};
use metrics_exporter_prometheus::PrometheusHandle;

/// Exit code for invalid settings, as shells use it for wrong usage.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    memory::tune_allocator();
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Gate(args) => run_gate(args),
        Command::Serve(args) => run_serve(args),
        Command::Tail(args) => run_tail(args),
        Command::Status(args) => run_status(&args),
        Command::Check(args) => run_check(*args),
        Command::Config(args) => run_config(*args),
        #[cfg(target_os = "linux")]
        Command::Dev(args) => run_dev(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("forebay: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_gate(args: GateArgs) -> anyhow::Result<ExitCode> {
    if args.example_config {
        return print(&config::gate_example());
    }
    let load = move || config::load_gate(args.clone(), environment());
    let config = match load() {
        Ok(config) => config,
        Err(error) => return Ok(config_failure(&error)),
    };
    run_server(&config.log.clone(), async |recorder, descriptors, signals| {
        let gate = GateServer::start(config, recorder, descriptors).await?.reload_with(load);
        Ok(gate.run(signals).await)
    })
}

fn run_serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.example_config {
        return print(&config::serve_example());
    }
    let load = move || config::load_serve(args.clone(), environment());
    let config = match load() {
        Ok(config) => config,
        Err(error) => return Ok(config_failure(&error)),
    };
    run_server(&config.log.clone(), async |recorder, descriptors, signals| {
        let serve = ShapeServer::start(config, recorder, descriptors).await?.reload_with(load);
        Ok(serve.run(signals).await)
    })
}

fn run_tail(args: TailArgs) -> anyhow::Result<ExitCode> {
    let shape = TailShape {
        table: args.table,
        clause: args.clause,
        columns: args.columns,
        params: args.params,
        start: args.from,
        secret: secret_from_env(&["FOREBAY_SERVE_SECRET", "ELECTRIC_SECRET"]),
    };
    run_client(async |signals| Ok(tail::tail(args.url, shape, args.json, signals).await?))
}

fn run_status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let format = match (args.json, args.once) {
        (true, _) => StatusFormat::Json,
        (false, true) => StatusFormat::Once,
        (false, false) => StatusFormat::Live,
    };
    let secret = secret_from_env(&["FOREBAY_ADMIN_SECRET"]);
    if args.streams {
        return run_client(async |signals| {
            Ok(status::streams(args.url.clone(), secret, format, signals).await?)
        });
    }
    run_client(async |signals| Ok(status::status(args.url.clone(), secret, format, signals).await?))
}

/// Runs a command that queries an instance, until it ends or a signal ends it.
fn run_client<F>(command: F) -> anyhow::Result<ExitCode>
where
    F: AsyncFnOnce(Signals) -> anyhow::Result<()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("can't start")?.block_on(async {
        command(Signals::catch().context("can't catch signals")?).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the value of the first of these variables that isn't empty.
fn secret_from_env(names: &[&str]) -> Option<SecretText> {
    let secret = names.iter().find_map(|name| std::env::var(name).ok().filter(|secret| !secret.is_empty()));
    secret.and_then(|secret| secret.parse().ok())
}

fn run_check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    if args.serve.example_config {
        return print(&config::serve_example());
    }
    let config = match config::load_serve(args.serve, environment()) {
        Ok(config) => config,
        Err(error) => return Ok(config_failure(&error)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let paint = Paint::on(&std::io::stdout());
    // Printed one by one, because an unreachable server takes time.
    let print_finding = |finding: &Finding| {
        if !args.json {
            let _closed = std::io::stdout().write_all(finding.line(paint).as_bytes());
        }
    };
    let findings = runtime.context("can't start")?.block_on(check::check(&config, print_finding));
    let summary = match args.json {
        true => serde_json::to_string_pretty(&findings).context("can't encode the findings as JSON")?,
        false => findings.summary(),
    };
    print(&format!("{summary}\n"))?;
    Ok(if findings.is_fit() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_config(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let config = match args.target.unwrap_or(ConfigTarget::Serve(args.serve)) {
        ConfigTarget::Gate(args) if args.example_config => return print(&config::gate_example()),
        ConfigTarget::Serve(args) if args.example_config => return print(&config::serve_example()),
        ConfigTarget::Gate(args) => config::effective_gate(args, environment()),
        ConfigTarget::Serve(args) => config::effective_serve(args, environment()),
    };
    match config {
        Ok(config) => {
            print(&config.settings.to_string())?;
            Ok(config.error.as_ref().map_or(ExitCode::SUCCESS, config_failure))
        }
        Err(error) => Ok(config_failure(&error)),
    }
}

#[cfg(target_os = "linux")]
fn run_dev(args: forebay::cli::DevArgs) -> anyhow::Result<ExitCode> {
    use forebay::dev;
    if let Err(error) = dev::check(&args) {
        return Ok(config_failure(&error));
    }
    run_server(&dev::log(&args), async |recorder, descriptors, signals| {
        Ok(dev::run(args, recorder, descriptors, signals).await?)
    })
}

/// Runs a server to its end. The exit code is 0 only if a first signal has ended it.
fn run_server<F>(log: &LogConfig, command: F) -> anyhow::Result<ExitCode>
where
    F: AsyncFnOnce(PrometheusHandle, Option<u64>, Signals) -> anyhow::Result<ServerEnd>,
{
    logging::init(log).context("can't log")?;
    let descriptors = descriptors::raise_limit();
    let recorder = metrics::install().context("can't collect metrics")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("can't start threads")?;
    let ended = runtime.block_on(async {
        let signals = Signals::catch().context("can't catch signals")?;
        command(recorder, descriptors, signals).await
    })?;
    // Remaining tasks are dropped with their sockets, without waiting.
    runtime.shutdown_background();
    Ok(match ended {
        ServerEnd::Stopped => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes()).context("can't print")?;
    Ok(ExitCode::SUCCESS)
}

fn config_failure(error: &ConfigError) -> ExitCode {
    eprintln!("forebay: {error}");
    ExitCode::from(EXIT_USAGE)
}

/// Returns the environment variables. Text that isn't UTF-8 is replaced, and then fails the check
/// of its setting.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
}
