//! Statistics of pass rates: means, intervals, pass@k. Plain arithmetic over plain numbers.
//!
//! The unit of chance is the *task*: trials of one task are alike, so they are averaged first, and intervals come from
//! resampling tasks. Where two arms are compared, both have the same tasks and are resampled together (paired), which
//! removes the difference between easy and hard tasks from the interval.

use rand::RngExt;
use serde::{Deserialize, Serialize};
use trace_envs::SeedStream;

/// An interval of a confidence that its source states.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
}

/// The population standard deviation (divided by n, not n - 1); `None` of nothing.
pub fn population_std(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    Some(mean(&values.iter().map(|x| (x - centre).powi(2)).collect::<Vec<_>>())?.sqrt())
}

/// Wilson's score interval of a proportion: `successes` of `n` independent draws at `confidence` in (0, 1).
/// `None` when n is 0. Unlike the normal approximation it stays within [0, 1] and is not empty at 0 or n.
pub fn wilson(successes: u64, n: u64, confidence: f64) -> Option<Interval> {
    if n == 0 {
        return None;
    }
    let z = normal_quantile(0.5 + confidence / 2.0);
    let (n, p) = (n as f64, successes as f64 / n as f64);
    let denominator = 1.0 + z * z / n;
    let centre = (p + z * z / (2.0 * n)) / denominator;
    let half = z / denominator * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    Some(Interval { low: (centre - half).max(0.0), high: (centre + half).min(1.0) })
}

/// The z below which a standard normal variable lies with probability `p` in (0, 1), to a relative error of 1.2e-9: Acklam's rational
/// approximation.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416];
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |q: f64| polynomial(&C, q) / (polynomial(&D, q) * q + 1.0);
    if p < 0.024_25 {
        tail((-2.0 * p.ln()).sqrt())
    } else if p > 1.0 - 0.024_25 {
        -tail((-2.0 * (1.0 - p).ln()).sqrt())
    } else {
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
    }
}

/// Unbiased pass@k of one task, of which `c` of `n` trials passed: the chance that at least one of k trials drawn without
/// replacement passes, `1 - C(n-c, k) / C(n, k)`. `None` unless `1 <= k <= n` and `c <= n`.
pub fn pass_at_k(n: u64, c: u64, k: u64) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    Some(1.0 - ratio_of_binomials(n - c, n, k))
}

/// Unbiased pass^k of one task: the chance that all of k trials drawn without replacement pass, `C(c, k) / C(n, k)`.
/// `None` unless `1 <= k <= n` and `c <= n`.
pub fn pass_hat_k(n: u64, c: u64, k: u64) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    Some(ratio_of_binomials(c, n, k))
}

/// `C(m, k) / C(n, k)` for `m <= n`, as a product that overflows for no n.
fn ratio_of_binomials(m: u64, n: u64, k: u64) -> f64 {
    if m < k {
        return 0.0;
    }
    (0..k).map(|i| (m - i) as f64 / (n - i) as f64).product()
}

/// How the bootstrap resamples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// Resamples drawn.
    pub samples: u32,
    /// Confidence of the interval, in (0, 1).
    pub confidence: f64,
    /// Seed of the resampling: the same one gives the same interval.
    pub seed: u64,
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure itself.
    pub value: f64,
    /// Its bootstrap interval (percentiles).
    pub interval: Interval,
}

impl Bootstrap {
    /// The mean over tasks of one arm; `per_task`: one value a task, its trials averaged. `None` of no task.
    pub fn over_tasks(&self, per_task: &[f64]) -> Option<Estimate> {
        self.over_runs_and_tasks(&[per_task.to_vec()])
    }

    /// The mean difference `a - b` of two arms on the same tasks, in the same order. `None` of no task.
    ///
    /// # Panics
    /// Where the arms have different numbers of tasks: a difference would pair what does not belong together.
    pub fn paired(&self, a: &[f64], b: &[f64]) -> Option<Estimate> {
        assert_eq!(a.len(), b.len(), "paired arms have the same tasks");
        self.over_tasks(&a.iter().zip(b).map(|(x, y)| x - y).collect::<Vec<_>>())
    }

