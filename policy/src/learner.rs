//! The learner of one capability: an adapter, its optimiser, and how many steps they have done.
//!
//! An update takes whole groups and does one optimiser step for every `groups_per_step` of them that carry a signal.
//! A group's rows are packed on their common beginning and computed in passes of bounded size; weights are fixed
//! before the first pass, so the gradient does not depend on how rows are split. Old log-probs are those given with
//! the rows, for all steps of the call.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::active::Active;
use crate::config::ModelConfig;
use crate::error::PolicyError;
use crate::head::backward_through_head;
use crate::lora::{Lora, LoraConfig};
use crate::model::Model;
use crate::objective::{GrpoConfig, GrpoInputs, GrpoTally, grpo, token_weights};
use crate::optim::{AdamW, AdamWConfig, clip_gradient_norm};
use crate::rows::{TrainGroup, TrainRow, plan};
use crate::tensorfile::{read_tensors, write_tensors};

/// How an update is done.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnerConfig {
    /// Learning rate of every step of the call.
    pub lr: f64,
    /// The objective clips ratios at `1 - clip_low`.
    pub clip_low: f64,
    /// The objective clips ratios at `1 + clip_high`.
    pub clip_high: f64,
    /// Weight of KL(policy || base); 0 leaves it out.
    pub kl_beta: f64,
    /// Gradients are scaled down to this common norm.
    pub max_grad_norm: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Groups that share one optimiser step; at least 1.
    pub groups_per_step: usize,
    /// The temperature that the rows were sampled at; log-probs are those of `softmax(logits / temperature)`.
    pub temperature: f64,
    /// Tokens computed at once: a bound on memory, without effect on the result but for rounding.
    pub max_tokens_per_pass: usize,
}

impl Default for LearnerConfig {
    /// The published setting; the whole call is one step.
    fn default() -> Self {
        Self {
            lr: 1e-5,
            clip_low: 0.2,
            clip_high: 0.2,
            kl_beta: 0.0,
            max_grad_norm: 1.0,
            weight_decay: 0.0,
            groups_per_step: usize::MAX,
            temperature: 1.0,
            max_tokens_per_pass: 16_384,
        }
    }
}

impl LearnerConfig {
    /// Fails, naming the key, for values that cannot work.
    pub fn check(&self) -> Result<(), PolicyError> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let fault = if !positive(self.lr) {
            ("lr", "must be a positive number")
        } else if !(0.0..1.0).contains(&self.clip_low) {
            ("clip_low", "must lie in [0, 1)")
        } else if !(self.clip_high >= 0.0 && self.clip_high.is_finite()) {
            ("clip_high", "must be at least 0")
        } else if !(self.kl_beta >= 0.0 && self.kl_beta.is_finite()) {
            ("kl_beta", "must be at least 0")
        } else if !positive(self.max_grad_norm) {
            ("max_grad_norm", "must be a positive number")
        } else if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            ("weight_decay", "must be at least 0")
        } else if self.groups_per_step == 0 {
            ("groups_per_step", "must be at least 1")
        } else if !positive(self.temperature) {
            ("temperature", "must be positive: greedy rollouts have no log-probs to train on")
        } else if self.max_tokens_per_pass == 0 {
            ("max_tokens_per_pass", "must be at least 1")
        } else {
            return Ok(());
        };
        Err(PolicyError::Config { place: "learner".to_owned(), key: fault.0.to_owned(), reason: fault.1.to_owned() })
    }
}

