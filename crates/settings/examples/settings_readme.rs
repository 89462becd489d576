//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-settings --example settings_readme -- --help` prints the flags.

#![allow(clippy::print_stdout, reason = "an example prints its settings")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use forebay_settings::{
    CommandDeclaration, EffectiveSettings, SecretText, SettingFlags, SettingLayers, command_settings,
    example_file, settings,
};

settings! {
    /// The HTTP interface.
    HttpSection: "http" {
        /// Address for clients. The default is reachable from this machine only.
        listen: SocketAddr = "127.0.0.1:8080", flag("--listen", "IP:PORT");

        /// Time until an idle connection is closed.
        idle_timeout_ms: Duration = 30_000, bounds(100, 60_000);
    }
}

settings! {
    /// The database.
    DatabaseSection: "database" {
        /// URL of the database.
        url: Option<SecretText>, unset("none, data is in memory"), example("postgres://me@localhost/shop");
    }
}

command_settings! {
    /// Settings of `shop serve`.
    ServeSettings: "shop" "serve" {
        http: HttpSection,
        database: DatabaseSection,
    }
}

#[derive(Parser)]
struct ServeArgs {
    /// Config file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Prints a config file with every key, and exits.
    #[arg(long)]
    example_config: bool,
    #[command(flatten)]
    flags: SettingFlags<ServeSettings>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (args, command) = (ServeArgs::parse(), CommandDeclaration::of::<ServeSettings>());
    if args.example_config {
        print!("{}", example_file(command));
        return Ok(());
    }
    let mut layers = SettingLayers::new(command);
    if let Some(path) = args.config {
        layers.file(&path)?;
    }
    layers.environment(std::env::vars_os())?;
    args.flags.apply(&mut layers);
    print!("{}", EffectiveSettings::new(&layers, &[], |_, _| None));

    let settings = ServeSettings::read(&layers)?; // checked
    println!("listening on {}", settings.http.listen);
    println!("idle connections are closed after {:?}", settings.http.idle_timeout_ms);
    let database = settings.database.url.as_ref().map(SecretText::reveal); // to connect; never print it
    println!("data is in {}", if database.is_some() { "the database" } else { "memory" });
    Ok(())
}