    /// The mean over several runs (training seeds) with their tasks, resampled in two stages: runs with replacement, and
    /// the tasks, once for all runs of a resample, since every run has the same test tasks. For a difference of
    /// arms, give the differences of each run. `None` where there is no run or no task.
    ///
    /// # Panics
    /// Where runs have different numbers of tasks.
    pub fn over_runs_and_tasks(&self, runs: &[Vec<f64>]) -> Option<Estimate> {
        let tasks = runs.first()?.len();
        assert!(runs.iter().all(|run| run.len() == tasks), "all runs have the same tasks");
        let means: Vec<f64> = runs.iter().map(|run| mean(run)).collect::<Option<_>>()?;
        let mut rng = SeedStream::keyed(&[self.seed, u64::from_le_bytes(*b"bootstrp")]);
        let mut counts = vec![0u32; tasks];
        let mut resampled: Vec<f64> = (0..self.samples)
            .map(|_| {
                counts.fill(0);
                for _ in 0..tasks {
                    counts[rng.random_range(0..tasks)] += 1;
                }
                let one = |run: &[f64]| run.iter().zip(&counts).map(|(x, n)| x * f64::from(*n)).sum::<f64>();
                // With one run there is no choice of runs, and no random number is spent on it.
                let sum: f64 = match runs {
                    [only] => one(only),
                    _ => (0..runs.len()).map(|_| one(&runs[rng.random_range(0..runs.len())])).sum(),
                };
                sum / (tasks * runs.len()) as f64
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let tail = (1.0 - self.confidence) / 2.0;
        let interval = Interval { low: quantile(&resampled, tail)?, high: quantile(&resampled, 1.0 - tail)? };
        Some(Estimate { value: mean(&means)?, interval })
    }
}

/// The quantile `p` in [0, 1] of sorted values, interpolated linearly between the two nearest. `None` of nothing.
fn quantile(sorted: &[f64], p: f64) -> Option<f64> {
    let position = p * (sorted.len().checked_sub(1)?) as f64;
    let (below, share) = (position.floor() as usize, position.fract());
    let above = (below + 1).min(sorted.len() - 1);
    Some(sorted[below] + share * (sorted[above] - sorted[below]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOTSTRAP: Bootstrap = Bootstrap { samples: 2000, confidence: 0.95, seed: 7 };

    fn near(a: f64, b: f64, by: f64) {
        assert!((a - b).abs() <= by, "{a} is not {b} within {by}");
    }

    /// The definition, by counting subsets of k of n trials.
    fn by_enumeration(n: u32, c: u32, k: u32, good: impl Fn(u32) -> bool) -> f64 {
        let (mut all, mut hits) = (0u32, 0u32);
        for subset in 0u32..1 << n {
            if subset.count_ones() == k {
                all += 1;
                hits += u32::from(good((subset & ((1 << c) - 1)).count_ones()));
            }
        }
        f64::from(hits) / f64::from(all)
    }

    #[test]
    fn pass_at_k_and_pass_hat_k_count_subsets_of_the_trials() {
        for n in 1..=9 {
            for c in 0..=n {
                for k in 1..=n {
                    let (n64, c64, k64) = (u64::from(n), u64::from(c), u64::from(k));
                    near(pass_at_k(n64, c64, k64).unwrap(), by_enumeration(n, c, k, |hits| hits > 0), 1e-12);
                    near(pass_hat_k(n64, c64, k64).unwrap(), by_enumeration(n, c, k, |hits| hits == k), 1e-12);
                }
            }
        }
    }

    #[test]
    fn pass_at_k_is_undefined_where_more_trials_are_drawn_than_there_are() {
        assert_eq!([pass_at_k(3, 1, 4), pass_at_k(3, 4, 1), pass_at_k(3, 1, 0), pass_hat_k(0, 0, 1)], [None; 4]);
    }

    #[test]
    fn pass_at_k_of_many_trials_does_not_overflow() {
        near(pass_at_k(100_000, 1, 50_000).unwrap(), 0.5, 1e-9);
    }

    #[test]
    fn the_standard_deviation_is_the_population_one() {
        near(population_std(&[1.0, 3.0, 2.0]).unwrap(), (2.0f64 / 3.0).sqrt(), 1e-12);
        assert_eq!((mean(&[]), population_std(&[]), population_std(&[4.0])), (None, None, Some(0.0)));
    }

    #[test]
    fn wilson_equals_published_values() {
        // Newcombe 1998, table I, method 3: 81/263, 15/148, 0/20, 1/29.
        for (c, n, low, high) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
        {
            let interval = wilson(c, n, 0.95).unwrap();
            near(interval.low, low, 5e-5);
            near(interval.high, high, 5e-5);
        }
        assert_eq!(wilson(0, 0, 0.95), None);
    }

    #[test]
    fn normal_quantiles_equal_tabulated_ones() {
        for (p, z) in [
            (0.975, 1.959963984540054),
            (0.95, 1.6448536269514722),
            (0.995, 2.5758293035489004),
            (0.01, -2.3263478740408408),
        ] {
            near(normal_quantile(p), z, 1e-8);
        }
    }

    #[test]
    fn the_bootstrap_interval_of_a_mean_agrees_with_the_normal_one_for_many_tasks() {
        let per_task: Vec<f64> = (0..400).map(|i| f64::from(i % 5) / 4.0).collect();
        let got = BOOTSTRAP.over_tasks(&per_task).unwrap();
        let error = 1.96 * population_std(&per_task).unwrap() / 20.0;
        near(got.value, 0.5, 1e-12);
        near(got.interval.low, 0.5 - error, 0.004);
        near(got.interval.high, 0.5 + error, 0.004);
    }

    #[test]
    fn pairing_removes_the_difference_between_tasks() {
        let hard: Vec<f64> = (0..50).map(|i| f64::from(i % 2)).collect();
        let better: Vec<f64> = hard.iter().map(|x| x + 0.1).collect();
        let paired = BOOTSTRAP.paired(&better, &hard).unwrap();
        near(paired.interval.low, 0.1, 1e-9);
        near(paired.interval.high, 0.1, 1e-9);
    }

    #[test]
    fn runs_that_differ_widen_the_interval() {
        let run = |level: f64| (0..100).map(|i| level + 0.01 * f64::from(i % 3)).collect::<Vec<_>>();
        let width = |e: Estimate| e.interval.high - e.interval.low;
        let alike = BOOTSTRAP.over_runs_and_tasks(&[run(0.5), run(0.5), run(0.5)]).unwrap();
        let apart = BOOTSTRAP.over_runs_and_tasks(&[run(0.3), run(0.5), run(0.7)]).unwrap();
        assert!(width(alike) < 0.01 && width(apart) > 0.2, "{alike:?} {apart:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_another_seed_another() {
        let values: Vec<f64> = (0..30).map(|i| f64::from(i * i % 7)).collect();
        let other = Bootstrap { seed: 8, ..BOOTSTRAP };
        assert_eq!(BOOTSTRAP.over_tasks(&values), BOOTSTRAP.over_tasks(&values));
        assert_ne!(BOOTSTRAP.over_tasks(&values), other.over_tasks(&values));
        assert_eq!(BOOTSTRAP.over_tasks(&[]), None);
    }

    proptest! {
        #[test]
        fn wilson_is_an_interval_within_0_and_1_around_the_proportion(n in 1u64..500, share in 0.0f64..=1.0, confidence in 0.5f64..0.999) {
            let c = (share * n as f64) as u64;
            let interval = wilson(c, n, confidence).unwrap();
            let p = c as f64 / n as f64;
            prop_assert!(0.0 <= interval.low && interval.low <= p + 1e-12 && p - 1e-12 <= interval.high && interval.high <= 1.0);
            prop_assert!(interval.low < interval.high);
        }

        #[test]
        fn pass_at_k_grows_with_k_and_with_c_and_meets_pass_hat_k_at_1(n in 1u64..40, c in 0u64..40, k in 1u64..40) {
            prop_assume!(c <= n && k < n);
            prop_assert!(pass_at_k(n, c, k).unwrap() <= pass_at_k(n, c, k + 1).unwrap() + 1e-12);
            prop_assert!(pass_hat_k(n, c, k).unwrap() + 1e-12 >= pass_hat_k(n, c, k + 1).unwrap());
            prop_assert!((pass_at_k(n, c, 1).unwrap() - pass_hat_k(n, c, 1).unwrap()).abs() < 1e-12);
            if c < n {
                prop_assert!(pass_at_k(n, c, k).unwrap() <= pass_at_k(n, c + 1, k).unwrap() + 1e-12);
            }
        }

        #[test]
        fn an_interval_lies_within_the_range_of_the_tasks(values in prop::collection::vec(0.0f64..1.0, 1..40)) {
            let bootstrap = Bootstrap { samples: 200, ..BOOTSTRAP };
            let got = bootstrap.over_tasks(&values).unwrap();
            let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
            prop_assert!(low - 1e-9 <= got.interval.low && got.interval.low <= got.interval.high && got.interval.high <= high + 1e-9);
        }
    }
}
