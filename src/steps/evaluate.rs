//! All arms on the same test tasks.

use std::collections::{BTreeMap, BTreeSet};

use trace_actors::batch::trajectory_rows;
use trace_actors::log::Phase;
use trace_actors::plan::{Acting, ArmSpec};
use trace_actors::rows::{SamplingParams, SegmentRow};
use trace_actors::{Runtime, WaveOutcome};
use trace_envs::{CapabilityEvidence, Role};
use trace_policy::tokenizer::Tokenizer;

use super::arms::Arm;
use super::seeds;
use super::waves::{self, Batch, Rollout};
use super::{Session, StepError, environment_name};
use crate::analyze::Label;
use crate::analyze::labels::label;
use crate::record::evaluation::{
    ArmResult, CapabilityRate, Conversation, ConversationTurn, Evaluation, Piece, TaskResult,
};
use crate::record::write_json;
use crate::stats::{Bootstrap, mean};

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let runtime = session.runtime().await?;
    let best = best_single(session, &runtime).await?;
    let mut arms: Vec<Arm> = Vec::new();
    for name in &session.config.evaluate.arms {
        arms.extend(session.arms(name, best.as_deref())?);
    }
    let bootstrap = session.bootstrap();
    let target = session.environment(&session.config.target.environment)?;
    let mut conversation: Option<(usize, Conversation)> = None;
    let mut results = Vec::new();
    for arm in &arms {
        let sampled = judge(session, &runtime, arm, &mut conversation).await?;
        results.push(result(session, arm, sampled, &target.spec().evidence, &bootstrap)?);
    }
    let config = &session.config;
    let evaluation = Evaluation {
        run: config.run.name.clone(),
        seed: config.run.seed,
        environment: target.spec().name.clone(),
        tasks: u64::from(config.evaluate.tasks),
        trials: u64::from(config.evaluate.trials),
        temperature: config.evaluate.temperature,
        confidence: config.evaluate.confidence,
        differences: differences(&results, &bootstrap),
        arms: results,
        rollouts: session.spent(),
        conversation: conversation.map(|(_, conversation)| conversation),
    };
    write_json(&session.dir.evaluation(), &evaluation)?;
    Ok(0)
}

impl Session {
    /// How intervals are drawn.
    fn bootstrap(&self) -> Bootstrap {
        let evaluate = &self.config.evaluate;
        Bootstrap { samples: evaluate.bootstrap, confidence: evaluate.confidence, seed: self.config.run.seed }
    }

    fn on_target(&self, unit: String, spec: &ArmSpec, seeds: Vec<u64>, trials: u32, temperature: f64) -> Batch {
        let evaluate = &self.config.evaluate;
        // Greedy picks the most probable token whatever is cut off.
        let (top_p, top_k) = if temperature == 0.0 { (1.0, 0) } else { (evaluate.top_p, evaluate.top_k) };
        Batch {
            unit,
            phase: Phase::Evaluate,
            environment: environment_name(&self.config.target.environment).to_owned(),
            capability: None,
            acting: Acting::Arm(spec.clone()),
            iteration: 0,
            sampling: SamplingParams { temperature, top_p, top_k },
            seeds,
            level: self.config.target.level,
            trials,
        }
    }
}

/// The adapter that alone does best on dev tasks of the target, where an arm asks for it.
async fn best_single(session: &mut Session, runtime: &Runtime) -> Result<Option<String>, StepError> {
    if !session.config.evaluate.arms.iter().any(|arm| arm == "best_single") {
        return Ok(None);
    }
    let adapters = session.adapters()?;
    if let [(only, _)] = adapters.as_slice() {
        return Ok(Some(only.clone()));
    }
    let evaluate = &session.config.evaluate;
    let batches: Vec<Batch> = adapters
        .iter()
        .map(|(name, kept)| {
            let seeds = seeds::dev(evaluate.select_tasks);
            let arm = session.adapter_arm(name, kept);
            session.on_target(format!("select/{name}"), &arm, seeds, evaluate.select_trials, evaluate.temperature)
        })
        .collect();
    session.display.begin("choosing the best single adapter", batches.iter().map(Batch::rollouts).sum());
    let mut best: Option<(f64, &str)> = None;
    for ((name, _), batch) in adapters.iter().zip(&batches) {
        let rollouts = batch.rolled_out(runtime, &session.display).await?;
        let passed: Vec<f64> =
            rollouts.iter().filter(|r| r.reward.is_some()).map(|r| f64::from(u8::from(r.passed()))).collect();
        let rate = mean(&passed).unwrap_or(-1.0);
        if best.is_none_or(|(before, _)| rate > before) {
            best = Some((rate, name));
        }
    }
    session.display.end();
    Ok(best.map(|(_, name)| name.to_owned()))
}

