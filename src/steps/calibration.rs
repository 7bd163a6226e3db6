//! How hard an environment is for the base policy, and whether that is acceptable. Pure arithmetic over rewards.

use crate::config::Calibration;
use crate::record::metrics::CalibrationMetric;
use crate::stats::{mean, pass_at_k, population_std};

/// Rewards within this of each other, or of 0 or 1, are equal.
const SAME: f64 = 1e-6;

/// The k of pass@k.
const KS: [u64; 4] = [1, 4, 8, 16];

/// Measures an environment at one level. `groups`: the rewards of each group's rollouts, `None` for one without a verdict.
pub fn measure(capability: &str, level: u32, groups: &[Vec<Option<f64>>], bounds: &Calibration) -> CalibrationMetric {
    let judged: Vec<Vec<f64>> = groups.iter().map(|group| group.iter().flatten().copied().collect()).collect();
    let rewards: Vec<f64> = judged.iter().flatten().copied().collect();
    let passed = |reward: f64| reward >= 1.0 - SAME;
    let with_verdict: Vec<&Vec<f64>> = judged.iter().filter(|group| !group.is_empty()).collect();
    let share = |count: usize, of: usize| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    let groups_that = |holds: &dyn Fn(&Vec<f64>) -> bool| with_verdict.iter().filter(|group| holds(group)).count();
    let differs = |group: &Vec<f64>| {
        let (low, high) = group.iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        high - low > SAME
    };
    let pass_at = |k: u64| {
        let values: Vec<f64> = judged
            .iter()
            .filter_map(|group| pass_at_k(group.len() as u64, group.iter().filter(|r| passed(**r)).count() as u64, k))
            .collect();
        mean(&values).map(|value| (k, value))
    };
    let informative = groups_that(&differs);
    let mut metric = CalibrationMetric {
        capability: capability.to_owned(),
        level,
        groups: groups.len() as u64,
        rollouts: rewards.len() as u64,
        left_out: groups.iter().flatten().filter(|reward| reward.is_none()).count() as u64,
        mean: mean(&rewards),
        std: population_std(&rewards),
        success: (!rewards.is_empty()).then(|| share(rewards.iter().filter(|r| passed(**r)).count(), rewards.len())),
        all_success: share(groups_that(&|group| group.iter().all(|r| passed(*r))), with_verdict.len()),
        all_zero: share(groups_that(&|group| group.iter().all(|r| *r <= SAME)), with_verdict.len()),
        constant: share(with_verdict.len() - informative, with_verdict.len()),
        informative: share(informative, groups.len()),
        pass_at: KS.into_iter().filter_map(pass_at).collect(),
        rejected_for: Vec::new(),
    };
    metric.rejected_for = out_of_bounds(&metric, bounds);
    metric
}

/// What is out of bounds, a phrase each.
fn out_of_bounds(metric: &CalibrationMetric, bounds: &Calibration) -> Vec<String> {
    let (Some(mean), Some(std), Some(success)) = (metric.mean, metric.std, metric.success) else {
        return vec!["no rollout has a verdict".to_owned()];
    };
    let least = [
        ("mean reward", mean, bounds.min_mean),
        ("success rate", success, bounds.min_success),
        ("reward std", std, bounds.min_std),
        ("share of informative groups", metric.informative, bounds.min_informative),
    ];
    let most = [
        ("mean reward", mean, bounds.max_mean),
        ("success rate", success, bounds.max_success),
        ("share of all-success groups", metric.all_success, bounds.max_all_success),
        ("share of all-zero groups", metric.all_zero, bounds.max_all_zero),
        ("share of constant groups", metric.constant, bounds.max_constant),
    ];
    let below = least.into_iter().filter(|(_, value, bound)| *value < bound - 1e-9);
    let above = most.into_iter().filter(|(_, value, bound)| *value > bound + 1e-9);
    below
        .map(|(what, value, bound)| format!("{what} {value:.2} is below {bound}"))
        .chain(above.map(|(what, value, bound)| format!("{what} {value:.2} is above {bound}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(rewards: &[&[f64]]) -> Vec<Vec<Option<f64>>> {
        rewards.iter().map(|group| group.iter().map(|r| Some(*r)).collect()).collect()
    }

    #[test]
    fn shares_are_of_groups_and_success_is_reward_1() {
        let rewards = groups(&[&[1.0, 1.0], &[0.0, 0.0], &[0.3, 0.3], &[0.0, 1.0], &[0.6, 0.3]]);
        let metric = measure("cap", 2, &rewards, &Calibration::default());
        assert_eq!((metric.groups, metric.rollouts, metric.left_out), (5, 10, 0));
        assert_eq!((metric.all_success, metric.all_zero, metric.constant, metric.informative), (0.2, 0.2, 0.6, 0.4));
        assert_eq!((metric.success, metric.pass_at.as_slice()), (Some(0.3), [(1, 0.3)].as_slice()));
        assert_eq!(
            metric.rejected_for,
            ["share of informative groups 0.40 is below 0.5", "share of constant groups 0.60 is above 0.5"]
        );
    }

    #[test]
    fn what_is_within_all_bounds_is_accepted() {
        let rewards: Vec<Vec<Option<f64>>> =
            (0..10).map(|_| vec![Some(0.0), Some(1.0), Some(0.3), Some(0.0)]).collect();
        let metric = measure("cap", 0, &rewards, &Calibration::default());
        assert_eq!(metric.rejected_for, Vec::<String>::new());
        assert_eq!(metric.pass_at, [(1, 0.25), (4, 1.0)]);
    }

    #[test]
    fn successes_alone_are_not_kept_and_failures_are_no_zeros() {
        let with_failures = vec![vec![Some(1.0), None, Some(0.0), None]; 4];
        let metric = measure("cap", 0, &with_failures, &Calibration::default());
        assert_eq!((metric.mean, metric.rollouts, metric.left_out, metric.informative), (Some(0.5), 8, 8, 1.0));
        let nothing = measure("cap", 0, &[vec![None, None]], &Calibration::default());
        assert_eq!((nothing.mean, nothing.informative), (None, 0.0));
        assert_eq!(nothing.rejected_for, ["no rollout has a verdict"]);
    }
}
