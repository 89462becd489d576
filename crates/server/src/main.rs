//! The program `forebay`.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use forebay_server::cli::{Cli, Command, GateArgs};
use forebay_server::signals::Signals;
use forebay_server::{Gate, config, descriptors, logging, metrics};

/// Bad settings, as shells know it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Gate(args) => gate(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("forebay: {error:#}");
        ExitCode::FAILURE
    })
}

fn gate(args: GateArgs) -> anyhow::Result<ExitCode> {
    if args.example_config {
        std::io::stdout().write_all(config::GATE_EXAMPLE.as_bytes()).context("can't print")?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is no UTF-8 fits no setting, and is complained about there.
    let variables = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let config = match config::load_gate(args, variables) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("forebay: {error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    logging::init(&config.log).context("can't log")?;
    let descriptors = descriptors::raise_limit();
    let recorder = metrics::install().context("can't collect metrics")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("can't start threads")?;
    let second = runtime.block_on(async {
        let signals = Signals::catch().context("can't catch signals")?;
        let gate = Gate::start(config, recorder, descriptors).await?;
        anyhow::Ok(gate.run(signals).await)
    })?;
    // Tasks that are left are dropped with their sockets; none of them is waited for.
    runtime.shutdown_background();
    Ok(match second {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
