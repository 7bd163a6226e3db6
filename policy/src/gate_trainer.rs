//! Training of the gates on winning trajectories; base and adapters stay as they are.
//!
//! For every token that the policy sampled, [`gate_targets`] says which slots would have
//! found it likely. Those are the targets of the states that predict it, at every layer. Tokens that are only read
//! (prompt, observations) get the mean target of the turn that reads them next: keys and values that a slot's turn
//! attends to are then made by that slot, as they were when its adapter was trained.

use tch::{Kind, Tensor};

use crate::active::Active;
use crate::error::PolicyError;
use crate::gates::{Capture, Composition, gate_targets};
use crate::model::Model;
use crate::optim::{AdamW, AdamWConfig};
use crate::packed::Packed;

/// A winning trajectory and what each slot thinks of it.
#[derive(Debug, Clone, PartialEq)]
pub struct GateExample {
    /// All ids, `[T]`.
    pub tokens: Vec<i32>,
    /// True where the policy sampled, `[T]`.
    pub action_mask: Vec<bool>,
    /// `[slots][sampled tokens]`: teacher-forced log-probs of the sampled tokens under each slot.
    pub slot_logprobs: Vec<Vec<f32>>,
}

/// How gates are trained.
#[derive(Debug, Clone, PartialEq)]
pub struct GateConfig {
    /// Temperature of the targets, in nats.
    pub tau: f64,
    /// What slot 0 is favoured by, in nats.
    pub prior: f64,
    /// Weight of tokens that are only read, beside 1 for the states that predict sampled ones.
    pub context_weight: f64,
    /// Learning rate of AdamW.
    pub lr: f64,
    /// Passes over the examples.
    pub epochs: u32,
    /// Trajectories of an optimiser step.
    pub rows_per_step: usize,
}

/// What an epoch did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateMetrics {
    /// Mean cross-entropy over states and layers, before each step's update, in nats.
    pub loss: f64,
    /// Share of predicting states, over layers, whose chosen slot is the target's best one.
    pub agreement: f64,
}

/// Target of every state of a row, `[T, slots]`, and its weight, `[T]`: 1 where it predicts a sampled token,
/// `context_weight` where it is only read, 0 behind the last turn.
fn row_targets(example: &GateExample, config: &GateConfig) -> Result<(Vec<Vec<f32>>, Vec<f32>), PolicyError> {
    let targets = gate_targets(&example.slot_logprobs, config.tau, config.prior)?;
    let slots = example.slot_logprobs.len();
    let flat: Vec<f32> = Vec::try_from(targets.contiguous().view([-1]))
        .map_err(|error: tch::TchError| PolicyError::Usage(format!("gate targets cannot be read: {error}")))?;
    let length = example.tokens.len();
    let sampled = example.action_mask.iter().filter(|mask| **mask).count();
    if example.action_mask.len() != length
        || sampled * slots != flat.len()
        || example.action_mask.first() == Some(&true)
    {
        return Err(PolicyError::Usage(format!(
            "a gate example of {length} tokens has a mask of {} with {sampled} sampled, and log-probs for {}; its first \
             token cannot be a sampled one",
            example.action_mask.len(),
            flat.len() / slots.max(1)
        )));
    }
    let mut out = vec![vec![0.0; slots]; length];
    let mut weights = vec![0.0; length];
    let mut reading_from = 0;
    let mut at = 0;
    let mut next = 0;
    while at < length {
        if !example.action_mask[at] {
            at += 1;
            continue;
        }
        let end = (at..length).find(|&i| !example.action_mask[i]).unwrap_or(length);
        let mut mean = vec![0.0; slots];
        for position in at..end {
            let target = &flat[next * slots..(next + 1) * slots];
            out[position - 1] = target.to_vec();
            weights[position - 1] = 1.0;
            mean.iter_mut().zip(target).for_each(|(sum, p)| *sum += p / (end - at) as f32);
            next += 1;
        }
        for position in reading_from..at - 1 {
            out[position].clone_from(&mean);
            weights[position] = config.context_weight as f32;
        }
        // The turn's last token is read, not predicting: it belongs to what comes after.
        reading_from = end - 1;
        at = end;
    }
    Ok((out, weights))
}

