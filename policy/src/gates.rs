//! Gates: which adapter, if any, each token uses at each layer.
//!
//! One linear map per layer takes the block's input to `adapters + 1` logits; slot 0 is the base without an adapter.
//! Each token takes its best slot. The routed product is computed packed: `x A_all`, columns of slots not chosen
//! set to zero, times `B_all`; its cost does not grow with how tokens are spread over slots.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::PolicyError;
use crate::lora::{Lora, Module};
use crate::tensorfile::{read_tensors, write_atomically, write_tensors};

/// The gates' trainable parameters: `layers * (hidden * (adapters + 1) + (adapters + 1))`.
pub fn parameter_count(layers: u64, hidden: u64, adapters: u64) -> u64 {
    layers * (hidden + 1) * (adapters + 1)
}

/// One linear gate per layer.
#[derive(Debug)]
pub struct Router {
    /// Per layer: weight `[slots, hidden]` and bias `[slots]`.
    gates: Vec<(Tensor, Tensor)>,
}

impl Router {
    /// Gates that send every token to the base: weights zero, and a bias of 1 on slot 0, so that ties cannot occur.
    pub fn new(model: &ModelConfig, adapters: usize, device: Device) -> Self {
        let slots = adapters as i64 + 1;
        let gates = (0..model.num_hidden_layers).map(|_| {
            let weight = Tensor::zeros([slots, model.hidden_size], (Kind::Float, device));
            let bias = Tensor::zeros([slots], (Kind::Float, device));
            let _ = bias.get(0).fill_(1.0);
            (weight, bias)
        });
        Self { gates: gates.collect() }
    }

    /// Number of slots, the base included.
    pub fn slots(&self) -> usize {
        self.gates.first().map_or(1, |(_, bias)| bias.size()[0] as usize)
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.gates.len()
    }

    /// Gate logits `[N, slots]` of layer `layer` for block inputs `[N, hidden]`, whose gradient is cut. Inputs are
    /// brought to a root mean square of 1 first: a residual stream grows from layer to layer and has tokens that are
    /// hundreds of times as large as others, on which one learning rate for all gates would not work.
    pub fn logits(&self, layer: usize, inputs: &Tensor) -> Tensor {
        let (weight, bias) = &self.gates[layer];
        let inputs = inputs.detach().to_kind(Kind::Float);
        let square = (&inputs * &inputs).mean_dim([-1i64].as_slice(), true, Kind::Float);
        (inputs * (square + 1e-6).rsqrt()).linear(weight, Some(bias))
    }

    /// Parameters by name (`layers.N.gate.weight`, `layers.N.gate.bias`), in a fixed order; shared storage.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        (0..self.layers()).flat_map(|layer| self.gate(layer)).collect()
    }

    /// Weight and bias of one layer's gate, named as in [`Router::tensors`].
    pub fn gate(&self, layer: usize) -> [(String, Tensor); 2] {
        let (weight, bias) = &self.gates[layer];
        [
            (format!("layers.{layer}.gate.weight"), weight.shallow_clone()),
            (format!("layers.{layer}.gate.bias"), bias.shallow_clone()),
        ]
    }

    /// Whether gradients are to be computed for the gates.
    pub fn set_trainable(&self, trainable: bool) {
        for (_, tensor) in self.tensors() {
            let _ = tensor.set_requires_grad(trainable);
        }
    }

    /// Writes the gates to a safetensors file, atomically.
    pub fn save(&self, path: &Path) -> Result<(), PolicyError> {
        write_tensors(path, &self.tensors(), &BTreeMap::new())
    }

    /// Reads gates written by [`Router::save`] for a model and a number of adapters.
    pub fn load(path: &Path, model: &ModelConfig, adapters: usize, device: Device) -> Result<Self, PolicyError> {
        let place = path.display().to_string();
        let mut file = read_tensors(path, device)?;
        let slots = adapters as i64 + 1;
        let mut gates = Vec::new();
        for layer in 0..model.num_hidden_layers {
            let weight =
                file.take(&format!("layers.{layer}.gate.weight"), &[slots, model.hidden_size], Kind::Float, &place)?;
            let bias = file.take(&format!("layers.{layer}.gate.bias"), &[slots], Kind::Float, &place)?;
            gates.push((weight, bias));
        }
        file.finish(&place)?;
        Ok(Self { gates })
    }
}

