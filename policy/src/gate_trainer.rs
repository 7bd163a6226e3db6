//! Training of the gates on winning trajectories; base and adapters stay as they are.
//!
//! For every token that the policy sampled, [`gate_targets`] says which slots would have found it likely. Those are the
//! targets of the state that predicts it, at every layer. On most tokens all slots agree, and what the gates choose does
//! not matter; so a state weighs as much as its token's probability differs between slots. In an agent's trajectory
//! that is one token in a hundred: without the weights, the others' targets would be all that is learned.
//!
//! Tokens that are only read (prompt, observations) are to stay with the base: nearly all that an adapter does, it does
//! in the states that predict.
//!
//! Gates are linear and see their input detached, so that fitting them is cheap and computing the inputs is not. A pass
//! therefore computes the inputs once, under the gates as they are, then fits all gates on them in many steps. The next
//! pass computes them anew, for what lower gates choose changes what upper ones see.

use tch::{Kind, Tensor};

use crate::active::Active;
use crate::error::PolicyError;
use crate::gates::{Capture, Composition, gate_targets};
use crate::model::Model;
use crate::optim::{AdamW, AdamWConfig};
use crate::rows::{TrainRow, plan};

/// A winning trajectory and what each slot thinks of it.
#[derive(Debug, Clone, PartialEq)]
pub struct GateExample {
    /// The trajectory; its old log-probs and advantage are not read.
    pub row: TrainRow,
    /// `[slots][sampled tokens]`: teacher-forced log-probs of the sampled tokens under each slot.
    pub slot_logprobs: Vec<Vec<f32>>,
    /// What it counts, from 0 on: factor on the weights of its states.
    pub weight: f32,
}

