//! The column `advantage` of a batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array};
use arrow::datatypes::{Float32Type, UInt16Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};

use super::advantage::{GroupKind, LoneRollout, group_advantages};

/// How many groups were of which kind, and how many members had no reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Groups whose rewards differ.
    pub informative: u64,
    /// Groups whose rewards are all the same.
    pub constant: u64,
    /// Constant groups whose reward is 0.
    pub all_zero: u64,
    /// Constant groups whose reward is 1.
    pub all_one: u64,
    /// Groups with one reward.
    pub lone: u64,
    /// Groups without a reward.
    pub empty: u64,
    /// Rollouts without a reward.
    pub failed_rollouts: u64,
}

impl GroupCounts {
    /// All groups.
    pub fn groups(&self) -> u64 {
        self.informative + self.constant + self.lone + self.empty
    }
}

/// Why a batch cannot be normalised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NormalizeError {
    /// The batch lacks a column that is needed, or it has another type.
    #[error("column {0} is missing or of another type; the batch is not trajectory/1")]
    Column(&'static str),
    /// Rows of one rollout say different rewards.
    #[error("group {group}, rollout {rollout}: its segments have different rewards")]
    Rewards {
        /// The group.
        group: u64,
        /// The rollout.
        rollout: u16,
    },
    /// Two rows are the same segment.
    #[error("group {group}, rollout {rollout}: segment {segment} is there twice")]
    Twice {
        /// The group.
        group: u64,
        /// The rollout.
        rollout: u16,
        /// The segment.
        segment: u16,
    },
    /// The rows of a group are not of one task.
    #[error("group {group} has rows of seeds {first} and {second}; a group shares one seed")]
    Seeds {
        /// The group.
        group: u64,
        /// A seed in it.
        first: u64,
        /// Another.
        second: u64,
    },
}