/// The gate's target for each token: softmax over slots of `log-prob / tau`, slot 0 favoured by `prior` nats.
///
/// `logprobs[s][t]` is the log-prob of sampled token `t`, teacher-forced under slot `s`; all slots have the same
/// tokens. The result is `[tokens, slots]`, in f32. `tau` must be positive.
pub fn gate_targets(logprobs: &[Vec<f32>], tau: f64, prior: f64) -> Result<Tensor, PolicyError> {
    let tokens = logprobs.first().map_or(0, Vec::len);
    if tokens == 0 || logprobs.iter().any(|slot| slot.len() != tokens) {
        return Err(PolicyError::Usage(
            "gate targets need the same tokens under every slot, and at least one".to_owned(),
        ));
    }
    if !(tau > 0.0 && tau.is_finite() && prior.is_finite()) {
        return Err(PolicyError::Usage(format!("gate targets need tau > 0 and a finite prior, not {tau} and {prior}")));
    }
    if logprobs.iter().flatten().any(|logprob| !logprob.is_finite()) {
        return Err(PolicyError::Usage("gate targets need finite log-probs under every slot".to_owned()));
    }
    let rows: Vec<Tensor> = logprobs.iter().map(|slot| Tensor::from_slice(slot)).collect();
    let scores = Tensor::stack(&rows, 1) / tau;
    let favour = Tensor::zeros([logprobs.len() as i64], (Kind::Float, Device::Cpu));
    let _ = favour.get(0).fill_(prior);
    Ok((scores + favour).softmax(-1, Kind::Float))
}

/// An adapter of a composition.
#[derive(Debug)]
pub struct Member {
    /// The name by which the log and the report know it.
    pub name: String,
    /// The adapter itself.
    pub lora: Lora,
}

/// The routed product's matrices of one module in one layer.
#[derive(Debug)]
struct PackedPair {
    /// `[sum of ranks, in]`.
    a: Tensor,
    /// `[out, sum of ranks]`, each adapter's scale folded in.
    b: Tensor,
}

/// One base, adapters bound by name and digest, one router.
#[derive(Debug)]
pub struct Composition {
    members: Vec<Member>,
    router: Router,
    layers: Vec<[Option<PackedPair>; 7]>,
    /// Slot of each packed column, `[sum of ranks]`.
    columns: Tensor,
}

/// What `composition.json` holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    adapters: Vec<ManifestAdapter>,
    router: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestAdapter {
    name: String,
    digest: String,
}

impl Composition {
    /// Binds adapters to a router of one more slot. Slot `i + 1` is adapter `i`.
    pub fn new(model: &ModelConfig, members: Vec<Member>, router: Router) -> Result<Self, PolicyError> {
        if router.slots() != members.len() + 1 || router.layers() as i64 != model.num_hidden_layers {
            return Err(PolicyError::Usage(format!(
                "a router of {} slots and {} layers does not fit {} adapters on {} layers",
                router.slots(),
                router.layers(),
                members.len(),
                model.num_hidden_layers
            )));
        }
        let device = router.gates[0].0.device();
        let ranks = members.iter().enumerate();
        let columns: Vec<i64> =
            ranks.flat_map(|(index, member)| vec![index as i64 + 1; member.lora.config().rank as usize]).collect();
        let layers =
            (0..router.layers()).map(|layer| Module::ALL.map(|module| pack(model, &members, layer, module, device)));
        let layers = layers.collect();
        Ok(Self { members, router, layers, columns: Tensor::from_slice(&columns).to_device(device) })
    }

    /// The adapters, in slot order from slot 1.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// True where an adapter changes anything in block `layer`; elsewhere it is the same whatever a gate chooses, and
    /// none is asked.
    pub fn acts(&self, layer: usize) -> bool {
        self.layers[layer].iter().any(Option::is_some)
    }

