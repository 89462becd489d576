//! The program `forebay`.

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
use forebay::status::Show;
use forebay::tail::Shape;
use forebay::terminal::Paint;
use forebay::{Gate, Serve, check, config, descriptors, logging, memory, metrics, status, tail};
use metrics_exporter_prometheus::PrometheusHandle;

/// Bad settings, as shells know it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    memory::be_frugal();
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Gate(args) => gate(args),
        Command::Serve(args) => serve(args),
        Command::Tail(args) => follow(args),
        Command::Status(args) => state(&args),
        Command::Check(args) => fitness(*args),
        Command::Config(args) => effective(*args),
        #[cfg(target_os = "linux")]
        Command::Dev(args) => try_it(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("forebay: {error:#}");
        ExitCode::FAILURE
    })
}

fn gate(args: GateArgs) -> anyhow::Result<ExitCode> {
    if args.example_config {
        return print(config::GATE_EXAMPLE);
    }
    let load = move || config::load_gate(args.clone(), variables());
    let config = match load() {
        Ok(config) => config,
        Err(error) => return Ok(unusable(&error)),
    };
    run(&config.log.clone(), async |recorder, descriptors, signals| {
        let gate = Gate::start(config, recorder, descriptors).await?.reloading(load);
        Ok(gate.run(signals).await)
    })
}

fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.example_config {
        return print(config::SERVE_EXAMPLE);
    }
    let load = move || config::load_serve(args.clone(), variables());
    let config = match load() {
        Ok(config) => config,
        Err(error) => return Ok(unusable(&error)),
    };
    run(&config.log.clone(), async |recorder, descriptors, signals| {
        let serve = Serve::start(config, recorder, descriptors).await?.reloading(load);
        Ok(serve.run(signals).await)
    })
}

fn follow(args: TailArgs) -> anyhow::Result<ExitCode> {
    let shape = Shape {
        table: args.table,
        clause: args.clause,
        columns: args.columns,
        params: args.params,
        since: args.from,
        secret: secret(&["FOREBAY_SERVE_SECRET", "ELECTRIC_SECRET"]),
    };
    look(async |signals| Ok(tail::tail(args.url, shape, args.json, signals).await?))
}

fn state(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let show = match (args.json, args.once) {
        (true, _) => Show::Json,
        (false, true) => Show::Once,
        (false, false) => Show::Live,
    };
    let secret = secret(&["FOREBAY_ADMIN_SECRET"]);
    look(async |signals| Ok(status::status(args.url.clone(), secret, show, signals).await?))
}

/// Runs a command that only looks, until it or a signal ends it.
fn look<F>(command: F) -> anyhow::Result<ExitCode>
where
    F: AsyncFnOnce(Signals) -> anyhow::Result<()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("can't start")?.block_on(async {
        command(Signals::catch().context("can't catch signals")?).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The first of these variables that says something.
fn secret(names: &[&str]) -> Option<SecretText> {
    let secret = names.iter().find_map(|name| std::env::var(name).ok().filter(|secret| !secret.is_empty()));
    secret.and_then(|secret| secret.parse().ok())
}

fn fitness(args: CheckArgs) -> anyhow::Result<ExitCode> {
    if args.serve.example_config {
        return print(config::SERVE_EXAMPLE);
    }
    let config = match config::load_serve(args.serve, variables()) {
        Ok(config) => config,
        Err(error) => return Ok(unusable(&error)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let paint = Paint::on(&std::io::stdout());
    // Told as it comes: what can't be reached takes its time.
    let told = |finding: &Finding| {
        if !args.json {
            let _closed = std::io::stdout().write_all(finding.line(paint).as_bytes());
        }
    };
    let findings = runtime.context("can't start")?.block_on(check::check(&config, told));
    let end = match args.json {
        true => serde_json::to_string_pretty(&findings).context("can't be JSON")?,
        false => findings.summary(),
    };
    print(&format!("{end}\n"))?;
    Ok(if findings.is_fit() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn effective(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let settings = match args.target.unwrap_or(ConfigTarget::Serve(args.serve)) {
        ConfigTarget::Gate(args) if args.example_config => return print(config::GATE_EXAMPLE),
        ConfigTarget::Serve(args) if args.example_config => return print(config::SERVE_EXAMPLE),
        ConfigTarget::Gate(args) => config::effective_gate(args, variables()),
        ConfigTarget::Serve(args) => config::effective_serve(args, variables()),
    };
    match settings {
        Ok(settings) => {
            print(&settings.to_string())?;
            Ok(settings.error.as_ref().map_or(ExitCode::SUCCESS, unusable))
        }
        Err(error) => Ok(unusable(&error)),
    }
}

#[cfg(target_os = "linux")]
fn try_it(args: forebay::cli::DevArgs) -> anyhow::Result<ExitCode> {
    use forebay::dev;
    if let Err(error) = dev::check(&args) {
        return Ok(unusable(&error));
    }
    run(&dev::log(&args), async |recorder, descriptors, signals| {
        Ok(dev::run(args, recorder, descriptors, signals).await?)
    })
}

/// Runs a command until a signal has ended it; a second one ends it at once, and is returned.
fn run<F>(log: &LogConfig, command: F) -> anyhow::Result<ExitCode>
where
    F: AsyncFnOnce(PrometheusHandle, Option<u64>, Signals) -> anyhow::Result<Option<&'static str>>,
{
    logging::init(log).context("can't log")?;
    let descriptors = descriptors::raise_limit();
    let recorder = metrics::install().context("can't collect metrics")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("can't start threads")?;
    let second = runtime.block_on(async {
        let signals = Signals::catch().context("can't catch signals")?;
        command(recorder, descriptors, signals).await
    })?;
    // Tasks that are left are dropped with their sockets; none of them is waited for.
    runtime.shutdown_background();
    Ok(match second {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes()).context("can't print")?;
    Ok(ExitCode::SUCCESS)
}

fn unusable(error: &ConfigError) -> ExitCode {
    eprintln!("forebay: {error}");
    ExitCode::from(USAGE)
}

/// What is no UTF-8 fits no setting, and is complained about there.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
}
