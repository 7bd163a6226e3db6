//! Training rows: token ids with what the sampler recorded of them, their checks, and how they are split into passes.

use crate::error::PolicyError;
use crate::packed::Packed;

/// One sequence to train or to score: a whole rollout, or the segment of one that a template kept whole.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainRow {
    /// All token ids, prompt and environment text included: `[T]`.
    pub tokens: Vec<i32>,
    /// `[T]`, true where the policy sampled the token; the end-of-turn token that it sampled counts.
    pub action_mask: Vec<bool>,
    /// `[T]`, log-probs under the distribution that was sampled from. Read only where the mask is true: elsewhere
    /// anything may stand, NaN too.
    pub old_logprobs: Vec<f32>,
    /// The same for all of the row's action tokens.
    pub advantage: f32,
}

/// The rollouts of one seed.
pub type TrainGroup = Vec<TrainRow>;

impl TrainRow {
    /// Number of tokens that the policy sampled.
    pub fn actions(&self) -> usize {
        self.action_mask.iter().filter(|sampled| **sampled).count()
    }

    /// Why the row cannot be trained on, or nothing. A caller that must go on filters rows by this; [`Learner::update`]
    /// fails on such a row.
    ///
    /// [`Learner::update`]: crate::learner::Learner::update
    pub fn fault(&self) -> Option<String> {
        if let Some(fault) = self.scoring_fault() {
            return Some(fault);
        }
        if self.old_logprobs.len() != self.tokens.len() {
            return Some(format!("it has {} tokens and {} log-probs", self.tokens.len(), self.old_logprobs.len()));
        }
        if !self.advantage.is_finite() {
            return Some(format!("its advantage is {}", self.advantage));
        }
        let sampled = self.old_logprobs.iter().zip(&self.action_mask).enumerate().filter(|(_, (_, sampled))| **sampled);
        // A log-prob just above zero is rounding; one well above is no log-prob.
        let bad = sampled
            .map(|(at, (logprob, _))| (at, *logprob))
            .find(|(_, logprob)| !logprob.is_finite() || *logprob > 1e-3);
        bad.map(|(at, logprob)| format!("the sampled token at {at} has log-prob {logprob}"))
    }

    /// Why the row cannot be scored, or nothing: scoring asks nothing of log-probs and advantage.
    pub fn scoring_fault(&self) -> Option<String> {
        if self.action_mask.len() != self.tokens.len() {
            return Some(format!("it has {} tokens and a mask of {}", self.tokens.len(), self.action_mask.len()));
        }
        match self.action_mask.iter().position(|sampled| *sampled) {
            None => Some("it has no sampled token".to_owned()),
            Some(0) => {
                Some("its first token is marked as sampled, but nothing stands before it to predict it".to_owned())
            }
            Some(_) => None,
        }
    }
}

/// Rows that are computed together: indices into the group, and their pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) rows: Vec<usize>,
    pub(crate) packed: Packed,
}

/// The action tokens of a pass, flat: which state predicts each, and which token it is.
#[derive(Debug, Default)]
pub(crate) struct PassActions {
    /// Flat indices into the pass's hidden states.
    pub(crate) predictors: Vec<i64>,
    pub(crate) targets: Vec<i64>,
    /// For each token: index of the row in the group, position in the row.
    pub(crate) places: Vec<(usize, usize)>,
}

/// Splits rows, in order, into passes of at most `max_tokens` computed tokens; a longer row has a pass of its own.
pub(crate) fn plan(rows: &[TrainRow], max_tokens: usize) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    let pack = |indices: &[usize]| {
        Packed::from_rows(&indices.iter().map(|&index| rows[index].tokens.as_slice()).collect::<Vec<_>>())
    };
    for index in 0..rows.len() {
        if let Some(last) = passes.last_mut() {
            let mut wider = last.rows.clone();
            wider.push(index);
            let packed = pack(&wider);
            if packed.tokens() <= max_tokens {
                *last = Pass { rows: wider, packed };
                continue;
            }
        }
        passes.push(Pass { rows: vec![index], packed: pack(&[index]) });
    }
    passes
}

impl Pass {
    /// The pass's action tokens, row after row. Tokens of the shared prefix come once per row that sampled them.
    pub(crate) fn actions(&self, rows: &[TrainRow]) -> Result<PassActions, PolicyError> {
        let mut actions = PassActions::default();
        for (branch, &index) in self.rows.iter().enumerate() {
            let row = &rows[index];
            for position in (0..row.tokens.len()).filter(|&position| row.action_mask[position]) {
                let predictor = self.packed.predictor(branch, position).ok_or_else(|| PolicyError::Row {
                    group: 0,
                    row: index,
                    reason: "its first token is marked as sampled".to_owned(),
                })?;
                actions.predictors.push(predictor);
                actions.targets.push(i64::from(row.tokens[position]));
                actions.places.push((index, position));
            }
        }
        Ok(actions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tokens: &[i32], first_action: usize) -> TrainRow {
        TrainRow {
            tokens: tokens.to_vec(),
            action_mask: (0..tokens.len()).map(|at| at >= first_action).collect(),
            old_logprobs: (0..tokens.len()).map(|at| if at < first_action { f32::NAN } else { -1.0 }).collect(),
            advantage: 1.0,
        }
    }

    #[test]
    fn a_row_whose_lengths_differ_or_whose_log_probs_are_unknown_is_refused() {
        assert_eq!(row(&[1, 2, 3], 1).fault(), None);
        let refused = |change: &dyn Fn(&mut TrainRow)| {
            let mut row = row(&[1, 2, 3], 1);
            change(&mut row);
            row.fault().is_some()
        };
        assert!(refused(&|row| row.action_mask.truncate(2)));
        assert!(refused(&|row| row.old_logprobs.truncate(2)));
        assert!(refused(&|row| row.old_logprobs[1] = f32::NAN));
        assert!(refused(&|row| row.old_logprobs[2] = f32::NEG_INFINITY));
        assert!(refused(&|row| row.old_logprobs[2] = 0.5));
        assert!(refused(&|row| row.advantage = f32::INFINITY));
        assert!(refused(&|row| row.action_mask = vec![true; 3]));
        assert!(refused(&|row| row.action_mask = vec![false; 3]));
    }

    #[test]
    fn passes_keep_the_order_of_rows_and_the_limit_of_tokens() {
        let rows = vec![row(&[1, 2, 3, 4], 2), row(&[1, 2, 5, 6], 2), row(&[1, 2, 7, 8], 2), row(&[9; 10], 2)];
        let passes = plan(&rows, 6);
        let split: Vec<_> = passes.iter().map(|pass| (pass.rows.clone(), pass.packed.tokens())).collect();
        assert_eq!(split, [(vec![0, 1], 6), (vec![2], 4), (vec![3], 10)]);
        assert_eq!(plan(&rows, 1000).len(), 1);
    }

    #[test]
    fn a_sampled_token_of_the_shared_prefix_counts_once_for_every_row() {
        let rows = vec![row(&[1, 2, 3, 4], 1), row(&[1, 2, 3, 5, 6], 1)];
        let pass = &plan(&rows, 100)[0];
        let actions = pass.actions(&rows).unwrap();
        assert_eq!(pass.packed.prefix, [1, 2, 3]);
        assert_eq!(actions.predictors, [0, 1, 2, 0, 1, 2, 4]);
        assert_eq!(actions.targets, [2, 3, 4, 2, 3, 5, 6]);
        assert_eq!(actions.places, [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 4)]);
    }
}
