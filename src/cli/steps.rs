//! `trace run`, and one command for each step.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use console::style;

use super::{Done, shown};
use crate::config::{Config, ConfigFile};
use crate::progress::Display;
use crate::record::{Evaluation, read_json};
use crate::report::table::pass_rates;
use crate::steps::{Labels, Outcome, RunDir, Session, Step, StepError};

/// What a step works on.
#[derive(clap::Args)]
pub struct Args {
    /// A configuration file, or the directory of a run that was begun.
    run: PathBuf,
    /// Sets one key, such as `train.k=8`; can be given several times.
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE")]
    overrides: Vec<String>,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// What analysis works on.
#[derive(clap::Args)]
pub struct AnalyzeArgs {
    #[command(flatten)]
    args: Args,
    /// Take candidate_capabilities.json and the run_NN.json files that lie in RUN/capabilities, written by hand, by a language
    /// model or by the reference, instead of labels from the environment's process checks.
    #[arg(long)]
    labels: bool,
}

impl Args {
    /// The configuration: the file, or the run's own.
    fn config(&self) -> miette::Result<Config> {
        let file = if self.run.is_dir() { RunDir::new(&self.run).config() } else { self.run.clone() };
        let mut config = Config::load(&file, &self.overrides)?;
        if self.run.is_dir() {
            // A run may have been moved: it is where it is.
            config.run.dir = Some(self.run.clone());
        }
        Ok(config)
    }

    fn session(&self) -> miette::Result<Session> {
        let display = if self.quiet { Display::silent() } else { Display::default() };
        Session::open(self.config()?, Arc::new(display)).map_err(|error| explained(error, &self.run))
    }
}

/// The step's error, with the way on.
fn explained(error: StepError, run: &Path) -> miette::Report {
    match error {
        // These say what to do themselves.
        StepError::Resume(_) | StepError::NotYet { .. } | StepError::BuiltOn { .. } | StepError::Level { .. } => {
            shown(error)
        }
        error => {
            let help = format!("what was reached is kept; `trace run {}` goes on from there", run.display());
            miette::miette!(help = help, "{error}")
        }
    }
}

/// All steps.
pub(super) fn run_all(args: &Args) -> Done {
    let mut session = args.session()?;
    let (dir, name) = (session.dir.clone(), session.config.run.name.clone());
    let outcome = with_runtime(async {
        let outcome = session.run_all().await;
        session.close().await;
        outcome
    })?
    .map_err(|error| explained(error, &args.run))?;
    if outcome == Outcome::WasDone {
        eprintln!(
            "every step of {name} is done already; to run it anew, remove {} or set run.name",
            dir.root().display()
        );
    }
    closing(&dir)?;
    Ok(ExitCode::SUCCESS)
}

/// One step.
pub(super) fn run_step(step: Step, args: &Args) -> Done {
    step_with(step, args, Labels::FromChecks)
}

/// Step 1.
pub(super) fn run_analyze(args: &AnalyzeArgs) -> Done {
    step_with(Step::Analyze, &args.args, if args.labels { Labels::FromFiles } else { Labels::FromChecks })
}

fn step_with(step: Step, args: &Args, labels: Labels) -> Done {
    let mut session = args.session()?;
    let dir = session.dir.clone();
    with_runtime(async {
        let outcome = session.run_step(step, labels).await;
        session.close().await;
        outcome
    })?
    .map_err(|error| explained(error, &args.run))?;
    match step {
        Step::Evaluate => print_table(&dir)?,
        Step::Report => println!("{}", dir.report().display()),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn with_runtime<T>(work: impl Future<Output = T>) -> miette::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(shown)?;
    Ok(runtime.block_on(work))
}

fn print_table(dir: &RunDir) -> miette::Result<()> {
    let evaluation: Evaluation = read_json(&dir.evaluation(), "trace evaluate").map_err(shown)?;
    println!("{}", pass_rates(&evaluation, console::Term::stdout().is_term()));
    Ok(())
}

/// The end of a whole run: the table, the page, and what a person would do next.
fn closing(dir: &RunDir) -> miette::Result<()> {
    print_table(dir)?;
    println!("{} {}\n", style("report:").bold(), dir.report().display());
    println!("{}", style("next:").bold());
    let root = dir.root().display();
    for (command, what) in [
        (format!("trace log show {root} --arm trace --failed"), "read a conversation that still fails"),
        (format!("trace log ls {root} --summary"), "see what was sampled for what"),
        ("trace env play helpdesk".to_owned(), "be the agent yourself"),
    ] {
        println!("  {command:<56} {}", style(what).dim());
    }
    Ok(())
}
