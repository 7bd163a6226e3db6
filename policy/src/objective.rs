//! The GRPO objective, on log-probs of sampled tokens.
//!
//! ```text
//! rho_t = exp(new_t - old_t)
//! L     = - sum_t w_t min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t)  + beta sum_t w_t rho_t k3_t
//! k3_t  = exp(ref_t - new_t) - (ref_t - new_t) - 1
//! ```
//!
//! With the weights of [`token_weights`] the first sum is the mean over groups, over a group's rows, and over a row's
//! tokens. In the second, `rho_t` is differentiated too: tokens come from the old policy, and only the weighted k3
//! has both the value and the gradient of KL(new || ref) in expectation; k3 by itself has the gradient of another
//! divergence.

use tch::{Kind, Tensor};

use crate::error::PolicyError;

/// Constants of the objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrpoConfig {
    /// Ratios below `1 - clip_low` give no gradient where the advantage is negative.
    pub clip_low: f64,
    /// Ratios above `1 + clip_high` give no gradient where the advantage is positive.
    pub clip_high: f64,
    /// Weight of the KL term; 0 leaves it out.
    pub kl_beta: f64,
}

/// Any number of sampled tokens; all tensors are `[T]`, of one kind. Only tokens that count: what is masked must have
/// been left out before, for a NaN times zero is a NaN.
#[derive(Debug)]
pub struct GrpoInputs<'a> {
    /// Log-probs under the policy that is trained, with gradient.
    pub new_logprobs: &'a Tensor,
    /// Log-probs under the policy that sampled.
    pub old_logprobs: &'a Tensor,
    /// Each token's advantage: its rollout's.
    pub advantages: &'a Tensor,
    /// Each token's weight in the loss.
    pub weights: &'a Tensor,
    /// Log-probs under the reference policy; needed when the KL term counts.
    pub reference_logprobs: Option<&'a Tensor>,
}

/// Sums over tokens, so that parts of a step can be added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GrpoTally {
    /// Tokens.
    pub tokens: usize,
    /// The loss's share.
    pub loss: f64,
    /// Tokens whose gradient the clip removed.
    pub clipped: f64,
    /// Sum of ratios.
    pub ratio: f64,
    /// Sum of `rho - 1 - ln rho`, whose mean estimates KL(old || new).
    pub old_kl: f64,
    /// Sum of `rho k3`, whose mean estimates KL(new || ref); 0 without a reference.
    pub reference_kl: f64,
}

impl GrpoTally {
    /// Adds another part.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.clipped += other.clipped;
        self.ratio += other.ratio;
        self.old_kl += other.old_kl;
        self.reference_kl += other.reference_kl;
    }
}

/// The loss of these tokens, a scalar with gradient, and what the metrics need.
pub fn grpo(inputs: &GrpoInputs, config: &GrpoConfig) -> Result<(Tensor, GrpoTally), PolicyError> {
    let GrpoInputs { new_logprobs, old_logprobs, advantages, weights, reference_logprobs } = inputs;
    let sum = |tensor: &Tensor| tensor.sum(Kind::Double).double_value(&[]);
    let log_ratio = *new_logprobs - *old_logprobs;
    let ratio = log_ratio.exp();
    let free = &ratio * *advantages;
    let held = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * *advantages;
    let mut loss = -(free.minimum(&held) * *weights).sum(new_logprobs.kind());
    let mut tally = GrpoTally { tokens: new_logprobs.size()[0] as usize, ..GrpoTally::default() };
    if config.kl_beta > 0.0 {
        let reference = reference_logprobs
            .ok_or_else(|| PolicyError::Usage("a KL weight above 0 needs the reference's log-probs".to_owned()))?;
        let behind = reference - *new_logprobs;
        let divergence = &ratio * (behind.exp() - &behind - 1.0);
        tally.reference_kl = sum(&divergence.detach());
        loss += (divergence * *weights).sum(new_logprobs.kind()) * config.kl_beta;
    }
    tch::no_grad(|| {
        tally.loss = loss.double_value(&[]);
        tally.clipped = sum(&held.less_tensor(&free));
        tally.ratio = sum(&ratio);
        tally.old_kl = sum(&(&ratio - 1.0 - &log_ratio));
    });
    Ok((loss, tally))
}

