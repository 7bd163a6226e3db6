//! `trace env list | show | check | play`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use console::style;
use trace_envs::audit::Audit;
use trace_envs::helpdesk::Tool;
use trace_envs::registry::EnvRegistry;
use trace_envs::{Environment, Split};

use super::play::{self, Player};
use super::{Done, FAILED, shown, transcript};

/// Environments.
#[derive(Subcommand)]
pub enum Command {
    /// Lists the built-in environments: the target world and the library of Python files.
    List,
    /// Prints what an environment is and how an episode of it begins.
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        episode: EpisodeArgs,
        /// Print the whole specification as JSON instead.
        #[arg(long)]
        json: bool,
    },
    /// Audits an environment: the tests that each must pass before a policy is trained in it.
    ///
    /// It must load; give the same episode for the same seed and others for other seeds; reward its oracle with 1 and
    /// silence, noise, destruction and blind refusals with almost nothing; keep its rewards in [0, 1], its tools a subset of the
    /// target's where it isolates a capability (an environment that names none in its spec is a target of its own), and its
    /// budgets. Exit code 1 where anything does not hold. Without a name, all built-in ones are audited.
    Check {
        /// Names of built-in environments, or paths of Python files; all built-in ones without any.
        environments: Vec<String>,
        /// Train seeds that are played.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// Print the findings as JSON, one line for each environment.
        #[arg(long)]
        json: bool,
    },
    /// You act as the policy in the terminal.
    ///
    /// What you type is said to the customer; a line that begins with a tool's name calls it. `/help` lists the rest.
    Play {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        episode: EpisodeArgs,
        /// Let the oracle play instead.
        #[arg(long)]
        oracle: bool,
    },
}

/// Which environment.
#[derive(Args)]
pub struct Which {
    /// Name of a built-in environment, or path of a Python file.
    environment: String,
}

/// Which episode.
#[derive(Args)]
pub struct EpisodeArgs {
    /// Index of the task within its split: the same one is the same task.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The split that the task is of.
    #[arg(long, default_value = "train", value_parser = ["train", "dev", "test"])]
    split: String,
    /// Level of difficulty; 0 is the environment's own mix.
    #[arg(long, default_value_t = 0)]
    level: u32,
}

impl EpisodeArgs {
    fn seed(&self) -> u64 {
        let split = Split::ALL.into_iter().find(|split| split.name() == self.split).unwrap_or(Split::Train);
        // Beyond this the seed would not fit; nobody has that many tasks.
        split.seed(self.seed.min(u64::MAX / 4))
    }
}

/// An environment by name, or by the path of a Python file.
fn open(registry: &EnvRegistry, name: &str) -> miette::Result<Arc<dyn Environment>> {
    let name = if name.ends_with(".py") { registry.add_file(Path::new(name)).map_err(shown)? } else { name.to_owned() };
    registry.get(&name).map_err(shown)
}

/// The built-in target, whose tools the others share.
const TARGET: &str = "helpdesk";

pub(super) fn run(command: &Command) -> Done {
    let registry = EnvRegistry::builtin();
    match command {
        Command::List => list(&registry),
        Command::Show { which, episode, json } => show(&*open(&registry, &which.environment)?, episode, *json),
        Command::Check { environments, seeds, json } => check(&registry, environments, *seeds, *json),
        Command::Play { which, episode, oracle } => {
            let env = open(&registry, &which.environment)?;
            let mut played = env.reset(episode.seed(), episode.level).map_err(shown)?;
            let player = if *oracle { Player::Oracle } else { Player::Person };
            play::play(env.spec(), &mut *played, player, &mut std::io::stdin().lock(), &mut std::io::stdout())
        }
    }
}

fn list(registry: &EnvRegistry) -> Done {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["name", "capability", "levels", "tools", "turns", "what it exercises"]);
    for name in registry.names() {
        let env = registry.get(&name).map_err(shown)?;
        let spec = env.spec();
        table.add_row([
            spec.name.clone(),
            spec.capability.clone().unwrap_or_else(|| "(a target)".to_owned()),
            spec.levels.to_string(),
            spec.tools.len().to_string(),
            spec.max_turns.to_string(),
            spec.description.clone(),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn show(env: &dyn Environment, args: &EpisodeArgs, json: bool) -> Done {
    let spec = env.spec();
    if json {
        println!("{}", serde_json::to_string_pretty(spec).map_err(shown)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}: {}", style(&spec.name).bold(), spec.description);
    match &spec.capability {
        Some(capability) => println!("isolates {capability}; {} levels, {} turns at most", spec.levels, spec.max_turns),
        None => println!("a target world; {} levels, {} turns at most", spec.levels, spec.max_turns),
    }
    println!("\n{}", style("tools").bold());
    for tool in &spec.tools {
        println!("  {}  {}\n      {}", style(&tool.name).magenta(), tool.description, tool.parameters);
    }
    if !spec.evidence.is_empty() {
        println!("\n{}", style("checks that speak for a capability").bold());
        for evidence in &spec.evidence {
            println!("  {}  {}\n      {}", evidence.capability, evidence.checks.join(", "), evidence.description);
        }
    }
    let episode = env.reset(args.seed(), args.level).map_err(shown)?;
    let opening = episode.opening();
    println!(
        "\n{} ({} seed {}, level {}, {} tools)",
        style("an episode").bold(),
        args.split,
        args.seed(),
        opening.level,
        opening.tools.len()
    );
    for message in &opening.messages {
        print!("{}", transcript::message(message));
    }
    if let Some(hint) = &opening.hint {
        println!("{:>9}  {hint}", style("hint").dim());
    }
    Ok(ExitCode::SUCCESS)
}

fn check(registry: &EnvRegistry, names: &[String], seeds: u64, json: bool) -> Done {
    let target = registry.get(TARGET).map_err(shown)?;
    let names = if names.is_empty() { registry.names() } else { names.to_vec() };
    let mut failed = Vec::new();
    for name in &names {
        let env = open(registry, name)?;
        let audit = Audit {
            // What isolates no capability is a target of its own: its tools are whatever it needs.
            target: env.spec().capability.is_some().then(|| target.spec()),
            writing_tools: Tool::ALL
                .into_iter()
                .filter(|tool| tool.writes())
                .map(|tool| tool.name().to_owned())
                .collect(),
            seeds,
            ..Audit::default()
        };
        if !json {
            println!("{}", style(name).bold());
        }
        let items = audit.run(&*env, |item| {
            if !json {
                let mark = if item.passed { style("ok    ").green() } else { style("FAILED").red().bold() };
                println!("  {mark} {}: {}", item.name, item.detail);
            }
        });
        if json {
            let line =
                serde_json::json!({"environment": name, "passed": items.iter().all(|i| i.passed), "items": items});
            println!("{line}");
        }
        if items.iter().any(|item| !item.passed) {
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("not fit for training: {}", failed.join(", "));
    Ok(ExitCode::from(FAILED))
}