/// Trains the router of `composition` in place and tells of each epoch. Examples are taken in the order given.
///
/// # Errors
/// Where an example does not fit the composition, or a loss is not finite.
pub fn train_gates(
    model: &Model,
    composition: &Composition,
    examples: &[GateExample],
    config: &GateConfig,
    mut tell: impl FnMut(u32, GateMetrics),
) -> Result<(), PolicyError> {
    let router = composition.router();
    let slots = router.slots();
    if let Some(bad) = examples.iter().position(|example| example.slot_logprobs.len() != slots) {
        let given = examples[bad].slot_logprobs.len();
        return Err(PolicyError::Usage(format!(
            "gate example {bad} has log-probs of {given} slots, the router {slots}"
        )));
    }
    router.set_trainable(true);
    let result = epochs(model, composition, examples, config, &mut tell);
    router.set_trainable(false);
    result
}

fn epochs(
    model: &Model,
    composition: &Composition,
    examples: &[GateExample],
    config: &GateConfig,
    tell: &mut impl FnMut(u32, GateMetrics),
) -> Result<(), PolicyError> {
    let router = composition.router();
    let mut adamw = AdamW::new(AdamWConfig::default(), router.tensors());
    let slots = router.slots() as i64;
    for epoch in 0..config.epochs {
        let (mut loss_sum, mut agreed, mut predicting, mut steps) = (0.0, 0.0, 0.0, 0.0);
        for rows in examples.chunks(config.rows_per_step.max(1)) {
            let mut losses: Vec<Tensor> = Vec::new();
            let mut total = 0.0;
            for example in rows {
                let (targets, weights) = row_targets(example, config)?;
                let mut capture = Capture { keep_inputs: true, ..Capture::default() };
                let packed = Packed { prefix: example.tokens.clone(), branches: Vec::new() };
                // Only the capture is wanted.
                let _ = tch::no_grad(|| model.forward(&packed, &Active::Routed(composition), Some(&mut capture)))?;
                let kept: Vec<i64> = (0..weights.len()).filter(|&i| weights[i] > 0.0).map(|i| i as i64).collect();
                let flat: Vec<f32> = kept.iter().flat_map(|&i| targets[i as usize].iter().copied()).collect();
                let weight: Vec<f32> = kept.iter().map(|&i| weights[i as usize]).collect();
                let index = Tensor::from_slice(&kept).to_device(model.device());
                let targets = Tensor::from_slice(&flat).view([-1, slots]).to_device(model.device());
                let weight = Tensor::from_slice(&weight).to_device(model.device());
                total += weight.sum(Kind::Double).double_value(&[]);
                let best = targets.argmax(-1, false);
                let acts = weight.ge(1.0);
                for (layer, inputs) in capture.block_inputs.iter().enumerate() {
                    let logits = router.logits(layer, &inputs.index_select(0, &index));
                    let logprobs = logits.log_softmax(-1, Kind::Float);
                    let entropies = -(logprobs * &targets).sum_dim_intlist([-1i64].as_slice(), false, Kind::Float);
                    losses.push((entropies * &weight).sum(Kind::Float) / router.layers() as f64);
                    let same = logits.argmax(-1, false).eq_tensor(&best).logical_and(&acts);
                    agreed += same.sum(Kind::Double).double_value(&[]);
                    predicting += acts.sum(Kind::Double).double_value(&[]);
                }
            }
            let loss = Tensor::stack(&losses, 0).sum(Kind::Float) / total;
            let value = loss.double_value(&[]);
            if !value.is_finite() {
                return Err(PolicyError::NotFinite { quantity: "the gates' loss", value, step: adamw.steps() });
            }
            for (_, mut tensor) in router.tensors() {
                tensor.zero_grad();
            }
            loss.backward();
            let gradients: Vec<Tensor> = router.tensors().iter().map(|(_, tensor)| tensor.grad()).collect();
            adamw.step(&gradients, config.lr);
            loss_sum += value;
            steps += 1.0;
        }
        tell(
            epoch,
            GateMetrics { loss: loss_sum / f64::max(steps, 1.0), agreement: agreed / f64::max(predicting, 1.0) },
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::config::ModelConfig;
    use crate::gates::{Member, Router};
    use crate::lora::{Lora, LoraConfig};

    fn config() -> GateConfig {
        GateConfig { tau: 1.0, prior: 0.0, context_weight: 0.5, lr: 0.05, epochs: 200, rows_per_step: 2 }
    }

    /// Five tokens read, two sampled, one read, one sampled, one read: slot 1 likes the first turn, slot 0 the second.
    fn example() -> GateExample {
        let mask = [0, 0, 0, 0, 0, 1, 1, 0, 1, 0].map(|m| m == 1).to_vec();
        let slot_logprobs = vec![vec![-9.0, -9.0, 0.0], vec![0.0, 0.0, -9.0]];
        GateExample { tokens: vec![5, 6, 7, 8, 9, 10, 11, 12, 13, 14], action_mask: mask, slot_logprobs }
    }

    #[test]
    fn targets_stand_one_before_the_sampled_token_and_readers_take_the_next_turns() {
        let (targets, weights) = row_targets(&example(), &config()).expect("fits");
        assert_eq!(weights, [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5, 1.0, 0.0, 0.0]);
        let best: Vec<Option<usize>> =
            targets.iter().map(|t| if t[0] == t[1] { None } else { Some(usize::from(t[1] > t[0])) }).collect();
        let (a, b) = (Some(1), Some(0));
        assert_eq!(best, [a, a, a, a, a, a, b, b, None, None]);
        assert!(targets[..8].iter().all(|t| (t.iter().sum::<f32>() - 1.0).abs() < 1e-6));
    }

    #[test]
    fn an_example_that_disagrees_with_itself_is_refused() {
        let mut short = example();
        short.action_mask.pop();
        let mut sampled_first = example();
        sampled_first.action_mask = [1, 0, 0, 0, 0, 1, 0, 0, 1, 0].map(|m| m == 1).to_vec();
        for bad in [short, sampled_first] {
            assert!(row_targets(&bad, &config()).is_err());
        }
    }

    #[test]
    fn gates_learn_which_slot_each_turn_wants_and_nothing_else_moves() {
        tch::set_num_threads(1);
        let shape = ModelConfig {
            vocab_size: 32,
            hidden_size: 16,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            intermediate_size: 24,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
            max_position_embeddings: 64,
        };
        let model = Model::random(shape.clone(), 3, Device::Cpu).expect("valid");
        let lora = Lora::new(&shape, LoraConfig::all_linears(2, 2.0), 4, Device::Cpu).expect("valid");
        let router = Router::new(&shape, 1, Device::Cpu);
        let member = Member { name: "a".to_string(), lora };
        let composition = Composition::new(&shape, vec![member], router).expect("fits");
        let before: Vec<Tensor> = model.parameters().into_iter().map(|(_, t)| t.copy()).collect();
        let mut told = Vec::new();
        train_gates(&model, &composition, &[example()], &config(), |_, metrics| told.push(metrics)).expect("trains");
        let (first, last) = (told[0], told[told.len() - 1]);
        assert!(last.loss < 0.5 * first.loss, "{first:?} {last:?}");
        assert!(last.agreement > 0.99, "{last:?}");
        for ((name, after), before) in model.parameters().into_iter().zip(before) {
            assert_eq!(after, before, "{name} moved");
        }
    }
}
