//! The actor between generator and log: it gathers rollouts into groups and adds their advantages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use crate::metrics::{Counter, Metrics, Stage};
use crate::normalize::{Arrival, GroupBook, GroupCounts, LoneRollout, NormalizeError, normalize};
use crate::schema::trajectory_schema;

pub(crate) enum NormalizerMessage {
    /// The groups of a wave, with their sizes. What had arrived for an earlier issue of it is dropped.
    Open { unit: String, issue: u32, groups: Vec<(u64, usize)> },
    /// The rows of one rollout.
    Arrive { unit: String, issue: u32, group: u64, rollout: u16, rows: RecordBatch },
    /// Hand over a wave whose groups are complete; it is forgotten then.
    Collect { unit: String, issue: u32, reply: RpcReplyPort<Result<Collected, CollectError>> },
    /// Forget a wave that is given up.
    Forget { unit: String },
}

/// A wave's rows with advantages, groups and rollouts in order.
pub(crate) struct Collected {
    pub(crate) batch: RecordBatch,
    pub(crate) counts: GroupCounts,
}

/// Why a wave cannot be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CollectError {
    /// This normaliser was started after the wave was opened, or groups of it are not complete.
    #[error("{missing} groups of the wave are not complete")]
    Incomplete { missing: usize },
    /// Its rows contradict each other.
    #[error(transparent)]
    Normalize(#[from] NormalizeError),
}

pub(crate) struct NormalizerArguments {
    pub(crate) lone: LoneRollout,
    pub(crate) metrics: Arc<Metrics>,
}

struct Wave {
    issue: u32,
    groups: usize,
    complete: BTreeMap<u64, Vec<RecordBatch>>,
}

pub(crate) struct NormalizerState {
    lone: LoneRollout,
    metrics: Arc<Metrics>,
    book: GroupBook<(String, u64), RecordBatch>,
    waves: BTreeMap<String, Wave>,
}

pub(crate) struct AdvantageNormalizer;

impl Actor for AdvantageNormalizer {
    type Msg = NormalizerMessage;
    type State = NormalizerState;
    type Arguments = NormalizerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<NormalizerMessage>,
        arguments: NormalizerArguments,
    ) -> Result<NormalizerState, ActorProcessingErr> {
        let NormalizerArguments { lone, metrics } = arguments;
        Ok(NormalizerState { lone, metrics, book: GroupBook::default(), waves: BTreeMap::new() })
    }

    async fn handle(
        &self,
        _: ActorRef<NormalizerMessage>,
        message: NormalizerMessage,
        state: &mut NormalizerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NormalizerMessage::Open { unit, issue, groups } => state.open(unit, issue, &groups),
            NormalizerMessage::Arrive { unit, issue, group, rollout, rows } => {
                state.arrive(unit, issue, group, rollout, rows);
            }
            NormalizerMessage::Collect { unit, issue, reply } => {
                // Whoever asked may have been stopped meanwhile.
                let _ = reply.send(state.collect(&unit, issue));
            }
            NormalizerMessage::Forget { unit } => state.forget(&unit),
        }
        Ok(())
    }
}

impl NormalizerState {
    fn open(&mut self, unit: String, issue: u32, groups: &[(u64, usize)]) {
        for &(group, size) in groups {
            self.book.open((unit.clone(), group), issue, size);
        }
        self.waves.insert(unit, Wave { issue, groups: groups.len(), complete: BTreeMap::new() });
    }

    fn arrive(&mut self, unit: String, issue: u32, group: u64, rollout: u16, rows: RecordBatch) {
        match self.book.arrive((unit.clone(), group), issue, usize::from(rollout), rows) {
            Arrival::Waiting => {}
            Arrival::Complete(members) => {
                if let Some(wave) = self.waves.get_mut(&unit) {
                    wave.complete.insert(group, members);
                }
            }
            Arrival::Ignored(why) => {
                tracing::debug!(unit, issue, group, rollout, ?why, "a rollout that nobody waits for is ignored");
                self.metrics.add(Counter::IgnoredArrivals, 1);
            }
        }
    }

