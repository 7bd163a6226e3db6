//! Supervised training of all parameters of a model: how the base policy is made.
//!
//! The loss is cross-entropy on the tokens that a mask marks, the mean over all marked tokens of a step, however they
//! are spread over packs. Hidden matrices are updated by Muon, tables and norms by AdamW.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Kind, Tensor};

use crate::active::Active;
use crate::error::PolicyError;
use crate::head::backward_through_head;
use crate::model::Model;
use crate::optim::{AdamW, AdamWConfig, Muon, MuonConfig, clip_gradient_norm};
use crate::packed::Packed;
use crate::tensorfile::{read_tensors, write_tensors};

/// A pack and which of its tokens are to be learned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackedExample {
    /// The tokens.
    pub packed: Packed,
    /// For each token of the prefix, whether it is learned, once for the pack; empty means none. The very first
    /// token of a sequence cannot be: nothing predicts it.
    pub prefix_loss: Vec<bool>,
    /// For each token of each branch, whether it is learned.
    pub branch_loss: Vec<Vec<bool>>,
}

/// The learned tokens of a pack, flat.
struct Targets {
    /// Indices of the predicting states.
    predictors: Vec<i64>,
    /// The ids that they are to predict.
    ids: Vec<i64>,
}

impl Targets {
    /// Both as tensors, predictors first.
    fn tensors(&self, model: &Model) -> (Tensor, Tensor) {
        let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(model.device());
        (tensor(&self.predictors), tensor(&self.ids))
    }
}

impl PackedExample {
    fn targets(&self, example: usize) -> Result<Targets, PolicyError> {
        let refuse = |row, reason: &str| PolicyError::Row { group: example, row, reason: reason.to_owned() };
        let Packed { prefix, branches } = &self.packed;
        if !(self.prefix_loss.is_empty() || self.prefix_loss.len() == prefix.len()) {
            return Err(refuse(0, "the prefix's loss mask has another length than the prefix"));
        }
        if self.branch_loss.len() != branches.len() {
            return Err(refuse(0, "there are not as many loss masks as branches"));
        }
        let mut marked: Vec<(Option<i64>, i32)> = Vec::new();
        for (at, _) in self.prefix_loss.iter().enumerate().filter(|(_, learned)| **learned) {
            marked.push((at.checked_sub(1).map(|before| before as i64), prefix[at]));
        }
        for (row, (branch, mask)) in branches.iter().zip(&self.branch_loss).enumerate() {
            if mask.len() != branch.len() {
                return Err(refuse(row, "its loss mask has another length than its tokens"));
            }
            for (at, _) in mask.iter().enumerate().filter(|(_, learned)| **learned) {
                marked.push((self.packed.predictor(row, prefix.len() + at), branch[at]));
            }
        }
        let mut targets =
            Targets { predictors: Vec::with_capacity(marked.len()), ids: Vec::with_capacity(marked.len()) };
        for (predictor, id) in marked {
            targets
                .predictors
                .push(predictor.ok_or_else(|| refuse(0, "the first token of a sequence cannot be learned"))?);
            targets.ids.push(i64::from(id));
        }
        Ok(targets)
    }
}

/// Constants of a pretraining run.
#[derive(Debug, Clone, PartialEq)]
pub struct PretrainConfig {
    /// For tables and norms.
    pub adamw: AdamWConfig,
    /// For hidden matrices.
    pub muon: MuonConfig,
    /// Gradients are scaled down to this common norm.
    pub max_grad_norm: f64,
}

impl Default for PretrainConfig {
    fn default() -> Self {
        let adamw = AdamWConfig { beta2: 0.95, ..AdamWConfig::default() };
        Self { adamw, muon: MuonConfig::default(), max_grad_norm: 1.0 }
    }
}

/// The learning rates of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Of hidden matrices, under Muon.
    pub hidden: f64,
    /// Of tables and norms, under AdamW.
    pub other: f64,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PretrainMetrics {
    /// Mean cross-entropy over learned tokens, in nats, before the update.
    pub loss: f64,
    /// Tokens learned.
    pub learned: usize,
    /// Tokens computed.
    pub computed: usize,
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
}

