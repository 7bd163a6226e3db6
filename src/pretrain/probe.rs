//! How far a base policy is, measured on held-out demonstrations it would have to continue word for word.
//!
//! The scripted agent is deterministic: a policy that finds each of its tokens most probable, given what stood before,
//! would have acted as it did under greedy sampling. So the share of demonstrations without a single miss bounds the
//! greedy pass rate from below.

use tch::Tensor;
use trace_policy::active::Active;
use trace_policy::model::Model;
use trace_policy::pretrain::PackedExample;

use super::PretrainError;

/// Counts over held-out demonstrations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probe {
    /// The agent's tokens.
    pub tokens: u64,
    /// Those that were the most probable ones.
    pub hits: u64,
    /// Demonstrations.
    pub demos: u64,
    /// Those in which every token of the agent was a hit.
    pub exact: u64,
}

impl Probe {
    /// Share of tokens hit.
    pub fn accuracy(&self) -> f64 {
        self.hits as f64 / (self.tokens.max(1)) as f64
    }

    /// Share of demonstrations continued word for word.
    pub fn exact_rate(&self) -> f64 {
        self.exact as f64 / (self.demos.max(1)) as f64
    }
}

/// Measures a model on examples.
///
/// # Errors
/// Where an example does not fit the model.
pub fn probe(model: &Model, examples: &[PackedExample]) -> Result<Probe, PretrainError> {
    let mut out = Probe::default();
    for example in examples {
        let packed = &example.packed;
        let hidden = tch::no_grad(|| model.forward(packed, &Active::Base, None))?;
        for (b, (branch, mask)) in packed.branches.iter().zip(&example.branch_loss).enumerate() {
            let targets: Vec<usize> = (0..branch.len()).filter(|&i| mask[i]).collect();
            let at: Vec<i64> = targets.iter().filter_map(|&i| packed.predictor(b, packed.prefix.len() + i)).collect();
            let best =
                tch::no_grad(|| model.logits(&hidden.index_select(0, &Tensor::from_slice(&at))).argmax(-1, false));
            let best: Vec<i64> =
                Vec::try_from(&best).map_err(|e: tch::TchError| PretrainError::Torch(e.to_string()))?;
            let hits = targets.iter().zip(&best).filter(|(i, best)| i64::from(branch[**i]) == **best).count();
            out.tokens += targets.len() as u64;
            out.hits += hits as u64;
            out.demos += 1;
            out.exact += u64::from(hits == targets.len());
        }
    }
    Ok(out)
}
