//! The command line: one command, one file. Each turns arguments into a call of the library and its result into text.
//!
//! Exit codes: 0 is success and nothing else is; 1 is work that failed or a check that did not pass; 2 is a command line
//! or a configuration that cannot be used. What a command found goes to standard output, what a person should know
//! meanwhile (progress, warnings, errors) to standard error.

mod compare;
mod config;
mod doctor;
mod env;
mod log;
mod play;
mod pretrain;
mod steps;
mod transcript;
mod tuned;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::ConfigError;
use crate::steps::Step;

/// Turns an agent's recurrent failures into capability-targeted training environments, adapters, and a gated composition.
///
/// TRACE runs in four steps: the frozen base policy acts in the target (rollout) and its failures are contrasted with
/// its successes (analyze); every capability that failures lack gets an environment of its own (synthesize) and an
/// adapter trained there by GRPO (train); gates then choose an adapter, or none, for every token (compose). `evaluate`
/// compares the result with the base and with baselines on test tasks, and `report` draws it.
#[derive(Parser)]
#[command(name = "trace", version, propagate_version = true, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  trace run configs/quickstart.toml            all steps that are not done yet; a second call goes on where it was
  trace env play helpdesk --seed 3             be the agent yourself
  trace log show runs/quickstart evaluate      read a conversation that the policy had
  trace config show configs/quickstart.toml    every setting with its documentation

Exit code 0 is success; 1 is work that failed or a check that did not pass; 2 is a command line or configuration that
cannot be used. RUST_LOG=info (or debug) says more on the way.";

#[derive(Subcommand)]
enum Command {
    /// Does every step of a run that is not done yet.
    ///
    /// A run that was stopped, or killed, goes on where it was; one that is done says so. It ends with the table of pass rates
    /// and the path of its report.
    Run(steps::Args),
    /// Step 0: the frozen base policy acts in the target, on train tasks.
    Rollout(steps::Args),
    /// Step 1: contrasts failures with successes and keeps the capabilities that failures lack.
    ///
    /// Writes RUN/capabilities: the candidates, the label runs, the kept ones, and the measures of all.
    Analyze(steps::AnalyzeArgs),
    /// Step 2: an environment for each kept capability, audited and calibrated.
    ///
    /// Takes RUN/environments/CAPABILITY.py where it is there, and the library's otherwise.
    Synthesize(steps::Args),
    /// Step 3: an adapter for each capability, by GRPO in its environment.
    ///
    /// Every few iterations the adapter is evaluated on dev tasks; the best one is kept, in RUN/adapters/CAPABILITY, in PEFT's
    /// format.
    Train(steps::Args),
    /// Step 4: gates that choose an adapter, or none, for every token.
    Compose(steps::Args),
    /// Trains what TRACE is compared with: the [[baseline]] tables of the configuration.
    Baseline(steps::Args),
    /// Runs all arms on the same test tasks and prints the table of pass rates.
    Evaluate(steps::Args),
    /// Draws RUN/report.html from what the run has so far.
    Report(steps::Args),
    /// Several runs as one experiment: pass rates over seeds, curves over rollouts, adapters against capabilities.
    ///
    /// Runs that differ in their seed alone are averaged; runs of other `run.share` make a curve; runs on another base policy
    /// stand apart. Prints Markdown.
    Compare(compare::Args),
    /// Makes a base policy from scripted demonstrations.
    Pretrain(pretrain::Args),
    /// Environments: list, look at, audit and play them.
    #[command(subcommand)]
    Env(env::Command),
    /// Trajectories of a run: list them and read them.
    #[command(subcommand)]
    Log(log::Command),
    /// Configurations: print the effective one, or check it.
    #[command(subcommand)]
    Config(config::Command),
    /// Says what this machine has and what is missing.
    Doctor(doctor::Args),
}

impl Command {
    /// Whether it runs the policy.
    fn computes(&self) -> bool {
        !matches!(
            self,
            Command::Env(_)
                | Command::Log(_)
                | Command::Config(_)
                | Command::Doctor(_)
                | Command::Report(_)
                | Command::Compare(_)
        )
    }
}

/// Reads the command line, does what it says and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    if cli.command.computes() {
        tuned::ensure();
    }
    if let Command::Log(_) | Command::Config(_) | Command::Compare(_) = cli.command {
        // `trace log show ... | head` ends quietly. Commands with worker processes must see a broken pipe as an error.
        // SAFETY: no other thread runs yet, and the default action of a signal needs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    let done = match cli.command {
        Command::Run(args) => steps::run_all(&args),
        Command::Rollout(args) => steps::run_step(Step::Rollout, &args),
        Command::Analyze(args) => steps::run_analyze(&args),
        Command::Synthesize(args) => steps::run_step(Step::Synthesize, &args),
        Command::Train(args) => steps::run_step(Step::Train, &args),
        Command::Compose(args) => steps::run_step(Step::Compose, &args),
        Command::Baseline(args) => steps::run_step(Step::Baseline, &args),
        Command::Evaluate(args) => steps::run_step(Step::Evaluate, &args),
        Command::Report(args) => steps::run_step(Step::Report, &args),
        Command::Compare(args) => compare::run(&args),
        Command::Pretrain(args) => pretrain::run(&args),
        Command::Env(command) => env::run(&command),
        Command::Log(command) => log::run(&command),
        Command::Config(command) => config::run(&command),
        Command::Doctor(args) => doctor::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(report) => {
            eprintln!("{report:?}");
            ExitCode::from(if report.downcast_ref::<ConfigError>().is_some() { UNUSABLE } else { FAILED })
        }
    }
}

/// Work that failed, or a check that did not pass.
const FAILED: u8 = 1;
/// A command line or configuration that cannot be used; clap's own code for the former.
const UNUSABLE: u8 = 2;

/// What a command comes to: an exit code, or an error to be shown.
type Done = miette::Result<ExitCode>;

/// An error of a library as one that can be shown, causes included.
fn shown<E: std::error::Error + Send + Sync + 'static>(error: E) -> miette::Report {
    miette::IntoDiagnostic::into_diagnostic(Err::<(), _>(error)).err().unwrap_or_else(|| miette::miette!("no error"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_argument_has_a_help_text() {
        fn walk(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {} has no help", command.get_name(), argument.get_id());
            }
            command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(walk);
        }
        walk(&Cli::command());
    }
}
