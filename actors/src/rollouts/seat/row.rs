//! The rows that an ended rollout becomes.

use std::time::UNIX_EPOCH;

use trace_envs::Split;

use super::{Seat, Standing};
use crate::plan::WavePlan;
use crate::rollouts::wave::Crew;
use crate::rows::{SegmentRow, Status};

impl Seat {
    /// The rows of an ended rollout, one per segment.
    pub(in crate::rollouts) fn into_rows(self, crew: &Crew, plan: &WavePlan) -> Vec<SegmentRow> {
        let (status, error) = match self.standing {
            Standing::Ended(status, error) => (status, error),
            _ => (Status::Cancelled, Some("the wave ended before the rollout did".to_owned())),
        };
        let (reward, checks) = match self.verdict {
            Some(verdict) => (Some(verdict.reward as f32), verdict.checks),
            None => (None, Vec::new()),
        };
        let started_at_us = self.started_at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        let row = SegmentRow {
            id: String::new(),
            run: crew.run_id.clone(),
            source: "trace".to_owned(),
            environment: plan.environment.clone(),
            capability: plan.capability.clone(),
            domain: None,
            task: self.seed.to_string(),
            trial: if plan.trials { u32::from(self.rollout) } else { 0 },
            split: Some(Split::of(self.seed)),
            seed: self.seed,
            level: self.level,
            group: self.group,
            rollout: self.rollout,
            segment: 0,
            attempt: self.attempt,
            iteration: plan.iteration,
            adapter: plan.acting.adapter().map(str::to_owned),
            status,
            error,
            reward,
            advantage: None,
            sampling: Some(plan.sampling),
            hint_span: None,
            columns: None,
            turns: Vec::new(),
            checks,
            started_at_us,
            wall_ms: self.started.elapsed().as_millis() as u64,
        };
        let id = |segment: usize| format!("{}/g{}/r{}/s{segment}", plan.unit, self.group, self.rollout);
        if self.drafts.is_empty() {
            return vec![SegmentRow { id: id(0), ..row }];
        }
        let segments = self.drafts.into_iter().enumerate();
        segments
            .map(|(segment, draft)| SegmentRow {
                id: id(segment),
                segment: segment as u16,
                hint_span: draft.hint_span,
                columns: Some(draft.columns),
                turns: draft.turns,
                ..row.clone()
            })
            .collect()
    }
}