/// What an update did. Means are over trained tokens and over all steps of the call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UpdateMetrics {
    /// Optimiser steps.
    pub steps: u64,
    /// Groups trained on.
    pub groups: usize,
    /// Groups without a signal: every advantage is 0. They are left out of every mean.
    pub constant_groups: usize,
    /// Rows trained on.
    pub rows: usize,
    /// Sampled tokens trained on.
    pub trained_tokens: usize,
    /// Tokens computed, shared beginnings once a pass.
    pub computed_tokens: usize,
    /// Mean of the steps' losses.
    pub loss: f64,
    /// Mean of the steps' gradient norms before clipping.
    pub grad_norm: f64,
    /// Share of tokens whose gradient the clip removed.
    pub clip_fraction: f64,
    /// Mean ratio of new to old probability.
    pub mean_ratio: f64,
    /// Estimate of KL(old || new).
    pub old_kl: f64,
    /// Estimate of KL(new || base); 0 when it is not computed.
    pub reference_kl: f64,
}

/// An adapter in training.
#[derive(Debug)]
pub struct Learner {
    adapter: Lora,
    parameters: Vec<Tensor>,
    optimiser: AdamW,
}

/// Name of the one file of a saved learner.
const STATE_FILE: &str = "learner.safetensors";
/// Its metadata key for the adapter's configuration; the caller's notes have this prefix.
const CONFIG_KEY: &str = "adapter_config";
const NOTE_PREFIX: &str = "note.";

impl Learner {
    /// A learner with a new adapter for `model`, drawn from `seed`.
    pub fn new(model: &Model, config: LoraConfig, seed: u64) -> Result<Self, PolicyError> {
        Ok(Self::from_adapter(Lora::new(model.config(), config, seed, model.device())?))
    }

    /// A learner that goes on from an adapter, with a fresh optimiser. The adapter becomes trainable.
    pub fn from_adapter(adapter: Lora) -> Self {
        adapter.set_trainable(true);
        let named = adapter.tensors();
        let parameters = named.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        Self { optimiser: AdamW::new(AdamWConfig::default(), named), parameters, adapter }
    }

    /// The adapter as it is now. To act with a version that later updates don't change, take its
    /// [`snapshot`](Lora::snapshot).
    pub fn adapter(&self) -> &Lora {
        &self.adapter
    }

    /// Optimiser steps done.
    pub fn steps(&self) -> u64 {
        self.optimiser.steps()
    }

    /// Trains on groups, in order. Fails before anything changes when a row is faulty ([`TrainRow::fault`]), and at the
    /// step at hand, without applying it, when a loss or gradient is not finite.
    pub fn update(
        &mut self,
        model: &Model,
        groups: &[TrainGroup],
        config: &LearnerConfig,
    ) -> Result<UpdateMetrics, PolicyError> {
        config.check()?;
        for (group, rows) in groups.iter().enumerate() {
            if let Some((row, reason)) = rows.iter().enumerate().find_map(|(at, row)| Some((at, row.fault()?))) {
                return Err(PolicyError::Row { group, row, reason });
            }
        }
        let informative: Vec<&TrainGroup> =
            groups.iter().filter(|rows| rows.iter().any(|row| row.advantage != 0.0)).collect();
        let mut metrics = UpdateMetrics {
            groups: informative.len(),
            constant_groups: groups.len() - informative.len(),
            rows: informative.iter().map(|rows| rows.len()).sum(),
            ..UpdateMetrics::default()
        };
        let mut total = GrpoTally::default();
        for step in informative.chunks(config.groups_per_step) {
            let (tally, computed) = self.accumulate(model, step, config)?;
            let mut gradients: Vec<Tensor> = self.parameters.iter().map(Tensor::grad).collect();
            let grad_norm = clip_gradient_norm(&mut gradients, config.max_grad_norm);
            for (quantity, value) in [("the loss", tally.loss), ("the gradient's norm", grad_norm)] {
                if !value.is_finite() {
                    return Err(PolicyError::NotFinite { quantity, value, step: self.steps() });
                }
            }
            self.optimiser.set_weight_decay(config.weight_decay);
            self.optimiser.step(&gradients, config.lr);
            metrics.steps += 1;
            metrics.grad_norm += grad_norm;
            metrics.computed_tokens += computed;
            total.add(&tally);
        }
        let (steps, tokens) = (metrics.steps.max(1) as f64, total.tokens.max(1) as f64);
        metrics.trained_tokens = total.tokens;
        metrics.loss = total.loss / steps;
        metrics.grad_norm /= steps;
        metrics.clip_fraction = total.clipped / tokens;
        metrics.mean_ratio = total.ratio / tokens;
        metrics.old_kl = total.old_kl / tokens;
        metrics.reference_kl = total.reference_kl / tokens;
        Ok(metrics)
    }