/// How gates are trained.
#[derive(Debug, Clone, PartialEq)]
pub struct GateConfig {
    /// Temperature of the targets, in nats.
    pub tau: f64,
    /// What slot 0 is favoured by, in nats.
    pub prior: f64,
    /// Weight of all tokens that are only read, beside 1 for all states that predict sampled ones.
    pub context_weight: f64,
    /// Learning rate of AdamW at the start; falls to 0.
    pub lr: f64,
    /// How often the gates' inputs are computed.
    pub passes: u32,
    /// Steps of AdamW in a pass, each on all states.
    pub steps: u32,
    /// The most states that are kept; each takes `layers * hidden * 4` bytes. The lightest are left out.
    pub max_states: usize,
    /// Tokens computed at once while inputs are computed: a bound on memory.
    pub max_tokens_per_pass: usize,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateMetrics {
    /// Mean cross-entropy over states and layers after the pass's last step, by weight, in nats.
    pub loss: f64,
    /// Share of predicting states, over layers and by weight, whose chosen slot is the target's best one.
    pub agreement: f64,
}

/// The least weight of a predicting state.
const UNDECIDED: f32 = 0.001;

/// A state that gates are trained on.
#[derive(Debug, Clone, PartialEq)]
struct Target {
    /// Index of the example.
    row: usize,
    /// Position of the token whose state it is.
    position: usize,
    /// What the slots' shares should be.
    shares: Vec<f32>,
    weight: f32,
    predicts: bool,
}

/// The targets of one trajectory.
fn targets_of(index: usize, example: &GateExample, config: &GateConfig) -> Result<Vec<Target>, PolicyError> {
    let GateExample { row, slot_logprobs, weight: counts } = example;
    let (slots, sampled) = (slot_logprobs.len(), row.actions());
    let fault = row.scoring_fault().or_else(|| {
        let bad = slot_logprobs.iter().find(|logprobs| logprobs.len() != sampled)?;
        Some(format!("it has {sampled} sampled tokens, and a slot has log-probs for {}", bad.len()))
    });
    let fault = fault.or_else(|| {
        let usable = counts.is_finite() && *counts >= 0.0;
        (!usable).then(|| format!("its weight is {counts}; it must be a number from 0 on"))
    });
    if let Some(reason) = fault {
        return Err(PolicyError::Row { group: 0, row: index, reason });
    }
    let shares = gate_targets(slot_logprobs, config.tau, config.prior)?;
    let shares: Vec<f32> = Vec::try_from(shares.contiguous().view([-1]))
        .map_err(|error: tch::TchError| PolicyError::Usage(format!("gate targets cannot be read: {error}")))?;
    let actions: Vec<usize> = (0..row.tokens.len()).filter(|&at| row.action_mask[at]).collect();
    let mut out: Vec<Target> = Vec::with_capacity(2 * sampled);
    for (token, &at) in actions.iter().enumerate() {
        let probabilities = slot_logprobs.iter().map(|logprobs| logprobs[token].exp());
        let (least, most) = probabilities.fold((1f32, 0f32), |(least, most), p| (least.min(p), most.max(p)));
        out.push(Target {
            row: index,
            position: at - 1,
            shares: shares[token * slots..(token + 1) * slots].to_vec(),
            weight: counts * (UNDECIDED + (most - least).max(0.0)),
            predicts: true,
        });
    }
    if config.context_weight > 0.0 {
        let last = actions.last().copied().unwrap_or(0);
        let read: Vec<usize> = (0..last).filter(|&at| !row.action_mask[at + 1]).collect();
        // As many as predict, evenly spread: a prompt of thousands of tokens says no more than that.
        let count = read.len().min(sampled);
        let weight = config.context_weight as f32 * out.iter().map(|target| target.weight).sum::<f32>() / count as f32;
        let base: Vec<f32> = (0..slots).map(|slot| if slot == 0 { 1.0 } else { 0.0 }).collect();
        out.extend((0..count).map(|i| Target {
            row: index,
            position: read[i * read.len() / count],
            shares: base.clone(),
            weight,
            predicts: false,
        }));
    }
    Ok(out)
}

/// The targets of all trajectories, row by row, the lightest left out where there are too many.
fn targets(examples: &[GateExample], config: &GateConfig) -> Result<Vec<Target>, PolicyError> {
    let mut all = Vec::new();
    for (index, example) in examples.iter().enumerate() {
        all.extend(targets_of(index, example, config)?);
    }
    if all.len() > config.max_states {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|&a, &b| all[b].weight.total_cmp(&all[a].weight));
        let mut kept = vec![false; all.len()];
        order[..config.max_states].iter().for_each(|&at| kept[at] = true);
        let mut at = 0;
        all.retain(|_| {
            at += 1;
            kept[at - 1]
        });
    }
    Ok(all)
}

/// Trains the router of `composition` in place and tells of each pass.
///
/// # Errors
/// Where there is no example, one does not fit the composition, or a loss is not finite.
pub fn train_gates(
    model: &Model,
    composition: &Composition,
    examples: &[GateExample],
    config: &GateConfig,
    mut tell: impl FnMut(u32, GateMetrics),
) -> Result<(), PolicyError> {
    let router = composition.router();
    let slots = router.slots();
    if examples.is_empty() {
        return Err(PolicyError::Usage("gates were to be trained on no winning trajectory".to_owned()));
    }
    if let Some(bad) = examples.iter().position(|example| example.slot_logprobs.len() != slots) {
        let given = examples[bad].slot_logprobs.len();
        return Err(PolicyError::Usage(format!(
            "gate example {bad} has log-probs of {given} slots, the router {slots}"
        )));
    }
    let targets = targets(examples, config)?;
    router.set_trainable(true);
    let result = passes(model, composition, examples, &targets, config, &mut tell);
    router.set_trainable(false);
    result
}