/// Weight of each token of a row: one over (groups of the step, rows of its group, sampled tokens of the row). Long
/// rows, and groups with more rows, count no more than others.
pub fn token_weights(groups: usize, rows: usize, tokens: usize) -> f64 {
    1.0 / (groups as f64 * rows as f64 * tokens as f64)
}

/// Fails for sampling whose support was cut: where the new policy puts mass on tokens that could not be sampled, the
/// ratio above is not an importance ratio. `top_k` of 0 keeps all tokens.
pub fn require_full_support(top_p: f64, top_k: u32) -> Result<(), PolicyError> {
    let fault = |key: &str, reason: String| PolicyError::Config {
        place: "sampling for training".to_owned(),
        key: key.to_owned(),
        reason,
    };
    if top_p < 1.0 {
        return Err(fault(
            "top_p",
            format!("is {top_p}; rollouts that are trained on need the whole distribution: set it to 1"),
        ));
    }
    if top_k > 0 {
        return Err(fault(
            "top_k",
            format!("is {top_k}; rollouts that are trained on need the whole distribution: leave it out"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: GrpoConfig = GrpoConfig { clip_low: 0.2, clip_high: 0.28, kl_beta: 0.0 };

    fn run(
        new: &[f64],
        old: &[f64],
        advantages: &[f64],
        reference: Option<&[f64]>,
        config: &GrpoConfig,
    ) -> (GrpoTally, Vec<f64>) {
        let new = Tensor::from_slice(new).set_requires_grad(true);
        let weights = Tensor::from_slice(&vec![1.0 / old.len() as f64; old.len()]);
        let reference = reference.map(Tensor::from_slice);
        let inputs = GrpoInputs {
            new_logprobs: &new,
            old_logprobs: &Tensor::from_slice(old),
            advantages: &Tensor::from_slice(advantages),
            weights: &weights,
            reference_logprobs: reference.as_ref(),
        };
        let (loss, tally) = grpo(&inputs, config).unwrap();
        loss.backward();
        (tally, Vec::<f64>::try_from(new.grad()).unwrap())
    }

    fn plain(new: &[f64], old: &[f64], advantages: &[f64], reference: Option<&[f64]>, config: &GrpoConfig) -> f64 {
        let terms = (0..new.len()).map(|at| {
            let ratio = (new[at] - old[at]).exp();
            let clipped = ratio.max(1.0 - config.clip_low).min(1.0 + config.clip_high);
            let gain = (ratio * advantages[at]).min(clipped * advantages[at]);
            let kl = reference.map_or(0.0, |reference| {
                let behind = reference[at] - new[at];
                ratio * (behind.exp() - behind - 1.0)
            });
            -gain + config.kl_beta * kl
        });
        terms.sum::<f64>() / new.len() as f64
    }

    proptest! {
        #[test]
        fn loss_and_gradient_are_those_of_the_formula(
            tokens in prop::collection::vec((-4.0f64..-0.1, -4.0f64..-0.1, -2.0f64..2.0, -4.0f64..-0.1), 1..6),
            beta in prop_oneof![Just(0.0), 0.01f64..1.0],
        ) {
            let column = |pick: fn(&(f64, f64, f64, f64)) -> f64| tokens.iter().map(pick).collect::<Vec<_>>();
            let (new, old, advantages, reference) = (column(|t| t.0), column(|t| t.1), column(|t| t.2), column(|t| t.3));
            let config = GrpoConfig { kl_beta: beta, ..CONFIG };
            let (tally, gradient) = run(&new, &old, &advantages, Some(&reference), &config);
            prop_assert!((tally.loss - plain(&new, &old, &advantages, Some(&reference), &config)).abs() < 1e-9 * (1.0 + tally.loss.abs()));
            for at in 0..new.len() {
                let ratio = (new[at] - old[at]).exp();
                prop_assume!((ratio - 0.8).abs() > 1e-4 && (ratio - 1.28).abs() > 1e-4);
                let mut moved = (new.clone(), new.clone());
                moved.0[at] += 1e-6;
                moved.1[at] -= 1e-6;
                let numeric = (plain(&moved.0, &old, &advantages, Some(&reference), &config) - plain(&moved.1, &old, &advantages, Some(&reference), &config)) / 2e-6;
                prop_assert!((numeric - gradient[at]).abs() < 1e-6 * (1.0 + numeric.abs()), "{} is not {}", gradient[at], numeric);
            }
        }
    }

    #[test]
    fn a_ratio_past_its_clip_gives_no_gradient_only_where_moving_on_would_gain() {
        let old = [-1.0; 4];
        // Ratios e^0.5 and e^-0.5, each with either sign of the advantage.
        let (tally, gradient) = run(&[-0.5, -0.5, -1.5, -1.5], &old, &[1.0, -1.0, 1.0, -1.0], None, &CONFIG);
        assert_eq!(gradient.iter().map(|g| *g == 0.0).collect::<Vec<_>>(), [true, false, false, true]);
        assert_eq!((tally.clipped, tally.tokens), (2.0, 4));
    }

    #[test]
    fn the_kl_term_has_the_gradient_of_the_divergence_in_expectation() {
        // A policy over three tokens with free logits: the expectation under the old policy, taken exactly.
        let config = GrpoConfig { clip_low: 0.2, clip_high: 0.2, kl_beta: 1.0 };
        let logits = Tensor::from_slice(&[0.3f64, -0.2, 0.9]).set_requires_grad(true);
        let reference = Tensor::from_slice(&[-0.5f64, 0.4, 0.1]).log_softmax(-1, Kind::Double);
        for old in [[0.3, -0.2, 0.9], [0.0, 0.0, 0.0]] {
            let old = Tensor::from_slice(&old).log_softmax(-1, Kind::Double);
            let new = logits.log_softmax(-1, Kind::Double);
            let inputs = GrpoInputs {
                new_logprobs: &new,
                old_logprobs: &old,
                advantages: &Tensor::zeros([3], (Kind::Double, tch::Device::Cpu)),
                weights: &old.exp(),
                reference_logprobs: Some(&reference),
            };
            let (loss, _) = grpo(&inputs, &config).unwrap();
            let found = Tensor::run_backward(&[&loss], &[&logits], true, false).remove(0);
            let exact = (new.exp() * (&new - &reference)).sum(Kind::Double);
            let expected = Tensor::run_backward(&[&exact], &[&logits], false, false).remove(0);
            assert!((loss.double_value(&[]) - exact.double_value(&[])).abs() < 1e-12);
            assert!((found - expected).abs().max().double_value(&[]) < 1e-12);
        }
    }

    #[test]
    fn a_kl_weight_without_a_reference_is_an_error() {
        let one = Tensor::from_slice(&[-1.0f64]);
        let inputs = GrpoInputs {
            new_logprobs: &one,
            old_logprobs: &one,
            advantages: &one,
            weights: &one,
            reference_logprobs: None,
        };
        assert!(grpo(&inputs, &GrpoConfig { kl_beta: 0.1, ..CONFIG }).is_err());
    }

    #[test]
    fn truncated_sampling_is_refused_for_training_by_the_key_that_truncates() {
        let named = |top_p, top_k| match require_full_support(top_p, top_k) {
            Err(PolicyError::Config { key, .. }) => key,
            _ => String::new(),
        };
        assert_eq!([named(0.9, 0), named(1.0, 40), named(1.0, 0)], ["top_p", "top_k", ""]);
    }
}
