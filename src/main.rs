//! The unglue command line: compiles trunks to bundles, runs, verifies and reports on them.

mod cli;
mod compile;
mod error;
mod source;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Compile(args) => compile::run(args),
        Command::Run(_) | Command::Verify(_) | Command::Report(_) => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