/// The gates' inputs at the targets' states, per layer `[targets, hidden]`, under the gates as they are.
fn inputs(
    model: &Model,
    composition: &Composition,
    rows: &[TrainRow],
    targets: &[Target],
    max_tokens: usize,
) -> Result<Vec<Tensor>, PolicyError> {
    let mut parts: Vec<Vec<Tensor>> = (0..model.layers()).map(|_| Vec::new()).collect();
    let mut rest = targets;
    // Passes and targets have the rows in the same order.
    for pass in plan(rows, max_tokens) {
        let end = pass.rows.last().map_or(0, |last| last + 1);
        let (mine, others) = rest.split_at(rest.partition_point(|target| target.row < end));
        rest = others;
        let first = pass.rows[0];
        let states: Vec<i64> =
            mine.iter().filter_map(|target| pass.packed.predictor(target.row - first, target.position + 1)).collect();
        let mut capture = Capture { keep_inputs: true, ..Capture::default() };
        // Only the capture is wanted.
        let _ = tch::no_grad(|| model.forward(&pass.packed, &Active::Routed(composition), Some(&mut capture)))?;
        let states = Tensor::from_slice(&states).to_device(model.device());
        for (part, inputs) in parts.iter_mut().zip(&capture.block_inputs) {
            part.push(inputs.index_select(0, &states).to_kind(Kind::Float));
        }
    }
    Ok(parts.iter().map(|part| Tensor::cat(part, 0)).collect())
}

/// The inputs of the layers at which a choice changes anything.
fn gated<'a>(composition: &'a Composition, inputs: &'a [Tensor]) -> impl Iterator<Item = (usize, &'a Tensor)> {
    inputs.iter().enumerate().filter(|(layer, _)| composition.acts(*layer))
}