/// What an arm did: rollouts at the configured temperature, rollouts at 0, and tokens by slot.
struct Sampled {
    trials: Vec<Rollout>,
    greedy: Option<Vec<Rollout>>,
    slots: Vec<u64>,
}

async fn judge(
    session: &mut Session,
    runtime: &Runtime,
    arm: &Arm,
    conversation: &mut Option<(usize, Conversation)>,
) -> Result<Sampled, StepError> {
    let evaluate = &session.config.evaluate;
    let seeds = seeds::test(evaluate.tasks);
    // One adapter may stand under two names; what it did is sampled once.
    let key = &arm.spec.name;
    let trials =
        session.on_target(format!("evaluate/{key}"), &arm.spec, seeds.clone(), evaluate.trials, evaluate.temperature);
    let greedy = evaluate.greedy.then(|| session.on_target(format!("greedy/{key}"), &arm.spec, seeds, 1, 0.0));
    let total = trials.rollouts() + greedy.as_ref().map_or(0, Batch::rollouts);
    session.display.begin(&format!("evaluating {}", arm.name), total);
    let mut sampled = Sampled { trials: Vec::new(), greedy: None, slots: Vec::new() };
    let routed = arm.spec.composition.is_some();
    let tokenizer = runtime.chat().tokenizer();
    let take = |outcome: WaveOutcome| {
        let rows = trajectory_rows(&outcome.batch)?;
        if routed {
            count_slots(&rows, &mut sampled.slots);
            show_best(&rows, tokenizer, &arm.spec, conversation);
        }
        sampled.trials.extend(waves::rollouts(rows));
        Ok(())
    };
    trials.sample(runtime, &session.display, take).await?;
    if let Some(greedy) = greedy {
        sampled.greedy = Some(greedy.rolled_out(runtime, &session.display).await?);
    }
    session.display.end();
    Ok(sampled)
}

fn count_slots(rows: &[SegmentRow], counts: &mut Vec<u64>) {
    let slots = rows.iter().filter_map(|row| row.columns.as_ref()?.slots.as_ref()).flatten().flatten();
    for slot in slots {
        let slot = usize::from(*slot);
        if counts.len() <= slot {
            counts.resize(slot + 1, 0);
        }
        counts[slot] += 1;
    }
}

/// Keeps the winning conversation in which most slots spoke; of equals, the first.
fn show_best(rows: &[SegmentRow], tokenizer: &Tokenizer, spec: &ArmSpec, best: &mut Option<(usize, Conversation)>) {
    for row in rows.iter().filter(|row| row.segment == 0 && row.passed() == Some(true)) {
        let Some(slots) = row.columns.as_ref().and_then(|columns| columns.slots.as_ref()) else { continue };
        let distinct = slots.iter().flatten().collect::<BTreeSet<_>>().len();
        if best.as_ref().is_some_and(|(before, _)| *before >= distinct) {
            continue;
        }
        let names = std::iter::once("base".to_owned()).chain(spec.adapters.iter().map(|(name, _)| name.clone()));
        let conversation = Conversation {
            seed: row.seed,
            reward: row.reward.map_or(0.0, f64::from),
            slots: names.collect(),
            turns: conversation_turns(row, tokenizer),
        };
        *best = Some((distinct, conversation));
    }
}

fn conversation_turns(row: &SegmentRow, tokenizer: &Tokenizer) -> Vec<ConversationTurn> {
    let role = |role: Role| match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    row.turns
        .iter()
        .map(|turn| {
            let pieces = match (turn.role, turn.span, &row.columns) {
                (Role::Assistant, Some(span), Some(columns)) => (span.start as usize..span.end as usize)
                    .filter_map(|index| {
                        let id = *columns.tokens.get(index)?;
                        let text = tokenizer.decode(&[id]).unwrap_or_default();
                        let slot = columns.slots.as_ref().and_then(|slots| *slots.get(index)?);
                        Some(Piece { text, slot })
                    })
                    .filter(|piece| !piece.text.is_empty())
                    .collect(),
                _ => vec![Piece { text: turn.text.clone(), slot: None }],
            };
            ConversationTurn { role: role(turn.role).to_owned(), pieces }
        })
        .collect()
}

fn per_task(rollouts: &[Rollout]) -> Vec<TaskResult> {
    let mut tasks: BTreeMap<u64, TaskResult> = BTreeMap::new();
    for rollout in rollouts {
        let task = tasks.entry(rollout.seed).or_insert(TaskResult { seed: rollout.seed, episodes: 0, passed: 0 });
        task.episodes += u64::from(rollout.reward.is_some());
        task.passed += u64::from(rollout.passed());
    }
    tasks.into_values().collect()
}

