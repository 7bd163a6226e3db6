//! `trace compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Done, shown};
use crate::compare::{CompareError, Run, markdown};

/// What is compared.
#[derive(clap::Args)]
pub struct Args {
    /// Run directories, such as runs/reproduce-*.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Done {
    let runs: Result<Vec<Run>, CompareError> = args.runs.iter().map(|dir| Run::read(dir)).collect();
    let runs = runs.map_err(shown)?;
    if runs.iter().all(|run| run.evaluation.is_none()) {
        return Err(shown(CompareError::NothingDone));
    }
    print!("{}", markdown(&runs));
    Ok(ExitCode::SUCCESS)
}