fn passes(
    model: &Model,
    composition: &Composition,
    examples: &[GateExample],
    targets: &[Target],
    config: &GateConfig,
    tell: &mut impl FnMut(u32, GateMetrics),
) -> Result<(), PolicyError> {
    let router = composition.router();
    let rows: Vec<TrainRow> = examples.iter().map(|example| example.row.clone()).collect();
    let device = model.device();
    let flat: Vec<f32> = targets.iter().flat_map(|target| target.shares.iter().copied()).collect();
    let shares = Tensor::from_slice(&flat).view([-1, router.slots() as i64]).to_device(device);
    let weights: Vec<f32> = targets.iter().map(|target| target.weight).collect();
    let weights = Tensor::from_slice(&weights).to_device(device);
    let weights = &weights / weights.sum(Kind::Float);
    let acting: Vec<f32> = targets.iter().map(|target| f32::from(u8::from(target.predicts))).collect();
    let acting = Tensor::from_slice(&acting).to_device(device) * &weights;
    let best = shares.argmax(-1, false);
    let trained: Vec<(String, Tensor)> =
        (0..router.layers()).filter(|&layer| composition.acts(layer)).flat_map(|layer| router.gate(layer)).collect();
    if trained.is_empty() {
        return Err(PolicyError::Usage("gates were to be trained over no adapter".to_owned()));
    }
    let mut adamw = AdamW::new(
        AdamWConfig::default(),
        trained.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect(),
    );
    let all_steps = f64::from(config.passes) * f64::from(config.steps);
    for pass in 0..config.passes {
        let inputs = inputs(model, composition, &rows, targets, config.max_tokens_per_pass)?;
        let mut last = f64::NAN;
        for step in 0..config.steps {
            let losses: Vec<Tensor> = gated(composition, &inputs)
                .map(|(layer, inputs)| {
                    let logprobs = router.logits(layer, inputs).log_softmax(-1, Kind::Float);
                    let entropies = -(logprobs * &shares).sum_dim_intlist([-1i64].as_slice(), false, Kind::Float);
                    (entropies * &weights).sum(Kind::Float)
                })
                .collect();
            let loss = Tensor::stack(&losses, 0).mean(Kind::Float);
            last = loss.double_value(&[]);
            if !last.is_finite() {
                return Err(PolicyError::NotFinite { quantity: "the gates' loss", value: last, step: adamw.steps() });
            }
            for (_, tensor) in &trained {
                tensor.shallow_clone().zero_grad();
            }
            loss.backward();
            let gradients: Vec<Tensor> = trained.iter().map(|(_, tensor)| tensor.grad()).collect();
            adamw.step(
                &gradients,
                config.lr * (1.0 - (f64::from(pass) * f64::from(config.steps) + f64::from(step)) / all_steps),
            );
        }
        let agreed = gated(composition, &inputs).map(|(layer, inputs)| {
            let same = composition.slots(layer, inputs).eq_tensor(&best).to_kind(Kind::Float);
            (same * &acting).sum(Kind::Double).double_value(&[])
        });
        let agreement = agreed.sum::<f64>()
            / (acting.sum(Kind::Double).double_value(&[]) * gated(composition, &inputs).count() as f64);
        tell(pass, GateMetrics { loss: last, agreement });
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
    use crate::packed::Packed;

    fn shape() -> ModelConfig {
        ModelConfig {
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
        }
    }

    fn composition(shape: &ModelConfig) -> Composition {
        composed(shape, LoraConfig::all_linears(2, 2.0))
    }

    fn composed(shape: &ModelConfig, config: LoraConfig) -> Composition {
        let lora = Lora::new(shape, config, 4, Device::Cpu).expect("valid");
        let member = Member { name: "a".to_string(), lora };
        Composition::new(shape, vec![member], Router::new(shape, 1, Device::Cpu)).expect("fits")
    }

    fn config() -> GateConfig {
        GateConfig {
            tau: 1.0,
            prior: 0.0,
            context_weight: 0.5,
            lr: 0.05,
            passes: 4,
            steps: 100,
            max_states: 1_000,
            max_tokens_per_pass: 64,
        }
    }

    /// Five tokens read, two sampled, one read, one sampled, one read: slot 1 likes the first turn, slot 0 the second.
    fn example() -> GateExample {
        let mask = [0, 0, 0, 0, 0, 1, 1, 0, 1, 0].map(|m| m == 1).to_vec();
        let slot_logprobs = vec![vec![-9.0, -9.0, 0.0], vec![0.0, 0.0, -9.0]];
        let row = TrainRow {
            tokens: vec![5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
            action_mask: mask,
            old_logprobs: Vec::new(),
            advantage: f32::NAN,
        };
        GateExample { row, slot_logprobs, weight: 1.0 }
    }

    #[test]
    fn targets_stand_one_before_the_sampled_token_and_what_is_read_stays_with_the_base() {
        let found = targets(&[example()], &config()).expect("fits");
        let place = |target: &Target| (target.position, target.shares[1] > 0.5, target.predicts);
        // Of the positions 0 to 3 and 6, which are read before a sampled token, three: as many as predict.
        let read = [(0, false, false), (1, false, false), (3, false, false)];
        let expected: Vec<_> = [(4, true, true), (5, true, true), (7, false, true)].into_iter().chain(read).collect();
        assert_eq!(found.iter().map(place).collect::<Vec<_>>(), expected);
        assert!(found.iter().all(|target| (target.shares.iter().sum::<f32>() - 1.0).abs() < 1e-6));
    }

    #[test]
    fn a_state_weighs_what_depends_on_the_slot_and_contexts_weigh_their_share_together() {
        let mut example = example();
        example.slot_logprobs = vec![vec![-0.1, -9.0, 0.5f32.ln()], vec![-0.1, -9.0, 0.75f32.ln()]];
        let found = targets(&[example], &config()).expect("fits");
        let weights: Vec<f32> = found.iter().map(|target| target.weight).collect();
        for (weight, expected) in weights.iter().zip([0.001, 0.001, 0.251]) {
            assert!((weight - expected).abs() < 1e-6, "{weights:?}");
        }
        assert!((weights[3..].iter().sum::<f32>() - 0.5 * 0.253).abs() < 1e-6, "{weights:?}");
        let few = targets(&[self::example()], &GateConfig { max_states: 2, ..config() }).expect("fits");
        assert_eq!(few.iter().map(|target| target.position).collect::<Vec<_>>(), [4, 5], "the heaviest, in order");
    }

    #[test]
    fn an_example_that_disagrees_with_itself_is_refused() {
        let mut short = example();
        short.row.action_mask.pop();
        let mut sampled_first = example();
        sampled_first.row.action_mask = [1, 0, 0, 0, 0, 1, 0, 0, 1, 0].map(|m| m == 1).to_vec();
        let mut unscored = example();
        unscored.slot_logprobs[1].pop();
        for bad in [short, sampled_first, unscored] {
            assert!(targets(&[bad], &config()).is_err());
        }
    }

    #[test]
    fn inputs_are_those_of_each_row_alone_however_rows_are_packed() {
        let shape = shape();
        let model = Model::random(shape.clone(), 3, Device::Cpu).expect("valid");
        let composition = composition(&shape);
        let mut other = example();
        other.row.tokens[6] = 20;
        let examples = [example(), other];
        let found = targets(&examples, &config()).expect("fits");
        let rows: Vec<TrainRow> = examples.iter().map(|example| example.row.clone()).collect();
        let together = inputs(&model, &composition, &rows, &found, 64).expect("computes");
        for (at, target) in found.iter().enumerate() {
            let mut capture = Capture { keep_inputs: true, ..Capture::default() };
            let packed = Packed { prefix: rows[target.row].tokens[..=target.position].to_vec(), branches: Vec::new() };
            let _ = model.forward(&packed, &Active::Routed(&composition), Some(&mut capture)).expect("computes");
            for (inputs, alone) in together.iter().zip(&capture.block_inputs) {
                let error = (inputs.get(at as i64) - alone.get(-1)).abs().max().double_value(&[]);
                assert!(error < 1e-5, "{target:?}: {error}");
            }
        }
    }

    #[test]
    fn gates_learn_which_slot_each_turn_wants_and_nothing_else_moves() {
        tch::set_num_threads(1);
        let shape = shape();
        let model = Model::random(shape.clone(), 3, Device::Cpu).expect("valid");
        let composition = composition(&shape);
        let before: Vec<Tensor> = model.parameters().into_iter().map(|(_, t)| t.copy()).collect();
        let mut told = Vec::new();
        train_gates(&model, &composition, &[example()], &config(), |_, metrics| told.push(metrics)).expect("trains");
        assert!(train_gates(&model, &composition, &[], &config(), |_, _| ()).is_err(), "nothing to learn from");
        let (first, last) = (told[0], told[told.len() - 1]);
        assert!(last.loss < first.loss && last.loss < 0.01, "{first:?} {last:?}");
        assert!(last.agreement > 0.99, "{last:?}");
        for ((name, after), before) in model.parameters().into_iter().zip(before) {
            assert_eq!(after, before, "{name} moved");
        }
    }

    #[test]
    fn a_block_without_adapters_has_no_gate_to_train_and_counts_for_nothing() {
        tch::set_num_threads(1);
        let shape = shape();
        let model = Model::random(shape.clone(), 3, Device::Cpu).expect("valid");
        let composition = composed(&shape, LoraConfig::all_linears(2, 2.0).from_layer(1, 2));
        assert!(!composition.acts(0) && composition.acts(1));
        let mut last = None;
        train_gates(&model, &composition, &[example()], &config(), |_, metrics| last = Some(metrics)).expect("trains");
        // The untrained block's gate would agree on half of the states, and would keep the mean loss above a third.
        let last = last.expect("told");
        assert!(last.agreement > 0.99 && last.loss < 0.01, "{last:?}");
        let new = Router::new(&shape, 1, Device::Cpu);
        let moved = |layer| {
            let (now, before) = (composition.router().gate(layer), new.gate(layer));
            now.iter().zip(&before).any(|((_, now), (_, before))| now != before)
        };
        assert!(!moved(0) && moved(1), "only the second block's gate is trained");
        let mut capture = Capture::default();
        let packed = Packed { prefix: example().row.tokens, branches: Vec::new() };
        let _ = model.forward(&packed, &Active::Routed(&composition), Some(&mut capture)).expect("computes");
        assert_eq!(capture.slots.len(), 1, "a block where nothing is chosen has no part in the modal slot");
        let nothing = Composition::new(&shape, Vec::new(), Router::new(&shape, 0, Device::Cpu)).expect("fits");
        let alone = GateExample { slot_logprobs: vec![vec![-1.0; 3]], ..example() };
        let error = train_gates(&model, &nothing, &[alone], &config(), |_, _| ()).expect_err("no adapter");
        assert!(error.to_string().contains("no adapter"), "{error}");
    }
}
