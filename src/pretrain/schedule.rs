//! How a stage goes: pure arithmetic over the share of it that is done.

use super::config::Stage;
use super::data::Mixture;

/// Tokens of the longest string to copy while worlds have one record.
const SHORTEST: u32 = 12;
/// The learning rate falls to this share of its height.
const LAST_LR: f64 = 0.05;
/// Copying is learned first: until this share of the growth, worlds keep one record and one part.
const STILL: f64 = 0.15;

/// What to draw from when `done` of the stage, in `[0, 1]`, is behind.
pub fn mixture(stage: &Stage, done: f64) -> Mixture {
    let grown = if stage.growth > 0.0 { (done / stage.growth).min(1.0) } else { 1.0 };
    let growth = ((grown - STILL) / (1.0 - STILL)).max(0.0);
    Mixture {
        growth,
        copy: stage.copy + (stage.copy_last - stage.copy) * grown,
        copy_longest: SHORTEST + (growth * (f64::from(stage.copy_longest) - f64::from(SHORTEST)).max(0.0)) as u32,
        lookup: stage.lookup,
        hinted: stage.hinted,
        // The target's own tasks are as hard as they come: they wait until worlds are half grown.
        target: stage.target * ((growth - 0.5) * 2.0).clamp(0.0, 1.0),
    }
}

/// Demonstrations in random worlds alone.
pub fn demonstrations(growth: f64) -> Mixture {
    Mixture { growth, copy: 0.0, copy_longest: SHORTEST, lookup: 0.0, hinted: 0.0, target: 0.0 }
}

/// The share of the full learning rate: a rise, a plateau, a linear fall.
pub fn lr(stage: &Stage, done: f64) -> f64 {
    let rise = if stage.warmup > 0.0 { (done / stage.warmup).min(1.0) } else { 1.0 };
    let left = if stage.decay > 0.0 { ((1.0 - done) / stage.decay).clamp(0.0, 1.0) } else { 1.0 };
    rise.max(1e-3) * (LAST_LR + (1.0 - LAST_LR) * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growing() -> Stage {
        Stage { growth: 0.5, copy: 0.5, copy_last: 0.02, ..Stage::default() }
    }

    #[test]
    fn worlds_stay_small_then_grow_and_end_at_the_targets_size() {
        let stage = growing();
        let first = Mixture { growth: 0.0, copy: stage.copy, copy_longest: 12, lookup: 0.0, hinted: 0.0, target: 0.0 };
        assert_eq!(mixture(&stage, 0.0), first);
        assert_eq!(mixture(&stage, 0.5 * STILL * stage.growth).growth, 0.0);
        let last = mixture(&stage, 1.0);
        assert!((last.growth - 1.0).abs() < 1e-12 && (last.copy - 0.02).abs() < 1e-12);
        assert_eq!(last.copy_longest, stage.copy_longest);
        assert!((last.target - stage.target).abs() < 1e-12);
        let growths: Vec<f64> = (0..=100).map(|i| mixture(&stage, f64::from(i) / 100.0).growth).collect();
        assert!(growths.windows(2).all(|w| w[0] <= w[1]));
    }

    #[test]
    fn a_stage_without_growth_has_grown_worlds_and_one_mixture_throughout() {
        let stage = Stage { lookup: 0.3, hinted: 0.4, copy: 0.5, copy_last: 0.25, ..Stage::default() };
        for done in [0.0, 0.5, 1.0] {
            let grown =
                Mixture { growth: 1.0, copy: 0.25, copy_longest: 400, lookup: 0.3, hinted: 0.4, target: stage.target };
            assert_eq!(mixture(&stage, done), grown);
        }
    }

    #[test]
    fn the_learning_rate_rises_stays_and_falls() {
        let stage = growing();
        assert!(lr(&stage, 0.0) < 0.01);
        assert!((lr(&stage, 0.5) - 1.0).abs() < 1e-12);
        assert!((lr(&stage, 1.0) - LAST_LR).abs() < 1e-12);
        assert!(lr(&stage, 0.9) < lr(&stage, 0.8));
    }
}
