//! `trace log ls | show`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use console::style;
use trace_actors::log::{LogReader, Phase, RowFilter};
use trace_actors::rows::{SegmentRow, Status, TokenColumns};
use trace_envs::{Role, Split};
use trace_policy::tokenizer::Tokenizer;

use super::{Done, shown, transcript};
use crate::config::{Config, ConfigFile};

/// Trajectories of a run.
#[derive(Subcommand)]
pub enum Command {
    /// Lists rollouts, one a line, or summarises them with --summary.
    Ls {
        /// The run's directory.
        run: PathBuf,
        #[command(flatten)]
        filter: Filter,
        /// At most so many lines; 0 is all.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Count rollouts and rewards by phase, environment and arm instead.
        #[arg(long)]
        summary: bool,
    },
    /// Prints one rollout as a conversation, with its verdict.
    Show {
        /// The run's directory.
        run: PathBuf,
        /// The rollout's id, or a part of it; the first that fits is shown.
        id: Option<String>,
        #[command(flatten)]
        filter: Filter,
        /// Also print each token that the policy sampled, with its log-probability, version and slot.
        #[arg(long)]
        logprobs: bool,
        /// Print the rows as JSON, tokens included, instead.
        #[arg(long)]
        json: bool,
    },
}

/// Which rollouts.
#[derive(Args)]
pub struct Filter {
    /// Only this phase.
    #[arg(long, value_parser = ["import", "base", "calibrate", "train", "gate", "evaluate"])]
    phase: Option<String>,
    /// Only this environment.
    #[arg(long)]
    environment: Option<String>,
    /// Only this arm; `base` is the policy without an adapter.
    #[arg(long)]
    arm: Option<String>,
    /// Only this status.
    #[arg(long, value_parser = ["completed", "truncated", "environment_failed", "policy_failed", "cancelled"])]
    status: Option<String>,
    /// Only this split.
    #[arg(long, value_parser = ["train", "dev", "test"])]
    split: Option<String>,
    /// Only this iteration.
    #[arg(long)]
    iteration: Option<u32>,
    /// Only rollouts with reward 1.
    #[arg(long, conflicts_with = "failed")]
    passed: bool,
    /// Only rollouts with a lower reward.
    #[arg(long)]
    failed: bool,
}

impl Filter {
    fn rows(&self, id: Option<&str>) -> RowFilter {
        RowFilter {
            phases: Phase::ALL.into_iter().filter(|phase| self.phase.as_deref() == Some(phase.name())).collect(),
            environment: self.environment.clone(),
            adapter: self.arm.as_ref().map(|arm| (arm != "base").then(|| arm.clone())),
            statuses: self.status.as_deref().and_then(Status::parse).into_iter().collect(),
            split: Split::ALL.into_iter().find(|split| self.split.as_deref() == Some(split.name())),
            iteration: self.iteration,
            passed: (self.passed || self.failed).then_some(self.passed),
            id_contains: id.map(str::to_owned),
            ..RowFilter::default()
        }
    }
}

fn open(run: &Path) -> miette::Result<LogReader> {
    if !run.is_dir() {
        return Err(miette::miette!(
            help = "a run's directory is runs/NAME, or run.dir of its configuration",
            "{} is no directory",
            run.display()
        ));
    }
    LogReader::open(run).map_err(shown)
}