/// A model in training, with its optimisers.
#[derive(Debug)]
pub struct Pretrainer {
    model: Model,
    config: PretrainConfig,
    steps: u64,
    adamw: AdamW,
    muon: Muon,
    tables: Vec<Tensor>,
    hidden: Vec<Tensor>,
}

impl Pretrainer {
    /// Starts, or starts again, from the model's weights with fresh optimisers.
    pub fn new(model: Model, config: PretrainConfig) -> Result<Self, PolicyError> {
        model.set_trainable(true);
        let is_hidden = |name: &str, tensor: &Tensor| name.contains(".layers.") && tensor.dim() == 2;
        let (hidden, tables): (Vec<_>, Vec<_>) =
            model.parameters().into_iter().partition(|(name, tensor)| is_hidden(name, tensor));
        let share = |named: &[(String, Tensor)]| named.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        let (table_tensors, hidden_tensors) = (share(&tables), share(&hidden));
        let adamw = AdamW::new(config.adamw.clone(), tables);
        let muon = Muon::new(config.muon.clone(), hidden)?;
        Ok(Self { model, config, steps: 0, adamw, muon, tables: table_tensors, hidden: hidden_tensors })
    }

    /// The model as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, without the optimisers.
    pub fn into_model(self) -> Model {
        self.model
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One optimiser step on all learned tokens of `examples`. Packs are computed one after the other; the loss and
    /// its gradient are those of the whole step. A loss or gradient that is not finite changes nothing and is an error.
    pub fn step(&mut self, examples: &[PackedExample], rates: Rates) -> Result<PretrainMetrics, PolicyError> {
        let targets = targets_of(examples)?;
        let learned: usize = targets.iter().map(|targets| targets.ids.len()).sum();
        for tensor in self.tables.iter_mut().chain(&mut self.hidden) {
            tensor.zero_grad();
        }
        let mut loss = 0.0;
        for (example, targets) in examples.iter().zip(&targets).filter(|(_, targets)| !targets.ids.is_empty()) {
            let hidden = self.model.forward(&example.packed, &Active::Base, None)?;
            let (predictors, ids) = targets.tensors(&self.model);
            let mut chunks = Vec::new();
            backward_through_head(&self.model, &hidden, &predictors, &ids, 1.0, |logprobs, _| {
                let share = -logprobs.sum(logprobs.kind()) / learned as f64;
                chunks.push(share.detach());
                Ok(share)
            })?;
            loss += Tensor::stack(&chunks, 0).sum(Kind::Double).double_value(&[]);
        }
        let mut gradients: Vec<Tensor> = self.tables.iter().chain(&self.hidden).map(Tensor::grad).collect();
        let grad_norm = clip_gradient_norm(&mut gradients, self.config.max_grad_norm);
        for (quantity, value) in [("the loss", loss), ("the gradient's norm", grad_norm)] {
            if !value.is_finite() {
                return Err(PolicyError::NotFinite { quantity, value, step: self.steps });
            }
        }
        let (tables, hidden) = gradients.split_at(self.tables.len());
        self.adamw.step(tables, rates.other);
        self.muon.step(hidden, rates.hidden);
        self.steps += 1;
        let computed = examples.iter().map(|example| example.packed.tokens()).sum();
        Ok(PretrainMetrics { loss, learned, computed, grad_norm })
    }

    /// Mean cross-entropy over the learned tokens of `examples`, and the share of them that greedy decoding would
    /// get right; nothing is changed.
    pub fn evaluate(&self, examples: &[PackedExample]) -> Result<(f64, f64), PolicyError> {
        let targets = targets_of(examples)?;
        let learned: usize = targets.iter().map(|targets| targets.ids.len()).sum();
        tch::no_grad(|| {
            let (mut loss, mut right) = (0.0, 0.0);
            for (example, targets) in examples.iter().zip(&targets).filter(|(_, targets)| !targets.ids.is_empty()) {
                let hidden = self.model.forward(&example.packed, &Active::Base, None)?;
                let (predictors, ids) = targets.tensors(&self.model);
                let hidden = hidden.index_select(0, &predictors);
                loss -= self.model.logprobs(&hidden, &ids, 1.0).sum(Kind::Double).double_value(&[]);
                for (hidden, ids) in
                    hidden.split(self.model.head_chunk(), 0).iter().zip(ids.split(self.model.head_chunk(), 0))
                {
                    let hits = self.model.logits(hidden).argmax(-1, false).eq_tensor(&ids);
                    right += hits.sum(Kind::Double).double_value(&[]);
                }
            }
            Ok((loss / learned as f64, right / learned as f64))
        })
    }

    /// Writes weights, both optimisers' states, the step count and the caller's `notes` (a cursor, say) to one file,
    /// atomically.
    pub fn save(&self, path: &Path, notes: &BTreeMap<String, String>) -> Result<(), PolicyError> {
        let mut tensors = self.adamw.state();
        tensors.extend(self.muon.state());
        tensors.extend(self.model.parameters().into_iter().map(|(name, tensor)| (format!("weight.{name}"), tensor)));
        tensors.push(("steps".to_owned(), Tensor::from_slice(&[self.steps as i64])));
        write_tensors(path, &tensors, notes)
    }

    /// Goes on from a file of [`Pretrainer::save`] with the same model configuration; gives back the notes. What follows
    /// is bit for bit what would have followed the save.
    pub fn restore(&mut self, path: &Path) -> Result<BTreeMap<String, String>, PolicyError> {
        let place = path.display().to_string();
        let mut file = read_tensors(path, self.model.device())?;
        let steps = file.take("steps", &[1], Kind::Int64, &place)?.int64_value(&[0]) as u64;
        let mut weights = Vec::new();
        for (name, tensor) in self.model.parameters() {
            weights.push((file.take(&format!("weight.{name}"), &tensor.size(), tensor.kind(), &place)?, tensor));
        }
        self.adamw.restore(&mut file, &place)?;
        self.muon.restore(&mut file, &place)?;
        let notes = std::mem::take(&mut file.metadata);
        file.finish(&place)?;
        tch::no_grad(|| {
            for (saved, tensor) in weights {
                tensor.detach().copy_(&saved);
            }
        });
        self.steps = steps;
        Ok(notes)
    }
}

fn targets_of(examples: &[PackedExample]) -> Result<Vec<Targets>, PolicyError> {
    let targets: Vec<_> =
        examples.iter().enumerate().map(|(at, example)| example.targets(at)).collect::<Result<_, _>>()?;
    if targets.iter().all(|targets| targets.ids.is_empty()) {
        return Err(PolicyError::Usage(
            "no token of the step is marked to be learned: check the loss masks".to_owned(),
        ));
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{tiny_model, values};

    fn example() -> PackedExample {
        PackedExample {
            packed: Packed { prefix: vec![1, 2, 3], branches: vec![vec![4, 5, 6], vec![7, 8]] },
            prefix_loss: vec![false, false, true],
            branch_loss: vec![vec![true, false, true], vec![true, true]],
        }
    }

    const RATES: Rates = Rates { hidden: 0.02, other: 0.01 };

    fn trainer(seed: u64) -> Pretrainer {
        Pretrainer::new(tiny_model(seed), PretrainConfig::default()).unwrap()
    }

    fn weights(trainer: &Pretrainer) -> Vec<f64> {
        trainer.model().parameters().iter().flat_map(|(_, tensor)| values(tensor)).collect()
    }

    #[test]
    fn the_loss_is_the_mean_over_marked_tokens_and_its_gradient_that_of_finite_differences() {
        let model = tiny_model(7).to_kind(Kind::Double).unwrap();
        let parameters = model.parameters();
        // No clipping, and plain reading of the gradients: the step's update is not what is tested here.
        let mut trainer =
            Pretrainer::new(model, PretrainConfig { max_grad_norm: 1e9, ..PretrainConfig::default() }).unwrap();
        let before: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.detach().copy()).collect();
        let metrics = trainer.step(&[example()], RATES).unwrap();
        assert_eq!((metrics.learned, metrics.computed), (5, 8));
        let gradients: Vec<Vec<f64>> = parameters.iter().map(|(_, tensor)| values(&tensor.grad())).collect();
        for ((_, tensor), before) in parameters.iter().zip(&before) {
            tensor.detach().copy_(before);
        }
        assert!((trainer.evaluate(&[example()]).unwrap().0 - metrics.loss).abs() < 1e-12);
        for ((name, tensor), gradient) in parameters.iter().zip(&gradients) {
            let flat = tensor.detach().view([-1]);
            for at in (0..gradient.len()).step_by(gradient.len() / 3 + 1) {
                let at_loss = |shift: f64| {
                    let _ = flat.get(at as i64).g_add_scalar_(shift);
                    let loss = trainer.evaluate(&[example()]).unwrap().0;
                    let _ = flat.get(at as i64).g_add_scalar_(-shift);
                    loss
                };
                let numeric = (at_loss(1e-5) - at_loss(-1e-5)) / 2e-5;
                let error = (numeric - gradient[at]).abs();
                assert!(error < 1e-7 + 1e-5 * numeric.abs(), "{name}[{at}]: {numeric} is not {}", gradient[at]);
            }
        }
    }

    #[test]
    fn the_update_does_not_depend_on_how_a_step_s_tokens_are_packed() {
        let whole = example();
        let mut first = whole.clone();
        first.packed.branches.truncate(1);
        first.branch_loss.truncate(1);
        let mut second = whole.clone();
        second.packed.branches.remove(0);
        second.branch_loss.remove(0);
        second.prefix_loss.clear();
        let (mut one, mut two) = (trainer(7), trainer(7));
        let metrics = (one.step(&[whole], RATES).unwrap(), two.step(&[first, second], RATES).unwrap());
        assert!((metrics.0.loss - metrics.1.loss).abs() < 1e-6);
        assert!((metrics.0.grad_norm - metrics.1.grad_norm).abs() < 1e-5);
    }

    #[test]
    fn training_on_one_example_learns_it() {
        let mut trainer = trainer(7);
        let first = trainer.step(&[example()], RATES).unwrap().loss;
        for _ in 0..60 {
            trainer.step(&[example()], RATES).unwrap();
        }
        let (last, right) = trainer.evaluate(&[example()]).unwrap();
        // The prefix predicts both branches' first tokens: one of the two must stay wrong.
        assert!(last < 0.5 && last < first / 4.0, "{first} to {last}");
        assert_eq!(right, 0.8);
    }

    #[test]
    fn a_restored_run_goes_on_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pretrain.safetensors");
        let mut whole = trainer(7);
        for _ in 0..3 {
            whole.step(&[example()], RATES).unwrap();
        }
        let notes = BTreeMap::from([("cursor".to_owned(), "3".to_owned())]);
        whole.save(&path, &notes).unwrap();
        let mut resumed = trainer(8);
        assert_eq!(resumed.restore(&path).unwrap(), notes);
        assert_eq!(resumed.steps(), 3);
        for _ in 0..3 {
            assert_eq!(whole.step(&[example()], RATES).unwrap(), resumed.step(&[example()], RATES).unwrap());
        }
        assert_eq!(weights(&whole), weights(&resumed));
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let mut trainer = trainer(7);
        let norm = trainer.model().parameters().pop().unwrap().1;
        let _ = norm.detach().get(0).fill_(f64::NAN);
        let before = trainer.model().parameters()[1].1.detach().copy();
        assert!(matches!(trainer.step(&[example()], RATES), Err(PolicyError::NotFinite { step: 0, .. })));
        assert_eq!(trainer.model().parameters()[1].1.detach(), before);
        assert_eq!(trainer.steps(), 0);
    }

    #[test]
    fn masks_that_do_not_fit_their_tokens_are_refused() {
        let mut trainer = trainer(7);
        let mut refused = |change: &dyn Fn(&mut PackedExample)| {
            let mut example = example();
            change(&mut example);
            trainer.step(&[example], RATES).is_err()
        };
        assert!(refused(&|example| example.prefix_loss = vec![true]));
        assert!(refused(&|example| example.prefix_loss = vec![true, false, false]));
        assert!(refused(&|example| example.branch_loss.truncate(1)));
        assert!(refused(&|example| example.branch_loss[0] = vec![true]));
        assert!(refused(&|example| {
            example.prefix_loss.clear();
            example.branch_loss = vec![vec![false; 3], vec![false; 2]];
        }));
        assert!(!refused(&|_| ()));
    }
}
