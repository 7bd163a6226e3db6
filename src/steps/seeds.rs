//! Which seeds each stage takes, so that no two stages of a run, and no two runs of other seeds, train on the same tasks, and
//! every run is judged on the same ones.

use trace_envs::Split;

/// A stage that takes train seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Base rollouts.
    Base,
    /// Calibration.
    Calibrate,
    /// Training, of one learner after the other: capabilities have environments of their own, baselines may share one.
    Train(u16),
    /// Rollouts for gates.
    Gate,
}

/// Indices of one block: more tasks than any stage takes.
const BLOCK: u64 = 1 << 24;
/// Blocks of one run.
const RUN: u64 = BLOCK << 8;
/// Runs that differ. With these, a seed stays below 2^53 and survives a JSON reader that knows only doubles.
const RUNS: u64 = 1 << 16;

/// The train seed of an index within a block of a run.
pub fn train(run_seed: u64, block: Block, index: u64) -> u64 {
    let block = match block {
        Block::Base => 0,
        Block::Calibrate => 1,
        Block::Gate => 2,
        Block::Train(learner) => 3 + u64::from(learner % 253),
    };
    Split::Train.seed(run_seed % RUNS * RUN + block * BLOCK + index % BLOCK)
}

/// The first dev seeds: the same for every run.
pub fn dev(count: u32) -> Vec<u64> {
    (0..u64::from(count)).map(|index| Split::Dev.seed(index)).collect()
}

/// The first test seeds: the same for every run.
pub fn test(count: u32) -> Vec<u64> {
    (0..u64::from(count)).map(|index| Split::Test.seed(index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn stages_and_runs_share_no_train_seed_and_seeds_fit_a_double() {
        let mut all = BTreeSet::new();
        let blocks = [Block::Base, Block::Calibrate, Block::Gate, Block::Train(0), Block::Train(1), Block::Train(252)];
        for run in [0, 1, 2, RUNS - 1] {
            for block in blocks {
                for index in [0, 1, BLOCK - 1] {
                    let seed = train(run, block, index);
                    assert_eq!(Split::of(seed), Split::Train);
                    assert!(seed < 1 << 53 && all.insert(seed), "{run} {block:?} {index}");
                }
            }
        }
    }

    #[test]
    fn dev_and_test_seeds_are_of_their_splits() {
        assert!(dev(5).into_iter().all(|seed| Split::of(seed) == Split::Dev));
        assert!(test(5).into_iter().all(|seed| Split::of(seed) == Split::Test));
    }
}