pub(super) fn run(command: &Command) -> Done {
    match command {
        Command::Ls { run, filter, limit, summary: false } => list(&open(run)?, filter, *limit),
        Command::Ls { run, filter, .. } => summary(&open(run)?, filter),
        Command::Show { run, id, filter, logprobs, json } => {
            let rows = one_rollout(&open(run)?, filter, id.as_deref())?;
            if *json {
                for row in &rows {
                    println!("{}", serde_json::to_string(row).map_err(shown)?);
                }
                return Ok(ExitCode::SUCCESS);
            }
            let tokenizer = if *logprobs { Some(tokenizer(run)?) } else { None };
            show(&rows, tokenizer.as_ref());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The rollout's part of a row id, `UNIT/gGROUP/rROLLOUT`.
fn rollout_id(row: &SegmentRow) -> &str {
    row.id.rsplit_once("/s").map_or(row.id.as_str(), |(rollout, _)| rollout)
}

fn reward(row: &SegmentRow) -> String {
    row.reward.map_or_else(|| "–".to_owned(), |reward| format!("{reward:.2}"))
}

fn list(log: &LogReader, filter: &Filter, limit: usize) -> Done {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["rollout", "environment", "task", "arm", "status", "reward", "turns", "sampled tokens"]);
    let mut matched = 0usize;
    for row in log.rows(filter.rows(None)) {
        let row = row.map_err(shown)?;
        if row.segment > 0 {
            continue;
        }
        matched += 1;
        if limit > 0 && matched > limit {
            continue;
        }
        let turns = row.turns.iter().filter(|turn| turn.role == Role::Assistant).count();
        let sampled = row.columns.as_ref().map_or(0, |c| c.action_mask.iter().filter(|sampled| **sampled).count());
        table.add_row([
            rollout_id(&row).to_owned(),
            row.environment.clone(),
            row.task.clone(),
            row.adapter.clone().unwrap_or_else(|| "base".to_owned()),
            row.status.name().to_owned(),
            reward(&row),
            turns.to_string(),
            sampled.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if matched == 0 {
        println!("no rollout fits");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{table}");
    if limit > 0 && matched > limit {
        eprintln!("{limit} of {matched} rollouts; --limit 0 lists all");
    }
    Ok(ExitCode::SUCCESS)
}

/// Counts of one phase, environment and arm.
#[derive(Default)]
struct Counts {
    rollouts: u64,
    judged: u64,
    reward: f64,
    passed: u64,
}

fn summary(log: &LogReader, filter: &Filter) -> Done {
    let mut counts: BTreeMap<(Phase, String, String), Counts> = BTreeMap::new();
    let wanted = filter.rows(None);
    for phase in Phase::ALL.into_iter().filter(|phase| wanted.phases.is_empty() || wanted.phases.contains(phase)) {
        for row in log.rows(RowFilter { phases: vec![phase], ..wanted.clone() }) {
            let row = row.map_err(shown)?;
            if row.segment > 0 {
                continue;
            }
            let arm = row.adapter.clone().unwrap_or_else(|| "base".to_owned());
            let entry = counts.entry((phase, row.environment.clone(), arm)).or_default();
            entry.rollouts += 1;
            if let Some(reward) = row.reward {
                entry.judged += 1;
                entry.reward += f64::from(reward);
                entry.passed += u64::from(row.passed() == Some(true));
            }
        }
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["phase", "environment", "arm", "rollouts", "without reward", "mean reward", "passed, %"]);
    for ((phase, environment, arm), counts) in counts {
        let share =
            |sum: f64| if counts.judged == 0 { "–".to_owned() } else { format!("{:.3}", sum / counts.judged as f64) };
        table.add_row([
            phase.name().to_owned(),
            environment,
            arm,
            counts.rollouts.to_string(),
            (counts.rollouts - counts.judged).to_string(),
            share(counts.reward),
            share(100.0 * counts.passed as f64),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// All segments of the first rollout that fits.
fn one_rollout(log: &LogReader, filter: &Filter, id: Option<&str>) -> miette::Result<Vec<SegmentRow>> {
    let mut found: Vec<SegmentRow> = Vec::new();
    for row in log.rows(filter.rows(id)) {
        let row = row.map_err(shown)?;
        match found.first() {
            None => found.push(row),
            Some(first) if rollout_id(first) == rollout_id(&row) => found.push(row),
            // Segments of a rollout lie together.
            Some(_) => break,
        }
    }
    if found.is_empty() {
        return Err(miette::miette!(help = "`trace log ls RUN` lists the rollouts", "no rollout fits"));
    }
    Ok(found)
}

fn tokenizer(run: &Path) -> miette::Result<Tokenizer> {
    let config = Config::load(&run.join("config.toml"), &[])?;
    Tokenizer::load(&config.policy.model).map_err(shown)
}

fn show(rows: &[SegmentRow], tokenizer: Option<&Tokenizer>) {
    let Some(first) = rows.first() else { return };
    println!("{}", style(rollout_id(first)).bold());
    let arm = first.adapter.as_deref().unwrap_or("base");
    let split = first.split.map_or("", Split::name);
    println!(
        "{}, task {} ({split} seed {}, level {}), arm {arm}, iteration {}, attempt {}\n",
        first.environment, first.task, first.seed, first.level, first.iteration, first.attempt
    );
    for row in rows {
        if row.segment > 0 {
            println!("{}", style("the chat template rewrote earlier turns: a new segment with its own prompt").dim());
        }
        for turn in &row.turns {
            print!("{}", transcript::turn(turn.role, &turn.text, &turn.tool_calls));
            if let (Some(tokenizer), Some(columns), Some(span), Role::Assistant) =
                (tokenizer, &row.columns, turn.span, turn.role)
            {
                tokens(tokenizer, columns, span.start as usize..span.end as usize);
            }
        }
        if let (Some(span), Some(tokenizer), Some(columns)) = (row.hint_span, tokenizer, &row.columns) {
            let ids = columns.tokens.get(span.start as usize..span.end as usize).unwrap_or_default();
            println!("{:>9}  {}", style("hint").dim(), tokenizer.decode(ids).unwrap_or_default().trim());
        }
    }
    let last = &rows[rows.len() - 1];
    println!();
    match &last.error {
        Some(error) => println!("{}: {error}", style(last.status.name()).red().bold()),
        None => {
            println!("{}", last.status.name());
            print!("{}", transcript::verdict(last.reward.map(f64::from), &last.checks));
        }
    }
}

/// One sampled token a line: its text, log-probability, and where gates chose, the slot.
fn tokens(tokenizer: &Tokenizer, columns: &TokenColumns, span: std::ops::Range<usize>) {
    for index in span {
        let (Some(id), Some(Some(logprob))) = (columns.tokens.get(index), columns.logprobs.get(index)) else {
            continue;
        };
        let text = tokenizer.decode(&[*id]).unwrap_or_default();
        let text = if text.is_empty() { tokenizer.token_text(*id).unwrap_or_default() } else { text };
        let slot = columns.slots.as_ref().and_then(|slots| *slots.get(index)?);
        let slot = slot.map_or_else(String::new, |slot| format!("  slot {slot}"));
        let version = columns.versions.get(index).copied().flatten().unwrap_or_default();
        println!(
            "           {}  {logprob:>8.4}  {}{}",
            style(format!("{index:>5}")).dim(),
            style(format!("v{version}{slot}")).dim(),
            format_args!("  {text:?}")
        );
    }
}