/// Computes the advantages of all groups of a batch of `trajectory/1` and returns the batch with its column `advantage`
/// replaced; all other columns are shared with the input, not copied.
///
/// # Errors
/// Where the batch lacks columns, or a group contradicts itself.
pub fn normalize(batch: &RecordBatch, lone: LoneRollout) -> Result<(RecordBatch, GroupCounts), NormalizeError> {
    let column = |name: &'static str| batch.column_by_name(name).ok_or(NormalizeError::Column(name));
    let wrong = NormalizeError::Column;
    let groups = column("group")?.as_primitive_opt::<UInt64Type>().ok_or(wrong("group"))?;
    let seeds = column("seed")?.as_primitive_opt::<UInt64Type>().ok_or(wrong("seed"))?;
    let rollouts = column("rollout")?.as_primitive_opt::<UInt16Type>().ok_or(wrong("rollout"))?;
    let segments = column("segment")?.as_primitive_opt::<UInt16Type>().ok_or(wrong("segment"))?;
    let rewards = column("reward")?.as_primitive_opt::<Float32Type>().ok_or(wrong("reward"))?;

    // group -> rollout -> reward: one entry per rollout, however many segments it has.
    let mut members: BTreeMap<u64, BTreeMap<u16, Option<f32>>> = BTreeMap::new();
    let mut seed_of: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for i in 0..batch.num_rows() {
        let (group, rollout, segment) = (groups.value(i), rollouts.value(i), segments.value(i));
        if !seen.insert((group, rollout, segment)) {
            return Err(NormalizeError::Twice { group, rollout, segment });
        }
        let first = *seed_of.entry(group).or_insert(seeds.value(i));
        if first != seeds.value(i) {
            return Err(NormalizeError::Seeds { group, first, second: seeds.value(i) });
        }
        let reward = rewards.is_valid(i).then(|| rewards.value(i));
        if *members.entry(group).or_default().entry(rollout).or_insert(reward) != reward {
            return Err(NormalizeError::Rewards { group, rollout });
        }
    }

    let mut counts = GroupCounts::default();
    let mut advantages: BTreeMap<(u64, u16), Option<f64>> = BTreeMap::new();
    for (&group, rollouts) in &members {
        let rewards: Vec<Option<f64>> = rollouts.values().map(|r| r.map(f64::from)).collect();
        let result = group_advantages(&rewards, lone);
        counts.failed_rollouts += rewards.iter().filter(|r| r.is_none()).count() as u64;
        match result.kind {
            GroupKind::Informative => counts.informative += 1,
            GroupKind::Lone => counts.lone += 1,
            GroupKind::Empty => counts.empty += 1,
            GroupKind::Constant => {
                counts.constant += 1;
                counts.all_zero += u64::from(result.mean.abs() <= super::CONSTANT_SPREAD);
                counts.all_one += u64::from((result.mean - 1.0).abs() <= super::CONSTANT_SPREAD);
            }
        }
        advantages.extend(rollouts.keys().zip(result.advantages).map(|(&rollout, a)| ((group, rollout), a)));
    }

    let of_row = |i: usize| advantages[&(groups.value(i), rollouts.value(i))].map(|a| a as f32);
    let filled: ArrayRef = Arc::new((0..batch.num_rows()).map(of_row).collect::<Float32Array>());
    let schema = batch.schema();
    let index = schema.index_of("advantage").map_err(|_| wrong("advantage"))?;
    let mut columns = batch.columns().to_vec();
    columns[index] = filled;
    let batch = RecordBatch::try_new(schema, columns).map_err(|_| wrong("advantage"))?;
    Ok((batch, counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{trajectory_batch, trajectory_rows};
    use crate::rows::{SegmentRow, Status};
    use crate::samples::row;

    fn failed(seed: u64, rollout: u16) -> SegmentRow {
        let mut row = row(seed, rollout, 0.0);
        row.status = Status::EnvironmentFailed;
        row.error = Some("gone".into());
        row.reward = None;
        row
    }

    fn segment(seed: u64, rollout: u16, segment: u16, reward: f32) -> SegmentRow {
        let row = row(seed, rollout, reward);
        SegmentRow { segment, id: format!("unit/g{seed}/r{rollout}/s{segment}"), ..row }
    }

    fn normalized(rows: &[SegmentRow]) -> (Vec<Option<f32>>, GroupCounts) {
        let (batch, counts) = normalize(&trajectory_batch(rows).unwrap(), LoneRollout::Drop).unwrap();
        (trajectory_rows(&batch).unwrap().into_iter().map(|r| r.advantage).collect(), counts)
    }

    #[test]
    fn a_rollout_of_three_segments_counts_once_and_all_its_rows_carry_its_advantage() {
        let (split, counts) =
            normalized(&[segment(1, 0, 0, 1.0), segment(1, 0, 1, 1.0), segment(1, 0, 2, 1.0), segment(1, 1, 0, 0.0)]);
        let (whole, _) = normalized(&[row(1, 0, 1.0), row(1, 1, 0.0)]);
        assert_eq!(split, vec![whole[0], whole[0], whole[0], whole[1]]);
        assert_eq!(counts, GroupCounts { informative: 1, ..GroupCounts::default() });
    }

    #[test]
    fn a_failed_member_has_no_advantage_and_leaves_the_others_theirs() {
        let (with, counts) = normalized(&[row(1, 0, 1.0), row(1, 1, 0.0), failed(1, 2)]);
        let (without, _) = normalized(&[row(1, 0, 1.0), row(1, 1, 0.0)]);
        assert_eq!(with, vec![without[0], without[1], None]);
        assert_eq!(counts.failed_rollouts, 1);
    }

    #[test]
    fn groups_are_counted_by_what_they_can_teach() {
        let (_, counts) = normalized(&[
            row(1, 0, 1.0),
            row(1, 1, 0.0),
            row(2, 0, 0.0),
            row(2, 1, 0.0),
            row(3, 0, 1.0),
            row(3, 1, 1.0),
            row(4, 0, 0.5),
            row(4, 1, 0.5),
            row(5, 0, 1.0),
            failed(5, 1),
            failed(6, 0),
        ]);
        let expected =
            GroupCounts { informative: 1, constant: 3, all_zero: 1, all_one: 1, lone: 1, empty: 1, failed_rollouts: 2 };
        assert_eq!(counts, expected);
        assert_eq!(counts.groups(), 6);
    }

    #[test]
    fn a_batch_that_contradicts_itself_is_refused() {
        let refuse = |rows: &[SegmentRow]| normalize(&trajectory_batch(rows).unwrap(), LoneRollout::Drop).unwrap_err();
        assert_eq!(
            refuse(&[row(1, 0, 1.0), row(1, 0, 1.0)]),
            NormalizeError::Twice { group: 1, rollout: 0, segment: 0 }
        );
        assert_eq!(
            refuse(&[segment(1, 0, 0, 1.0), segment(1, 0, 1, 0.0)]),
            NormalizeError::Rewards { group: 1, rollout: 0 }
        );
        let stray = SegmentRow { group: 1, ..row(4, 1, 0.0) };
        assert_eq!(refuse(&[row(1, 0, 1.0), stray]), NormalizeError::Seeds { group: 1, first: 1, second: 4 });
    }

    #[test]
    fn all_other_columns_are_shared_not_copied() {
        let batch = trajectory_batch(&[row(1, 0, 1.0), row(1, 1, 0.0)]).unwrap();
        let (out, _) = normalize(&batch, LoneRollout::Drop).unwrap();
        for (i, field) in batch.schema().fields().iter().enumerate() {
            let shared = Arc::ptr_eq(batch.column(i), out.column(i));
            assert_eq!(shared, field.name() != "advantage", "{}", field.name());
        }
    }
}