fn result(
    session: &Session,
    arm: &Arm,
    sampled: Sampled,
    evidence: &[CapabilityEvidence],
    bootstrap: &Bootstrap,
) -> Result<ArmResult, StepError> {
    let no_verdict = || {
        StepError::Stuck(format!(
            "no test episode of {} has a verdict; `trace log ls {} --phase evaluate --arm {}` says why",
            arm.name,
            session.dir.root().display(),
            arm.spec.name
        ))
    };
    let trials = u64::from(session.config.evaluate.trials);
    let figures = ArmResult::from_counts(per_task(&sampled.trials), trials, bootstrap).ok_or_else(no_verdict)?;
    let greedy = match &sampled.greedy {
        Some(rollouts) => {
            Some(ArmResult::from_counts(per_task(rollouts), 1, bootstrap).ok_or_else(no_verdict)?.pass_rate)
        }
        None => None,
    };
    let all_tokens: u64 = sampled.slots.iter().sum();
    let mut slots: Vec<f64> = sampled.slots.iter().map(|count| *count as f64 / all_tokens.max(1) as f64).collect();
    if arm.spec.composition.is_some() {
        slots.resize(arm.spec.adapters.len() + 1, 0.0);
    }
    Ok(ArmResult {
        name: arm.name.clone(),
        adapters: arm.spec.adapters.iter().map(|(name, _)| name.clone()).collect(),
        routed: arm.spec.composition.is_some(),
        rollouts: arm.rollouts,
        greedy,
        capabilities: evidence.iter().map(|evidence| rate(&sampled.trials, evidence)).collect(),
        slots,
        ..figures
    })
}

fn rate(rollouts: &[Rollout], evidence: &CapabilityEvidence) -> CapabilityRate {
    let judged = rollouts.iter().filter(|rollout| rollout.reward.is_some());
    let labels: Vec<Label> = judged.map(|rollout| label(&rollout.checks, evidence)).collect();
    CapabilityRate {
        capability: evidence.capability.clone(),
        applicable: labels.iter().filter(|label| **label != Label::Na).count() as u64,
        present: labels.iter().filter(|label| **label == Label::Present).count() as u64,
    }
}

/// Every arm against the base, and TRACE against every other.
fn differences(arms: &[ArmResult], bootstrap: &Bootstrap) -> Vec<crate::record::evaluation::ArmDifference> {
    let against = |name: &str| arms.iter().find(|arm| arm.name == name);
    let mut pairs: Vec<(&ArmResult, &ArmResult)> = Vec::new();
    if let Some(base) = against("base") {
        pairs.extend(arms.iter().filter(|arm| arm.name != "base").map(|arm| (arm, base)));
    }
    if let Some(trace) = against("trace") {
        pairs.extend(arms.iter().filter(|arm| !["trace", "base"].contains(&arm.name.as_str())).map(|arm| (trace, arm)));
    }
    pairs.into_iter().filter_map(|(arm, other)| arm.minus(other, bootstrap)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(name: &str, passed: u64) -> ArmResult {
        let bootstrap = Bootstrap { samples: 100, confidence: 0.95, seed: 1 };
        let tasks =
            (0..10).map(|i| TaskResult { seed: 3 * i + 2, episodes: 1, passed: u64::from(i < passed) }).collect();
        ArmResult { name: name.into(), ..ArmResult::from_counts(tasks, 1, &bootstrap).unwrap() }
    }

    #[test]
    fn every_arm_is_compared_with_the_base_and_trace_with_every_other() {
        let bootstrap = Bootstrap { samples: 100, confidence: 0.95, seed: 1 };
        let found: Vec<(String, String, f64)> =
            differences(&[arm("base", 2), arm("grpo", 4), arm("trace", 7)], &bootstrap)
                .into_iter()
                .map(|d| (d.arm, d.against, (d.difference.value * 10.0).round()))
                .collect();
        let expect = |a: &str, b: &str, d: f64| (a.to_owned(), b.to_owned(), d);
        assert_eq!(found, [expect("grpo", "base", 2.0), expect("trace", "base", 5.0), expect("trace", "grpo", 3.0)]);
    }

    #[test]
    fn failures_are_no_failed_trials() {
        let rollout = |seed: u64, reward: Option<f64>| Rollout {
            id: String::new(),
            task: seed.to_string(),
            seed,
            trial: 0,
            reward,
            checks: vec![],
        };
        let tasks = per_task(&[rollout(2, Some(1.0)), rollout(2, None), rollout(5, Some(0.5)), rollout(8, None)]);
        let expect = |seed, episodes, passed| TaskResult { seed, episodes, passed };
        assert_eq!(tasks, [expect(2, 1, 1), expect(5, 1, 0), expect(8, 0, 0)]);
    }
}
