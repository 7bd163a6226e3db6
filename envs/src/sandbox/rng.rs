//! The random numbers that `reset` gets.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::seeds::SeedStream;

/// Keeps the streams of environments apart from the others of a run.
const STREAM: u64 = 0x656e_7673;

/// The stream of an episode: the same for the same seed and level, everywhere.
///
/// Only the two draws below are made from it, and both are spelled out here, so that no library's choice of algorithm
/// can change an episode.
pub(super) struct EpisodeRng(ChaCha8Rng);

impl EpisodeRng {
    /// The stream of this seed and level.
    pub(super) fn new(seed: u64, level: u32) -> Self {
        Self(SeedStream::keyed(&[STREAM, seed, u64::from(level)]))
    }

    /// A whole number in `0..n`, each equally likely; `n` is at least 1.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        // Numbers from the incomplete last run of n are drawn again.
        let limit = u64::MAX - u64::MAX % n;
        loop {
            let x = self.0.next_u64();
            if x < limit {
                return x % n;
            }
        }
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws the level of an episode that was asked for with level 0: one of `1..=weights.len()`, by weight.
pub(super) fn draw_level(seed: u64, weights: &[f64]) -> u32 {
    let mut left = EpisodeRng::new(seed, 0).unit() * weights.iter().sum::<f64>();
    for (level, weight) in (1..).zip(weights) {
        left -= weight;
        if left < 0.0 {
            return level;
        }
    }
    // Rounding can leave a remainder of about 1e-16: it belongs to the last level that can be drawn.
    (1..).zip(weights).filter(|(_, w)| **w > 0.0).map(|(level, _)| level).last().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_are_fixed_for_ever() {
        let mut rng = EpisodeRng::new(7, 2);
        let drawn: Vec<u64> = (0..6).map(|_| rng.below(100)).collect();
        assert_eq!(drawn, [83, 85, 6, 90, 95, 10]);
        assert_eq!(rng.unit(), 0.0051788639290196725);
    }

    #[test]
    fn draws_are_even_and_in_range() {
        let mut rng = EpisodeRng::new(1, 1);
        let mut counts = [0u32; 7];
        for _ in 0..7000 {
            counts[rng.below(7) as usize] += 1;
            let x = rng.unit();
            assert!((0.0..1.0).contains(&x));
        }
        // 1000 expected each, standard deviation 29.
        assert!(counts.iter().all(|c| c.abs_diff(1000) < 150), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn levels_follow_their_weights() {
        let mut counts = [0u32; 4];
        for seed in 0..4000 {
            counts[draw_level(seed, &[1.0, 2.0, 1.0]) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts[1].abs_diff(1000) < 120 && counts[2].abs_diff(2000) < 140, "{counts:?}");
        assert!((0..500).all(|seed| draw_level(seed, &[0.0, 1.0, 0.0]) == 2));
    }
}