    fn collect(&mut self, unit: &str, issue: u32) -> Result<Collected, CollectError> {
        let missing = match self.waves.get(unit).filter(|wave| wave.issue == issue) {
            Some(wave) => wave.groups - wave.complete.len(),
            None => usize::MAX,
        };
        if missing > 0 {
            return Err(CollectError::Incomplete { missing });
        }
        let begin = Instant::now();
        let rows = self.waves.remove(unit).into_iter().flat_map(|wave| wave.complete.into_values().flatten());
        let batch = concat_batches(&trajectory_schema(), &rows.collect::<Vec<_>>())
            .map_err(|_| NormalizeError::Column("schema"))?;
        let (batch, counts) = normalize(&batch, self.lone)?;
        self.metrics.record_since(Stage::Normalize, begin);
        Ok(Collected { batch, counts })
    }

    fn forget(&mut self, unit: &str) {
        self.book.retain(|(open, _)| open != unit);
        self.waves.remove(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{trajectory_batch, trajectory_rows};
    use crate::samples::row;

    fn state() -> NormalizerState {
        let metrics = Arc::new(Metrics::default());
        NormalizerState { lone: LoneRollout::Drop, metrics, book: GroupBook::default(), waves: BTreeMap::new() }
    }

    fn arrive(state: &mut NormalizerState, issue: u32, group: u64, rollout: u16, reward: f32) {
        let rows = trajectory_batch(&[row(group, rollout, reward)]).unwrap();
        state.arrive("u".into(), issue, group, rollout, rows);
    }

    #[test]
    fn a_wave_is_handed_over_in_order_whatever_the_order_of_arrival() {
        let mut state = state();
        state.open("u".into(), 0, &[(5, 2), (2, 2)]);
        for (group, rollout, reward) in [(5, 1, 0.0), (2, 1, 1.0), (5, 0, 1.0)] {
            arrive(&mut state, 0, group, rollout, reward);
        }
        assert_eq!(state.collect("u", 0).err(), Some(CollectError::Incomplete { missing: 1 }));
        arrive(&mut state, 0, 2, 0, 1.0);
        let collected = state.collect("u", 0).unwrap();
        let rows = trajectory_rows(&collected.batch).unwrap();
        let order: Vec<(u64, u16)> = rows.iter().map(|r| (r.group, r.rollout)).collect();
        assert_eq!(order, vec![(2, 0), (2, 1), (5, 0), (5, 1)]);
        assert_eq!(rows[1].advantage, Some(0.0));
        assert!(rows[2].advantage.unwrap() > 0.99);
        assert_eq!((collected.counts.informative, collected.counts.constant), (1, 1));
        assert!(state.waves.is_empty() && state.book.open_groups() == 0, "what was handed over is forgotten");
    }

    #[test]
    fn what_arrives_for_an_earlier_issue_counts_neither_way() {
        let mut state = state();
        state.open("u".into(), 0, &[(5, 2)]);
        arrive(&mut state, 0, 5, 0, 0.5);
        state.open("u".into(), 1, &[(5, 2)]);
        arrive(&mut state, 0, 5, 1, 0.5);
        arrive(&mut state, 1, 5, 0, 1.0);
        arrive(&mut state, 1, 5, 0, 0.5);
        arrive(&mut state, 1, 5, 1, 0.0);
        assert!(state.collect("u", 0).is_err());
        let rows = trajectory_rows(&state.collect("u", 1).unwrap().batch).unwrap();
        assert_eq!(rows.iter().map(|r| r.reward).collect::<Vec<_>>(), vec![Some(1.0), Some(0.0)]);
        assert_eq!(state.metrics.count(Counter::IgnoredArrivals), 2);
    }

    #[test]
    fn a_wave_that_is_given_up_leaves_nothing_behind() {
        let mut state = state();
        state.open("u".into(), 0, &[(5, 2)]);
        arrive(&mut state, 0, 5, 0, 0.5);
        state.forget("u");
        assert!(state.waves.is_empty() && state.book.open_groups() == 0);
        arrive(&mut state, 0, 5, 1, 0.5);
        assert_eq!(state.metrics.count(Counter::IgnoredArrivals), 1);
    }
}
