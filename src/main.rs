//! The unglue command line: compiles trunks to bundles, runs, verifies, compares and explains them.

mod bench;
#[cfg(feature = "compile")]
mod bisect;
mod cli;
#[cfg(feature = "compile")]
mod compile;
mod device;
mod diff;
mod emulated;
mod error;
mod explain;
#[cfg(feature = "compile")]
mod fuse;
mod limits;
mod output;
mod report;
mod rules;
mod run;
mod source;
mod tap;
mod verify;
#[cfg(feature = "compile")]
mod wish;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        #[cfg(feature = "compile")]
        Command::Compile(args) => compile::run(args),
        #[cfg(feature = "compile")]
        Command::Bisect(args) => bisect::run(args),
        Command::Report(args) => report::run(args),
        Command::Run(args) => run::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Rules(args) => rules::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