    /// Leaves the gradient of one step's loss in the adapter's tensors; gives the sums and the tokens computed.
    fn accumulate(
        &mut self,
        model: &Model,
        groups: &[&TrainGroup],
        config: &LearnerConfig,
    ) -> Result<(GrpoTally, usize), PolicyError> {
        for tensor in &mut self.parameters {
            tensor.zero_grad();
        }
        let (mut total, mut computed) = (GrpoTally::default(), 0);
        for rows in groups {
            for pass in plan(rows, config.max_tokens_per_pass) {
                let actions = pass.actions(rows)?;
                let columns = Columns::new(rows, &actions.places, groups.len(), model);
                let predictors = Tensor::from_slice(&actions.predictors).to_device(model.device());
                let targets = Tensor::from_slice(&actions.targets).to_device(model.device());
                let reference = if config.kl_beta > 0.0 {
                    Some(tch::no_grad(|| -> Result<Tensor, PolicyError> {
                        let hidden = model.forward(&pass.packed, &Active::Base, None)?.index_select(0, &predictors);
                        Ok(model.logprobs(&hidden, &targets, config.temperature))
                    })?)
                } else {
                    None
                };
                let hidden = model.forward(&pass.packed, &Active::Adapter(&self.adapter), None)?;
                let objective =
                    GrpoConfig { clip_low: config.clip_low, clip_high: config.clip_high, kl_beta: config.kl_beta };
                backward_through_head(model, &hidden, &predictors, &targets, config.temperature, |logprobs, range| {
                    let cut = |tensor: &Tensor| tensor.narrow(0, range.start as i64, range.len() as i64);
                    let reference = reference.as_ref().map(cut);
                    let inputs = GrpoInputs {
                        new_logprobs: logprobs,
                        old_logprobs: &cut(&columns.old_logprobs),
                        advantages: &cut(&columns.advantages),
                        weights: &cut(&columns.weights),
                        reference_logprobs: reference.as_ref(),
                    };
                    let (loss, tally) = grpo(&inputs, &objective)?;
                    total.add(&tally);
                    Ok(loss)
                })?;
                computed += pass.packed.tokens();
            }
        }
        Ok((total, computed))
    }

    /// Writes adapter, moments, step count and the caller's `notes` (cursors, ids of consumed groups) to one file in
    /// `folder`, atomically: a reader finds the state before or the state after, never a mixture.
    pub fn save(&self, folder: &Path, notes: &BTreeMap<String, String>) -> Result<(), PolicyError> {
        let mut tensors = self.optimiser.state();
        tensors.extend(self.adapter.tensors().into_iter().map(|(name, tensor)| (format!("adapter.{name}"), tensor)));
        let mut metadata: BTreeMap<String, String> =
            notes.iter().map(|(key, note)| (format!("{NOTE_PREFIX}{key}"), note.clone())).collect();
        metadata.insert(CONFIG_KEY.to_owned(), self.adapter.config().to_json().to_string());
        write_tensors(&folder.join(STATE_FILE), &tensors, &metadata)
    }