    /// The slot of each token at layer `layer`, `[N]`, from the block's input `[N, hidden]`.
    pub fn slots(&self, layer: usize, inputs: &Tensor) -> Tensor {
        tch::no_grad(|| self.router.logits(layer, inputs).argmax(-1, false))
    }

    /// Which packed columns count for each token, `[N, sum of ranks]`, given its slot.
    pub(crate) fn chosen(&self, slots: &Tensor) -> Tensor {
        slots.unsqueeze(1).eq_tensor(&self.columns)
    }

    /// Adds the chosen adapters' share for inputs `x: [N, in]` to the base's outputs `y: [N, out]`.
    pub(crate) fn add(&self, layer: usize, module: Module, chosen: &Tensor, x: &Tensor, y: Tensor) -> Tensor {
        match &self.layers[layer][module as usize] {
            None => y,
            Some(pair) => {
                let reduced = x.matmul(&pair.a.tr());
                let zero = Tensor::zeros([1], (reduced.kind(), reduced.device()));
                y.addmm(&reduced.where_self(chosen, &zero), &pair.b.tr())
            }
        }
    }

    /// Writes `router.safetensors` and `composition.json` (the adapters by name and digest) to `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        self.router.save(&folder.join("router.safetensors"))?;
        let mut adapters = Vec::new();
        for member in &self.members {
            adapters.push(ManifestAdapter { name: member.name.clone(), digest: member.lora.digest()? });
        }
        let path = folder.join("composition.json");
        let manifest = Manifest { adapters, router: "router.safetensors".to_owned() };
        let text = serde_json::to_string_pretty(&manifest).map_err(PolicyError::json(&path))?;
        write_atomically(&path, text.as_bytes())
    }

    /// Reads a composition of `members`, which must be those it was saved with: same names, order and digests.
    pub fn load(folder: &Path, model: &ModelConfig, members: Vec<Member>, device: Device) -> Result<Self, PolicyError> {
        let path = folder.join("composition.json");
        let text = fs::read_to_string(&path).map_err(PolicyError::read(&path))?;
        let manifest: Manifest = serde_json::from_str(&text).map_err(PolicyError::json(&path))?;
        let fault = |reason: String| PolicyError::Config {
            place: path.display().to_string(),
            key: "adapters".to_owned(),
            reason,
        };
        if manifest.adapters.len() != members.len() {
            return Err(fault(format!("names {} adapters, {} were given", manifest.adapters.len(), members.len())));
        }
        for (bound, member) in manifest.adapters.iter().zip(&members) {
            if bound.name != member.name {
                return Err(fault(format!(
                    "has `{}` where `{}` was given: the order is part of the gates",
                    bound.name, member.name
                )));
            }
            if bound.digest != member.lora.digest()? {
                return Err(fault(format!("`{}` is another adapter than the gates were trained with", bound.name)));
            }
        }
        let router = Router::load(&folder.join(&manifest.router), model, members.len(), device)?;
        Self::new(model, members, router)
    }
}

fn pack(model: &ModelConfig, members: &[Member], layer: usize, module: Module, device: Device) -> Option<PackedPair> {
    if members.iter().all(|member| member.lora.layer(layer).pair(module).is_none()) {
        return None;
    }
    let (rows, columns) = module.shape(model);
    let mut parts = (Vec::new(), Vec::new());
    for member in members {
        let (rank, scale) = (member.lora.config().rank, member.lora.config().scale());
        match member.lora.layer(layer).pair(module) {
            Some(pair) => {
                parts.0.push(pair.a.detach().shallow_clone());
                parts.1.push(pair.b.detach() * scale);
            }
            None => {
                parts.0.push(Tensor::zeros([rank, columns], (Kind::Float, device)));
                parts.1.push(Tensor::zeros([rows, rank], (Kind::Float, device)));
            }
        }
    }
    Some(PackedPair { a: Tensor::cat(&parts.0, 0), b: Tensor::cat(&parts.1, 1) })
}

/// What a forward pass leaves behind for the gate trainer and the log.
#[derive(Debug, Default)]
pub struct Capture {
    /// Whether block inputs are wanted; slots are always kept where a router acts.
    pub keep_inputs: bool,
    /// Per layer: the block's input `[N, hidden]`, without gradient.
    pub block_inputs: Vec<Tensor>,
    /// Per layer that adapters change: the chosen slot `[N]` of each token; empty without a router.
    pub slots: Vec<Tensor>,
}

