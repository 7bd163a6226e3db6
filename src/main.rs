//! The `trace` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    trace::cli::main()
}