    /// Reads what [`Learner::save`] wrote in `folder`, for the same model, and gives back the notes. What follows is bit
    /// for bit what would have followed the save.
    pub fn load(
        folder: &Path,
        model: &ModelConfig,
        device: Device,
    ) -> Result<(Self, BTreeMap<String, String>), PolicyError> {
        let path = folder.join(STATE_FILE);
        let place = path.display().to_string();
        let mut file = read_tensors(&path, device)?;
        let mut metadata = std::mem::take(&mut file.metadata);
        let text = metadata.remove(CONFIG_KEY).ok_or_else(|| PolicyError::TensorFile {
            path: path.clone(),
            reason: "it does not say which adapter it holds".to_owned(),
        })?;
        let value = serde_json::from_str(&text).map_err(PolicyError::json(&path))?;
        let config = LoraConfig::from_json(&value, &place)?;
        let adapter = Lora::from_tensors(model, config, |name, shape| {
            file.take(&format!("adapter.{name}"), shape, Kind::Float, &place)
        })?;
        let mut learner = Self::from_adapter(adapter);
        learner.optimiser.restore(&mut file, &place)?;
        file.finish(&place)?;
        let notes =
            metadata.into_iter().filter_map(|(key, note)| Some((key.strip_prefix(NOTE_PREFIX)?.to_owned(), note)));
        Ok((learner, notes.collect()))
    }
}

/// What the objective needs of each sampled token of a pass, each `[T]`.
struct Columns {
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
}

