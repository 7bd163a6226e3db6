//! Step 1: which capabilities do the failures lack?

use trace_actors::log::{LogReader, Phase, RowFilter};

use super::waves;
use super::{Labels, Session, StepError};
use crate::analyze::{Findings, Rule, Settings, Trajectory, from_labels, from_process_checks};
use crate::record::{read_json, write_json};

pub(super) fn run(session: &mut Session, labels: Labels) -> Result<u64, StepError> {
    let analysis = session.config.analysis.clone();
    let (trajectories, left_out) = trajectories(session)?;
    if trajectories.is_empty() {
        return Err(StepError::Stuck(format!(
            "none of the {left_out} base rollouts has a verdict; `trace log ls {} --phase base` says why",
            session.dir.root().display()
        )));
    }
    let settings = Settings {
        rule: Rule { rho: analysis.rho, delta: analysis.delta, keep: analysis.keep },
        runs: analysis.runs,
        examples: analysis.examples as usize,
        seed: session.config.run.seed,
        left_out,
    };
    let findings = match labels {
        Labels::FromChecks => {
            let target = session.environment(&session.config.target.environment)?;
            let evidence = &target.spec().evidence;
            if evidence.is_empty() || evidence.len() > analysis.max_candidates as usize {
                return Err(StepError::Stuck(format!(
                    "{} names evidence for {} capabilities; analysis from process checks takes 1 to analysis.max_candidates = {}",
                    target.spec().name,
                    evidence.len(),
                    analysis.max_candidates
                )));
            }
            from_process_checks(&trajectories, evidence, &settings)?
        }
        Labels::FromFiles => {
            let writer = "whoever analyses by hand: see prompts/label.md";
            let candidates = read_json(&session.dir.candidates(), writer)?;
            let runs = (1..=analysis.runs)
                .map(|attempt| read_json(&session.dir.label_run(attempt), writer))
                .collect::<Result<Vec<_>, _>>()?;
            from_labels(&trajectories, candidates, runs, &settings)?
        }
    };
    write(session, &findings, labels)?;
    tell(session, &findings);
    if findings.selected.is_empty() {
        return Err(StepError::Stuck(format!(
            "no capability passes in {} of {} label runs, so there is nothing to train; {} has the measures. More base rollouts \
             (rollout.tasks) sharpen them; analysis.rho, delta and keep are the thresholds",
            analysis.keep,
            analysis.runs,
            session.dir.analysis().display()
        )));
    }
    Ok(0)
}

/// The judged base rollouts, and how many have no verdict.
fn trajectories(session: &Session) -> Result<(Vec<Trajectory>, u64), StepError> {
    let log = LogReader::open(session.dir.root())?;
    let (mut judged, mut left_out) = (Vec::new(), 0);
    for row in log.rows(RowFilter { phases: vec![Phase::Base], ..RowFilter::default() }) {
        for rollout in waves::rollouts(vec![row?]) {
            match rollout.reward {
                Some(reward) => judged.push(Trajectory {
                    id: rollout.id,
                    task: rollout.task,
                    trial: rollout.trial,
                    reward,
                    checks: rollout.checks,
                }),
                None => left_out += 1,
            }
        }
    }
    Ok((judged, left_out))
}

/// Labels that someone else wrote are left as they are.
fn write(session: &Session, findings: &Findings, labels: Labels) -> Result<(), StepError> {
    let dir = &session.dir;
    if labels == Labels::FromChecks {
        write_json(&dir.candidates(), &findings.candidates)?;
        for run in &findings.runs {
            write_json(&dir.label_run(run.attempt), run)?;
        }
    }
    write_json(&dir.analysis(), &findings.record)?;
    write_json(&dir.selected(), &findings.selected)?;
    Ok(())
}

fn tell(session: &Session, findings: &Findings) {
    let figure = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.2}"));
    for capability in &findings.record.capabilities {
        session.display.line(&format!(
            "{} {}: gap {}, coverage {}, {} of {} label runs",
            if capability.kept { "kept    " } else { "rejected" },
            capability.name,
            figure(capability.mean_gap),
            figure(capability.mean_coverage),
            capability.runs_passed,
            capability.runs.len()
        ));
    }
    for warning in &findings.record.warnings {
        session.display.line(&format!("note: {warning}"));
    }
}
