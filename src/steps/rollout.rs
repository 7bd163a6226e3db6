//! Step 0: what the frozen base policy does in the target, on train tasks.

use trace_actors::log::Phase;
use trace_actors::plan::{Acting, ArmSpec};
use trace_actors::rows::SamplingParams;

use super::seeds::{self, Block};
use super::waves::Batch;
use super::{Session, StepError, environment_name};

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let runtime = session.runtime().await?;
    let rollout = &session.config.rollout;
    // Two tasks at least: analysis halves them.
    let tasks = session.shared(rollout.tasks).max(2);
    let batch = Batch {
        unit: "base".to_owned(),
        phase: Phase::Base,
        environment: environment_name(&session.config.target.environment).to_owned(),
        capability: None,
        acting: Acting::Arm(ArmSpec::base()),
        iteration: 0,
        sampling: SamplingParams { temperature: rollout.temperature, top_p: rollout.top_p, top_k: rollout.top_k },
        seeds: (0..u64::from(tasks)).map(|i| seeds::train(session.config.run.seed, Block::Base, i)).collect(),
        level: session.config.target.level,
        trials: rollout.trials,
    };
    session.display.begin("base rollouts", batch.rollouts());
    let rollouts = batch.rolled_out(&runtime, &session.display).await?;
    session.display.end();
    let (judged, passed) =
        (rollouts.iter().filter(|r| r.reward.is_some()).count(), rollouts.iter().filter(|r| r.passed()).count());
    session.display.line(&format!(
        "the base policy passes {passed} of {judged} ({:.1} %)",
        100.0 * passed as f64 / judged.max(1) as f64
    ));
    Ok(rollouts.len() as u64)
}
