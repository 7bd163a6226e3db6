//! How the first stage grows: pure arithmetic over the share of the stage that is done.

use super::config::Skills;
use super::data::Mixture;

/// Share of copy packs once worlds are grown.
const LAST_COPY: f64 = 0.02;
/// The learning rate falls to this share of its height.
const LAST_LR: f64 = 0.05;
/// Copying is learned first: until this share of the growth, worlds keep one record and one part.
const STILL: f64 = 0.15;

/// What to draw from when `done` of the stage, in `[0, 1]`, is behind.
pub fn skills_mixture(stage: &Skills, done: f64) -> Mixture {
    let grown = if stage.growth > 0.0 { (done / stage.growth).min(1.0) } else { 1.0 };
    let growth = ((grown - STILL) / (1.0 - STILL)).max(0.0);
    Mixture {
        growth,
        copy: stage.copy + (LAST_COPY - stage.copy) * grown,
        // The target's own tasks are as hard as they come: they wait until worlds are half grown.
        target: stage.target * ((growth - 0.5) * 2.0).clamp(0.0, 1.0),
    }
}

/// The share of the full learning rate: a rise, a plateau, a linear fall.
pub fn skills_lr(stage: &Skills, done: f64) -> f64 {
    let rise = if stage.warmup > 0.0 { (done / stage.warmup).min(1.0) } else { 1.0 };
    let left = if stage.decay > 0.0 { ((1.0 - done) / stage.decay).clamp(0.0, 1.0) } else { 1.0 };
    rise.max(1e-3) * (LAST_LR + (1.0 - LAST_LR) * left)
}

/// The second stage draws grown worlds, half of them the target.
pub const HABITS_MIXTURE: Mixture = Mixture { growth: 1.0, copy: 0.0, target: 0.5 };

/// The second stage's share of its learning rate.
pub fn habits_lr(done: f64) -> f64 {
    LAST_LR + (1.0 - LAST_LR) * (1.0 - done).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_stay_small_then_grow_and_end_at_the_targets_size() {
        let stage = Skills::default();
        assert_eq!(skills_mixture(&stage, 0.0), Mixture { growth: 0.0, copy: stage.copy, target: 0.0 });
        assert_eq!(skills_mixture(&stage, 0.5 * STILL * stage.growth).growth, 0.0);
        let last = skills_mixture(&stage, 1.0);
        assert!((last.growth - 1.0).abs() < 1e-12 && (last.copy - LAST_COPY).abs() < 1e-12);
        assert!((last.target - stage.target).abs() < 1e-12);
        let growths: Vec<f64> = (0..=100).map(|i| skills_mixture(&stage, f64::from(i) / 100.0).growth).collect();
        assert!(growths.windows(2).all(|w| w[0] <= w[1]));
    }

    #[test]
    fn the_learning_rate_rises_stays_and_falls() {
        let stage = Skills::default();
        assert!(skills_lr(&stage, 0.0) < 0.01);
        assert!((skills_lr(&stage, 0.5) - 1.0).abs() < 1e-12);
        assert!((skills_lr(&stage, 1.0) - LAST_LR).abs() < 1e-12);
        assert!(skills_lr(&stage, 0.9) < skills_lr(&stage, 0.8));
    }
}
