//! Seeds and their splits.
//!
//! A task seed is a `u64` whose split can be read from it, so that no seed can belong to two splits and code that
//! trains can refuse a dev or test seed by looking at it.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The part of the tasks that a seed belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Trained on, analysed, and calibrated on.
    Train,
    /// Chosen by: best adapter, settings.
    Dev,
    /// Reported on, and used for nothing else.
    Test,
}

impl Split {
    /// All splits, in the order of their codes.
    pub const ALL: [Split; 3] = [Split::Train, Split::Dev, Split::Test];

    /// The `index`-th seed of this split: `3 * index + code`.
    ///
    /// # Panics
    /// Where `index` exceeds `u64::MAX / 3 - 1`.
    pub fn seed(self, index: u64) -> u64 {
        index.checked_mul(3).and_then(|x| x.checked_add(self as u64)).expect("seed index within u64 / 3")
    }

    /// The split that a seed belongs to.
    pub fn of(seed: u64) -> Split {
        Split::ALL[(seed % 3) as usize]
    }

    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Dev => "dev",
            Split::Test => "test",
        }
    }
}

/// A random stream that depends on nothing but its key: counter-based, so that a redo draws the same numbers.
pub struct SeedStream;

impl SeedStream {
    /// The stream of `key`, whose parts name what is drawn: run seed, phase, group, rollout, token, ...
    pub fn keyed(key: &[u64]) -> ChaCha8Rng {
        // SplitMix64 over the parts: every bit of every part reaches every bit of the 256-bit key.
        let mut state: u64 = 0x243f_6a88_85a3_08d3 ^ (key.len() as u64);
        let mut next = |x: u64| {
            state = state.wrapping_add(x).wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            state ^= z ^ (z >> 31);
            z ^ (z >> 31)
        };
        for &part in key {
            next(part);
        }
        let mut seed = [0u8; 32];
        for chunk in seed.chunks_exact_mut(8) {
            chunk.copy_from_slice(&next(0).to_le_bytes());
        }
        ChaCha8Rng::from_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn a_seed_belongs_to_exactly_one_split() {
        for index in [0, 1, 2, 99, 1 << 40] {
            for split in Split::ALL {
                assert_eq!(Split::of(split.seed(index)), split);
            }
        }
    }

    #[test]
    fn streams_repeat_for_the_same_key_and_differ_for_others() {
        let draw = |key: &[u64]| -> Vec<u64> {
            let mut rng = SeedStream::keyed(key);
            (0..4).map(|_| rng.random()).collect()
        };
        assert_eq!(draw(&[1, 2, 3]), draw(&[1, 2, 3]));
        let keys: [&[u64]; 6] = [&[1, 2, 3], &[1, 3, 2], &[1, 2], &[1, 2, 3, 0], &[0, 2, 3], &[]];
        for (i, a) in keys.iter().enumerate() {
            for b in &keys[i + 1..] {
                assert_ne!(draw(a), draw(b), "{a:?} {b:?}");
            }
        }
    }
}