impl Columns {
    /// Only sampled tokens are read: whatever stands at others never enters a sum.
    fn new(rows: &[TrainRow], places: &[(usize, usize)], groups: usize, model: &Model) -> Self {
        let weights: Vec<f64> = rows.iter().map(|row| token_weights(groups, rows.len(), row.actions())).collect();
        let column = |pick: &dyn Fn(usize, usize) -> f64| {
            let values: Vec<f64> = places.iter().map(|&(row, position)| pick(row, position)).collect();
            Tensor::from_slice(&values).to_kind(model.kind()).to_device(model.device())
        };
        Self {
            old_logprobs: column(&|row, position| f64::from(rows[row].old_logprobs[position])),
            advantages: column(&|row, _| f64::from(rows[row].advantage)),
            weights: column(&|row, _| weights[row]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{tiny_model, values};
    use crate::packed::Packed;
    use crate::score::score;

    /// Two groups: a beginning shared by sampled tokens too, rows of different lengths, NaN wherever nothing was sampled,
    /// and the last token, the end of the turn, trained.
    fn groups() -> Vec<TrainGroup> {
        let row = |tokens: &[i32], mask: &[u8], advantage: f32| TrainRow {
            tokens: tokens.to_vec(),
            action_mask: mask.iter().map(|bit| *bit == 1).collect(),
            old_logprobs: tokens
                .iter()
                .zip(mask)
                .map(|(id, bit)| if *bit == 1 { -2.0 - *id as f32 / 30.0 } else { f32::NAN })
                .collect(),
            advantage,
        };
        vec![
            vec![
                row(&[1, 2, 3, 4, 5, 0], &[0, 0, 1, 1, 0, 1], 0.8),
                row(&[1, 2, 3, 9, 0], &[0, 0, 1, 1, 1], -1.1),
                row(&[1, 2, 7, 0], &[0, 0, 1, 1], 0.3),
            ],
            vec![row(&[11, 12, 13], &[0, 0, 1], 1.0), row(&[11, 12, 14, 15, 0], &[0, 0, 1, 1, 1], -1.0)],
        ]
    }

    fn adapter(model: &Model) -> Lora {
        let lora = Lora::new(model.config(), LoraConfig::all_linears(2, 4.0), 3, model.device()).unwrap();
        for (at, (_, tensor)) in lora.tensors().into_iter().enumerate().filter(|(_, (name, _))| name.contains("lora_B"))
        {
            let steps = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)) + at as f64;
            tensor.detach().copy_(&(steps.sin() * 0.1).view(tensor.size().as_slice()));
        }
        lora.to_kind(model.kind())
    }

    fn config() -> LearnerConfig {
        LearnerConfig { lr: 1e-2, temperature: 0.7, ..LearnerConfig::default() }
    }

    fn double() -> Model {
        tiny_model(9).to_kind(Kind::Double).unwrap()
    }

    /// Each row's log-probs, computed alone, from logits: `log_softmax(z / T)`.
    fn logprobs_alone(model: &Model, active: &Active, row: &TrainRow, temperature: f64) -> Vec<f64> {
        let alone = Packed { prefix: row.tokens.clone(), branches: vec![] };
        let logits = values(&model.logits(&model.forward(&alone, active, None).unwrap()));
        let size = model.config().vocab_size as usize;
        let positions = (0..row.tokens.len()).filter(|&at| row.action_mask[at]);
        let each = positions.map(|at| {
            let logits: Vec<f64> = logits[(at - 1) * size..at * size].iter().map(|z| z / temperature).collect();
            logits[row.tokens[at] as usize] - logits.iter().map(|z| z.exp()).sum::<f64>().ln()
        });
        each.collect()
    }

    /// The loss by its formula, in plain numbers.
    fn plain_loss(model: &Model, adapter: &Lora, groups: &[TrainGroup], config: &LearnerConfig) -> f64 {
        let group_losses = groups.iter().map(|rows| {
            let row_losses = rows.iter().map(|row| {
                let new = logprobs_alone(model, &Active::Adapter(adapter), row, config.temperature);
                let base = logprobs_alone(model, &Active::Base, row, config.temperature);
                let old = row
                    .old_logprobs
                    .iter()
                    .zip(&row.action_mask)
                    .filter(|(_, sampled)| **sampled)
                    .map(|(old, _)| f64::from(*old));
                let advantage = f64::from(row.advantage);
                let terms: Vec<f64> = new
                    .iter()
                    .zip(base)
                    .zip(old)
                    .map(|((new, base), old)| {
                        let ratio = (new - old).exp();
                        let clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
                        let k3 = (base - new).exp() - (base - new) - 1.0;
                        -(ratio * advantage).min(clipped * advantage) + config.kl_beta * ratio * k3
                    })
                    .collect();
                terms.iter().sum::<f64>() / terms.len() as f64
            });
            row_losses.sum::<f64>() / rows.len() as f64
        });
        group_losses.sum::<f64>() / groups.len() as f64
    }

    #[test]
    fn loss_and_gradient_are_those_of_the_formula_computed_row_by_row() {
        let model = double();
        for kl_beta in [0.0, 0.3] {
            let config = LearnerConfig { kl_beta, clip_low: 0.9, clip_high: 3.0, ..config() };
            let mut learner = Learner::from_adapter(adapter(&model));
            let groups = groups();
            let (tally, computed) = learner.accumulate(&model, &groups.iter().collect::<Vec<_>>(), &config).unwrap();
            let expected = plain_loss(&model, learner.adapter(), &groups, &config);
            assert!((tally.loss - expected).abs() < 1e-10, "{} is not {expected}", tally.loss);
            assert_eq!((tally.tokens, computed), (12, 17));
            for (name, tensor) in learner.adapter().tensors() {
                let gradient = values(&tensor.grad());
                let flat = tensor.detach().view([-1]);
                for at in (0..gradient.len()).step_by(gradient.len() / 2 + 1) {
                    let moved = |shift: f64| {
                        let _ = flat.get(at as i64).g_add_scalar_(shift);
                        let loss = tch::no_grad(|| plain_loss(&model, learner.adapter(), &groups, &config));
                        let _ = flat.get(at as i64).g_add_scalar_(-shift);
                        loss
                    };
                    let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    let error = (numeric - gradient[at]).abs();
                    assert!(error < 1e-8 + 1e-5 * numeric.abs(), "{name}[{at}]: {} is not {numeric}", gradient[at]);
                }
            }
        }
    }

    fn updated(model: &Model, groups: &[TrainGroup], config: &LearnerConfig) -> (Vec<f64>, UpdateMetrics) {
        let mut learner = Learner::from_adapter(adapter(model));
        let metrics = learner.update(model, groups, config).unwrap();
        (learner.adapter().tensors().iter().flat_map(|(_, tensor)| values(tensor)).collect(), metrics)
    }

    fn assert_close(left: &[f64], right: &[f64]) {
        assert!(left.iter().zip(right).all(|(left, right)| (left - right).abs() < 1e-9) && left.len() == right.len());
    }

    #[test]
    fn an_update_does_not_depend_on_how_rows_are_split_into_passes() {
        let model = double();
        let whole = updated(&model, &groups(), &config());
        for max_tokens_per_pass in [1, 9] {
            let split = updated(&model, &groups(), &LearnerConfig { max_tokens_per_pass, ..config() });
            assert_close(&whole.0, &split.0);
            assert!(split.1.computed_tokens > whole.1.computed_tokens);
        }
    }

    #[test]
    fn whatever_stands_at_tokens_that_were_not_sampled_has_no_effect() {
        let model = double();
        let mut zeroed = groups();
        for row in zeroed.iter_mut().flatten() {
            row.old_logprobs.iter_mut().filter(|logprob| logprob.is_nan()).for_each(|logprob| *logprob = 0.0);
        }
        assert_eq!(updated(&model, &groups(), &config()), updated(&model, &zeroed, &config()));
    }

    #[test]
    fn only_the_mask_decides_what_is_trained_also_where_the_end_of_turn_is_the_padding_id() {
        // Id 0 stands in the prompt, ends turns, and pads nothing: every sampled 0 counts and no other.
        let model = double();
        let mut groups = groups();
        groups[0].iter_mut().for_each(|row| row.tokens[0] = 0);
        let (_, metrics) = updated(&model, &groups, &config());
        assert_eq!(metrics.trained_tokens, 12);
        let mut learner = Learner::from_adapter(adapter(&model));
        let (tally, _) = learner.accumulate(&model, &groups.iter().collect::<Vec<_>>(), &config()).unwrap();
        assert!((tally.loss - plain_loss(&model, learner.adapter(), &groups, &config())).abs() < 1e-10);
    }

    #[test]
    fn groups_without_a_signal_are_counted_and_otherwise_as_if_they_were_not_there() {
        let model = double();
        let mut silent = groups().remove(0);
        silent.iter_mut().for_each(|row| row.advantage = 0.0);
        let mut with_silent = groups();
        with_silent.insert(1, silent.clone());
        let (with, without) = (updated(&model, &with_silent, &config()), updated(&model, &groups(), &config()));
        assert_eq!(with, (without.0, UpdateMetrics { constant_groups: 1, ..without.1 }));
        let mut learner = Learner::from_adapter(adapter(&model));
        let metrics = learner.update(&model, &[silent], &config()).unwrap();
        assert_eq!(metrics, UpdateMetrics { constant_groups: 1, ..UpdateMetrics::default() });
        assert_eq!(learner.steps(), 0);
    }

    #[test]
    fn there_is_one_step_for_every_few_groups_and_old_log_probs_stay_those_of_the_sampler() {
        let model = double();
        let (_, metrics) = updated(&model, &groups(), &LearnerConfig { groups_per_step: 1, ..config() });
        assert_eq!((metrics.steps, metrics.groups, metrics.rows), (2, 2, 5));
        // On the sampler's own log-probs the first step's ratios are 1; a second pass over the group's are not.
        let mut rows = groups().remove(0);
        let mut learner = Learner::from_adapter(adapter(&model));
        let scores = score(&model, &Active::Adapter(learner.adapter()), &rows, 0.7, 100).unwrap();
        for (row, scores) in rows.iter_mut().zip(scores) {
            let mut scores = scores.into_iter();
            for (at, logprob) in row.old_logprobs.iter_mut().enumerate().filter(|(at, _)| row.action_mask[*at]) {
                *logprob = scores.next().unwrap_or_else(|| panic!("no score for {at}"));
            }
        }
        let config = LearnerConfig { groups_per_step: 1, lr: 1e-3, ..config() };
        let first = learner.update(&model, &[rows.clone()], &config).unwrap();
        assert!((first.mean_ratio - 1.0).abs() < 1e-6 && first.old_kl.abs() < 1e-6 && first.clip_fraction == 0.0);
        let second = learner.update(&model, &[rows.clone()], &config).unwrap();
        assert!(second.old_kl > 1e-7);
        // What was rewarded has become likelier, what was punished less likely.
        let after = score(&model, &Active::Adapter(learner.adapter()), &rows, 0.7, 100).unwrap();
        let gain = |row: usize| {
            let old: f32 = rows[row]
                .old_logprobs
                .iter()
                .zip(&rows[row].action_mask)
                .filter(|(_, sampled)| **sampled)
                .map(|(old, _)| old)
                .sum();
            after[row].iter().sum::<f32>() - old
        };
        assert!(gain(0) > 0.0 && gain(1) < 0.0, "{} {}", gain(0), gain(1));
    }

    #[test]
    fn a_faulty_row_is_refused_by_its_place_and_nothing_changes() {
        let model = double();
        let mut learner = Learner::from_adapter(adapter(&model));
        for bad in [f32::NEG_INFINITY, f32::NAN] {
            let mut groups = groups();
            groups[1][1].old_logprobs[3] = bad;
            let result = learner.update(&model, &groups, &config());
            assert!(matches!(result, Err(PolicyError::Row { group: 1, row: 1, .. })), "{result:?}");
        }
        let mut short = groups();
        short[0][2].action_mask.pop();
        assert!(matches!(learner.update(&model, &short, &config()), Err(PolicyError::Row { group: 0, row: 2, .. })));
        let result = learner.update(&model, &groups(), &LearnerConfig { temperature: 0.0, ..config() });
        assert!(matches!(result, Err(PolicyError::Config { key, .. }) if key == "temperature"));
        assert_eq!(learner.steps(), 0);
    }

    #[test]
    fn a_learner_read_back_goes_on_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let model = tiny_model(9);
        let config = LearnerConfig { weight_decay: 0.01, groups_per_step: 1, ..config() };
        let mut whole = Learner::new(&model, LoraConfig::all_linears(2, 4.0), 5).unwrap();
        whole.update(&model, &groups(), &config).unwrap();
        let notes =
            BTreeMap::from([("cursor".to_owned(), "17".to_owned()), ("adapter_config".to_owned(), "mine".to_owned())]);
        whole.save(folder.path(), &notes).unwrap();
        let (mut resumed, read) = Learner::load(folder.path(), model.config(), Device::Cpu).unwrap();
        assert_eq!((read, resumed.steps()), (notes, 2));
        for _ in 0..3 {
            let metrics = (
                whole.update(&model, &groups(), &config).unwrap(),
                resumed.update(&model, &groups(), &config).unwrap(),
            );
            assert_eq!(metrics.0, metrics.1);
        }
        assert_eq!(whole.adapter().digest().unwrap(), resumed.adapter().digest().unwrap());
        assert_eq!((whole.steps(), resumed.steps()), (8, 8));
    }

    #[test]
    fn a_snapshot_keeps_its_bits_while_training_goes_on() {
        let model = tiny_model(9);
        let mut learner = Learner::new(&model, LoraConfig::all_linears(2, 4.0), 5).unwrap();
        let snapshot = learner.adapter().snapshot();
        let before = snapshot.digest().unwrap();
        learner.update(&model, &groups(), &config()).unwrap();
        assert_eq!(snapshot.digest().unwrap(), before);
        assert_ne!(learner.adapter().digest().unwrap(), before);
    }
}