impl Capture {
    /// The slot chosen by most layers for each token, the lowest of equals: `[N]`. None without a router.
    pub fn modal_slots(&self, slots: usize) -> Option<Tensor> {
        if self.slots.is_empty() {
            return None;
        }
        let by_layer = Tensor::stack(&self.slots, 1);
        let counts: Vec<Tensor> = (0..slots as i64)
            .map(|slot| by_layer.eq(slot).sum_dim_intlist([-1i64].as_slice(), false, Kind::Int64))
            .collect();
        // The largest count wins; among equal counts the lowest slot, which the second term decides.
        let ranked =
            Tensor::stack(&counts, 1) * slots as i64 - Tensor::arange(slots as i64, (Kind::Int64, by_layer.device()));
        Some(ranked.argmax(-1, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::active::Active;
    use crate::lora::LoraConfig;
    use crate::model::tests::{tiny, tiny_model, values};
    use crate::packed::Packed;

    fn wave(tensor: &Tensor, speed: f64, size: f64) {
        let steps = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)) * speed + speed;
        tensor.detach().copy_(&(steps.sin() * size).view(tensor.size().as_slice()));
    }

    fn members() -> Vec<Member> {
        let lora = |seed, rank, targets| {
            let lora =
                Lora::new(&tiny(), LoraConfig { rank, alpha: 4.0, targets, layers: None }, seed, Device::Cpu).unwrap();
            for (at, (_, tensor)) in
                lora.tensors().into_iter().enumerate().filter(|(_, (name, _))| name.contains("lora_B"))
            {
                wave(&tensor, 0.3 + seed as f64 + at as f64, 0.4);
            }
            lora
        };
        vec![
            Member { name: "first".into(), lora: lora(1, 2, Module::ALL.to_vec()) },
            Member { name: "second".into(), lora: lora(2, 3, vec![Module::V, Module::Up]) },
        ]
    }

    fn router() -> Router {
        let router = Router::new(&tiny(), 2, Device::Cpu);
        for (at, (_, tensor)) in router.tensors().into_iter().enumerate() {
            wave(&tensor, 7.3 * (at + 1) as f64, if tensor.dim() == 2 { 0.5 } else { 0.0 });
        }
        router
    }

    #[test]
    fn the_gates_of_qwen3_30b_a3b_with_four_adapters_have_491_760_parameters() {
        assert_eq!(parameter_count(48, 2048, 4), 491_760);
        let mut config = tiny();
        config.hidden_size = 2048;
        config.num_hidden_layers = 48;
        let router = Router::new(&config, 4, Device::Cpu);
        assert_eq!(router.tensors().iter().map(|(_, tensor)| tensor.numel() as u64).sum::<u64>(), 491_760);
    }

    #[test]
    fn new_gates_send_every_token_to_the_base() {
        let composition = Composition::new(&tiny(), members(), Router::new(&tiny(), 2, Device::Cpu)).unwrap();
        let inputs = Tensor::from_slice(&[3.0f32; 24]).view([2, 12]);
        assert_eq!(values(&composition.slots(1, &inputs)), [0.0, 0.0]);
    }

    #[test]
    fn each_token_gets_its_own_adapter_at_each_layer_as_if_computed_alone() {
        let (model, router) = (tiny_model(6), router());
        let packed = Packed { prefix: vec![1, 2, 3, 4, 5, 6], branches: vec![vec![7, 8, 9], vec![10, 11]] };
        let composition = Composition::new(model.config(), members(), router).unwrap();
        let mut capture = Capture { keep_inputs: true, ..Capture::default() };
        let routed = model.forward(&packed, &Active::Routed(&composition), Some(&mut capture)).unwrap();
        let used: std::collections::BTreeSet<i64> =
            capture.slots.iter().flat_map(|slots| values(slots).into_iter().map(|slot| slot as i64)).collect();
        assert_eq!(used.len(), 3, "the test needs tokens in every slot");
        // The definition, token by token: the base's product plus the chosen adapter's.
        for layer in 0..model.layers() {
            let inputs = &capture.block_inputs[layer];
            let acting = Active::Routed(&composition).layer(layer, inputs, None);
            for module in [Module::Q, Module::V, Module::Up] {
                let found = model.linear(layer, module, inputs, &acting);
                for token in 0..inputs.size()[0] {
                    let slot = capture.slots[layer].int64_value(&[token]) as usize;
                    let row = inputs.narrow(0, token, 1);
                    let active =
                        if slot == 0 { Active::Base } else { Active::Adapter(&composition.members()[slot - 1].lora) };
                    let expected = model.linear(layer, module, &row, &active.layer(layer, &row, None));
                    let error = (found.narrow(0, token, 1) - expected).abs().max().double_value(&[]);
                    assert!(error < 1e-5, "layer {layer}, {module}, token {token}: {error}");
                }
            }
        }
        assert_ne!(routed, model.forward(&packed, &Active::Base, None).unwrap());
        assert!(capture.block_inputs.iter().all(|inputs| !inputs.requires_grad() && inputs.size() == [11, 12]));
    }

    #[test]
    fn the_modal_slot_is_the_most_frequent_over_layers_and_the_lowest_of_equals() {
        let slots = [[0i64, 2, 1, 2], [0, 2, 2, 1], [1, 1, 0, 0]].map(|layer| Tensor::from_slice(&layer));
        let capture = Capture { slots: slots.into(), ..Capture::default() };
        assert_eq!(values(&capture.modal_slots(3).unwrap()), [0.0, 2.0, 0.0, 0.0]);
        assert!(Capture::default().modal_slots(3).is_none());
    }

    #[test]
    fn gate_targets_are_the_softmax_over_slots_with_the_base_favoured() {
        let targets = values(&gate_targets(&[vec![-1.0, -3.0], vec![-2.0, -1.0], vec![-3.0, -2.0]], 0.5, 0.7).unwrap());
        for (token, scores) in [[-1.0f64, -2.0, -3.0], [-3.0, -1.0, -2.0]].iter().enumerate() {
            let powers: Vec<f64> = scores
                .iter()
                .enumerate()
                .map(|(slot, score)| (score / 0.5 + if slot == 0 { 0.7 } else { 0.0 }).exp())
                .collect();
            for slot in 0..3 {
                assert!((targets[token * 3 + slot] - powers[slot] / powers.iter().sum::<f64>()).abs() < 1e-6);
            }
        }
        assert!(gate_targets(&[vec![-1.0], vec![f32::NAN]], 1.0, 0.0).is_err());
        assert!(gate_targets(&[vec![-1.0], vec![]], 1.0, 0.0).is_err());
        assert!(gate_targets(&[vec![-1.0]], 0.0, 0.0).is_err());
    }

    #[test]
    fn a_composition_is_read_back_only_with_the_adapters_it_was_saved_with() {
        let folder = tempfile::tempdir().unwrap();
        let saved = Composition::new(&tiny(), members(), router()).unwrap();
        saved.save(folder.path()).unwrap();
        let load = |members| Composition::load(folder.path(), &tiny(), members, Device::Cpu);
        let read = load(members()).unwrap();
        for ((name, saved), (_, read)) in saved.router().tensors().into_iter().zip(read.router().tensors()) {
            assert_eq!(saved, read, "{name}");
        }
        let mut swapped = members();
        swapped.swap(0, 1);
        let mut renamed = members();
        renamed[0].name = "other".into();
        let changed = members();
        let _ = changed[1].lora.tensors()[0].1.get(0).g_add_scalar_(1e-3);
        let mut fewer = members();
        fewer.pop();
        for wrong in [swapped, renamed, changed, fewer] {
            assert!(matches!(load(wrong), Err(PolicyError::Config { key, .. }) if key == "adapters"));
        }
    }

    #[test]
    fn a_router_of_another_size_than_its_adapters_is_refused() {
        assert!(Composition::new(&tiny(), members(), Router::new(&tiny(), 3, Device::Cpu)).is_err());
    }
}
