//! Advantages of one group from plain numbers.

use serde::{Deserialize, Serialize};

/// Added to the standard deviation.
pub const EPS: f64 = 1e-6;

/// A group is constant where `max - min` of its rewards is at most this.
pub const CONSTANT_SPREAD: f64 = 1e-6;

/// What a group can teach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupKind {
    /// Its rewards differ.
    Informative,
    /// At least two rewards, all the same: no gradient.
    Constant,
    /// One member with a reward: nothing to compare it with.
    Lone,
    /// No member has a reward.
    Empty,
}

/// What becomes of the only member of a group that has a reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoneRollout {
    /// It has no advantage, so it is not trained on.
    #[default]
    Drop,
    /// Its advantage is 0.
    Zero,
}

/// The statistics and advantages of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAdvantages {
    /// What the group can teach.
    pub kind: GroupKind,
    /// Mean over the rewards that there are; 0 without any.
    pub mean: f64,
    /// Population standard deviation over the rewards that there are.
    pub std: f64,
    /// One per member, in order; `None` for a member without a reward.
    pub advantages: Vec<Option<f64>>,
}

/// The advantages of the members of one group; `None` is a member that failed.
///
/// Rewards must be finite: rows with others do not get past [`crate::rows::SegmentRow::validate`].
pub fn group_advantages(rewards: &[Option<f64>], lone: LoneRollout) -> GroupAdvantages {
    let present: Vec<f64> = rewards.iter().flatten().copied().collect();
    let n = present.len() as f64;
    if present.is_empty() {
        return GroupAdvantages { kind: GroupKind::Empty, mean: 0.0, std: 0.0, advantages: vec![None; rewards.len()] };
    }
    let mean = present.iter().sum::<f64>() / n;
    let std = (present.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n).sqrt();
    let spread = present.iter().copied().fold(f64::MIN, f64::max) - present.iter().copied().fold(f64::MAX, f64::min);
    let kind = match present.len() {
        1 => GroupKind::Lone,
        _ if spread <= CONSTANT_SPREAD => GroupKind::Constant,
        _ => GroupKind::Informative,
    };
    let advantage = |reward: f64| match kind {
        GroupKind::Informative => Some((reward - mean) / (std + EPS)),
        GroupKind::Constant => Some(0.0),
        GroupKind::Lone => (lone == LoneRollout::Zero).then_some(0.0),
        GroupKind::Empty => None,
    };
    GroupAdvantages { kind, mean, std, advantages: rewards.iter().map(|r| r.and_then(advantage)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_failed_member_is_absent_from_mean_and_std() {
        let with_failed = group_advantages(&[Some(1.0), Some(3.0), Some(2.0), None], LoneRollout::Drop);
        let without = group_advantages(&[Some(1.0), Some(3.0), Some(2.0)], LoneRollout::Drop);
        assert_eq!(with_failed.mean, 2.0);
        assert_eq!((with_failed.std, with_failed.kind), (without.std, GroupKind::Informative));
        assert_eq!(with_failed.advantages[..3], without.advantages[..]);
        assert_eq!(with_failed.advantages[3], None);
    }

    #[test]
    fn the_std_is_the_population_one() {
        let group = group_advantages(&[Some(1.0), Some(0.0), Some(0.0), Some(0.0)], LoneRollout::Drop);
        assert_eq!(group.std, (3.0f64 / 16.0).sqrt());
        let expected = [3.0f64.sqrt(), -1.0 / 3.0f64.sqrt()];
        assert!((group.advantages[0].unwrap() - expected[0]).abs() < 1e-4);
        assert!((group.advantages[1].unwrap() - expected[1]).abs() < 1e-4);
    }

    #[test]
    fn a_group_of_one_has_no_nan_and_is_dropped_or_zero_by_configuration() {
        for rewards in [vec![Some(0.7)], vec![None, Some(0.7), None]] {
            let dropped = group_advantages(&rewards, LoneRollout::Drop);
            assert_eq!(dropped.kind, GroupKind::Lone);
            assert!(dropped.advantages.iter().all(Option::is_none));
            let zero = group_advantages(&rewards, LoneRollout::Zero);
            let expected: Vec<_> = rewards.iter().map(|r| r.map(|_| 0.0)).collect();
            assert_eq!((zero.kind, zero.advantages), (GroupKind::Lone, expected));
        }
    }

    #[test]
    fn a_constant_group_has_advantage_zero_whatever_its_rounding() {
        let group = group_advantages(&[Some(0.1 + 0.2), Some(0.3), Some(0.3 + 5e-7)], LoneRollout::Drop);
        assert_eq!(group.kind, GroupKind::Constant);
        assert_eq!(group.advantages, vec![Some(0.0); 3]);
        let group = group_advantages(&[Some(0.3), Some(0.3 + 2e-6)], LoneRollout::Drop);
        assert_eq!(group.kind, GroupKind::Informative);
    }

    #[test]
    fn a_group_of_failures_is_empty_not_zero() {
        let group = group_advantages(&[None, None], LoneRollout::Zero);
        assert_eq!((group.kind, group.advantages), (GroupKind::Empty, vec![None, None]));
    }

    proptest! {
        #[test]
        fn advantages_are_finite_centred_and_of_unit_scale(
            rewards in prop::collection::vec(prop::option::weighted(0.8, 0.0f64..=1.0), 0..20),
        ) {
            let group = group_advantages(&rewards, LoneRollout::Zero);
            let present: Vec<f64> = group.advantages.iter().flatten().copied().collect();
            prop_assert_eq!(present.len(), rewards.iter().flatten().count());
            prop_assert!(present.iter().all(|a| a.is_finite()));
            let sum: f64 = present.iter().sum();
            prop_assert!(sum.abs() < 1e-6, "sum {}", sum);
            if group.kind == GroupKind::Informative && group.std > 1e-3 {
                let mean_square = present.iter().map(|a| a * a).sum::<f64>() / present.len() as f64;
                prop_assert!((mean_square - 1.0).abs() < 1e-2, "mean square {}", mean_square);
            }
        }

        #[test]
        fn advantages_do_not_depend_on_order_scale_or_offset(
            rewards in prop::collection::vec(prop_oneof![Just(0.0f64), Just(0.25), Just(0.5), Just(1.0)], 2..12),
            offset in -3.0f64..3.0,
            scale in 1.0f64..9.0,
        ) {
            let wrap = |r: &[f64]| group_advantages(&r.iter().map(|&x| Some(x)).collect::<Vec<_>>(), LoneRollout::Drop);
            let plain = wrap(&rewards);
            let moved = wrap(&rewards.iter().map(|r| r * scale + offset).collect::<Vec<_>>());
            let reversed = wrap(&rewards.iter().rev().copied().collect::<Vec<_>>());
            prop_assert_eq!(plain.kind, moved.kind);
            for (i, a) in plain.advantages.iter().enumerate() {
                let (a, b, c) = (a.unwrap(), moved.advantages[i].unwrap(), reversed.advantages[rewards.len() - 1 - i].unwrap());
                prop_assert!((a - b).abs() < 1e-4 && (a - c).abs() < 1e-9);
            }
        }
    }
}
