//! Low-rank adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapted linear computes `W x + (alpha / r) B A x`. A is drawn as PEFT draws it, B starts at zero, so a new
//! adapter changes nothing. Options that would change this formula (rsLoRA, DoRA, biases, patterns of ranks, extra
//! modules) are refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::PolicyError;
use crate::tensorfile::{read_tensors, tensor_bytes, write_atomically};

/// A linear map of a decoder block that an adapter can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Attention's output.
    O,
    /// The feed-forward part's gate.
    Gate,
    /// The feed-forward part's way up.
    Up,
    /// The feed-forward part's way down.
    Down,
}

impl Module {
    /// All modules, in the order of computation.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// The name that PEFT's `target_modules` uses, such as `q_proj`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q => "q_proj",
            Self::K => "k_proj",
            Self::V => "v_proj",
            Self::O => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// Where the module sits in a block, such as `self_attn.q_proj`.
    pub fn path(self) -> String {
        let part = if self <= Self::O { "self_attn" } else { "mlp" };
        format!("{part}.{}", self.name())
    }

    /// Sizes `(out, in)` of the module's weight.
    pub fn shape(self, config: &ModelConfig) -> (i64, i64) {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let heads = config.num_attention_heads * config.head_dim;
        let kv_heads = config.num_key_value_heads * config.head_dim;
        match self {
            Self::Q => (heads, hidden),
            Self::K | Self::V => (kv_heads, hidden),
            Self::O => (hidden, heads),
            Self::Gate | Self::Up => (inner, hidden),
            Self::Down => (hidden, inner),
        }
    }
}

/// What an adapter looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank r of every pair.
    pub rank: i64,
    /// The update is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Adapted modules, without repetition.
    pub targets: Vec<Module>,
    /// Adapted blocks by index, PEFT's `layers_to_transform`; none: all.
    pub layers: Option<Vec<usize>>,
}

impl LoraConfig {
    /// Rank and alpha as given, on all seven linear maps: the published setting is rank 16, alpha 16.
    pub fn all_linears(rank: i64, alpha: f64) -> Self {
        Self { rank, alpha, targets: Module::ALL.to_vec(), layers: None }
    }

    /// The same on the blocks from `first` to the last of a model with `layers` of them.
    pub fn from_layer(self, first: usize, layers: usize) -> Self {
        Self { layers: (first > 0).then(|| (first..layers).collect()), ..self }
    }

    /// True where block `layer` is adapted.
    pub fn adapts(&self, layer: usize) -> bool {
        self.layers.as_ref().is_none_or(|layers| layers.contains(&layer))
    }

    /// The factor on every product B A: alpha / rank.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    fn check(&self, place: &str) -> Result<(), PolicyError> {
        let fault = |key: &str, reason: String| {
            Err(PolicyError::Config { place: place.to_owned(), key: key.to_owned(), reason })
        };
        if !(1..=1 << 16).contains(&self.rank) {
            return fault("r", format!("is {}; it must be at least 1", self.rank));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return fault("lora_alpha", format!("is {}; it must be a positive number", self.alpha));
        }
        if self.targets.is_empty() {
            return fault("target_modules", "is empty; an adapter without modules does nothing".to_owned());
        }
        if self.layers.as_ref().is_some_and(Vec::is_empty) {
            return fault("layers_to_transform", "is empty; an adapter without layers does nothing".to_owned());
        }
        Ok(())
    }

    /// The content of `adapter_config.json`, with every option that PEFT would otherwise guess.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": null,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": self.targets.iter().map(|module| module.name()).collect::<Vec<_>>(),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "use_rslora": false,
            "use_dora": false,
            "modules_to_save": null,
            "layers_to_transform": self.layers,
            "layers_pattern": null,
            "rank_pattern": {},
            "alpha_pattern": {},
            "init_lora_weights": true,
            "inference_mode": true,
        })
    }

    pub(crate) fn from_json(value: &Value, place: &str) -> Result<Self, PolicyError> {
        let fault = |key: &str, reason: &str| PolicyError::Config {
            place: place.to_owned(),
            key: key.to_owned(),
            reason: reason.to_owned(),
        };
        let map = value.as_object().ok_or_else(|| fault("adapter_config", "must be a JSON object"))?;
        if map.get("peft_type").and_then(Value::as_str) != Some("LORA") {
            return Err(fault("peft_type", "must be LORA; other methods are not implemented"));
        }
        for (key, value) in map {
            let described = matches!(
                key.as_str(),
                "peft_type"
                    | "task_type"
                    | "base_model_name_or_path"
                    | "r"
                    | "lora_alpha"
                    | "target_modules"
                    | "revision"
                    | "inference_mode"
                    | "init_lora_weights"
                    | "auto_mapping"
                    | "peft_version"
                    | "lora_dropout"
                    | "layers_to_transform"
            );
            let neutral = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Object(map) => map.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::String(text) => key == "bias" && text == "none",
                _ => matches!(key.as_str(), "megatron_core" | "qalora_group_size"),
            };
            if !described && !neutral {
                return Err(fault(key, &format!("is {value}, an option that is not implemented")));
            }
        }
        let targets =
            match map.get("target_modules") {
                Some(Value::String(all)) if all == "all-linear" => Module::ALL.to_vec(),
                Some(Value::Array(names)) => {
                    let mut targets = Vec::new();
                    for name in names {
                        let module = Module::ALL.into_iter().find(|module| Some(module.name()) == name.as_str());
                        targets.push(module.ok_or_else(|| {
                            fault("target_modules", &format!("names {name}, no linear map of a block"))
                        })?);
                    }
                    targets.sort_unstable();
                    targets.dedup();
                    targets
                }
                _ => return Err(fault("target_modules", "must be a list of module names or \"all-linear\"")),
            };
        let rank = map.get("r").and_then(Value::as_i64).ok_or_else(|| fault("r", "must be an integer"))?;
        let alpha =
            map.get("lora_alpha").and_then(Value::as_f64).ok_or_else(|| fault("lora_alpha", "must be a number"))?;
        let layers = match map.get("layers_to_transform") {
            None | Some(Value::Null) => None,
            Some(Value::Number(only)) => Some(json!([only])),
            Some(list) => Some(list.clone()),
        };
        let layers = layers
            .map(serde_json::from_value::<BTreeSet<usize>>)
            .transpose()
            .map_err(|_| fault("layers_to_transform", "must be null, a block's index or a list of them"))?;
        let config = Self { rank, alpha, targets, layers: layers.map(|set| set.into_iter().collect()) };
        config.check(place)?;
        Ok(config)
    }
}

/// The pair of one adapted linear map.
#[derive(Debug)]
pub struct LoraPair {
    /// `[rank, in]`.
    pub a: Tensor,
    /// `[out, rank]`.
    pub b: Tensor,
}

/// The pairs of one block, by module.
#[derive(Debug, Default)]
pub struct LoraLayer {
    pairs: [Option<LoraPair>; 7],
    scale: f64,
}

impl LoraLayer {
    /// The pair of `module`, if the adapter targets it.
    pub fn pair(&self, module: Module) -> Option<&LoraPair> {
        self.pairs[module as usize].as_ref()
    }

    /// Adds the adapter's share for inputs `x: [N, in]` to the base's outputs `y: [N, out]`.
    pub fn add(&self, module: Module, x: &Tensor, y: Tensor) -> Tensor {
        match self.pair(module) {
            None => y,
            Some(pair) => y.addmm(&x.matmul(&pair.a.tr()), &(&pair.b * self.scale).tr()),
        }
    }
}

/// An adapter: for each block, a pair of matrices per targeted module.
#[derive(Debug)]
pub struct Lora {
    config: LoraConfig,
    layers: Vec<LoraLayer>,
}

impl Lora {
    /// A new adapter for a model: A uniform in +-1/sqrt(in), as PEFT's Kaiming initialisation gives, B zero. The same
    /// seed gives the same adapter.
    pub fn new(model: &ModelConfig, config: LoraConfig, seed: u64, device: Device) -> Result<Self, PolicyError> {
        config.check("adapter")?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self::from_tensors(model, config, |name, shape| {
            let bound = 1.0 / (shape[1] as f32).sqrt();
            let is_a = name.ends_with("lora_A.weight");
            let draw = |_| if is_a { rng.random_range(-bound..bound) } else { 0.0 };
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(draw).collect();
            Ok(Tensor::from_slice(&values).view(shape).to_device(device))
        })
    }

    /// An adapter of tensors that `tensor` gives for a PEFT key and a shape.
    pub(crate) fn from_tensors(
        model: &ModelConfig,
        mut config: LoraConfig,
        mut tensor: impl FnMut(&str, &[i64]) -> Result<Tensor, PolicyError>,
    ) -> Result<Self, PolicyError> {
        config.targets.sort_unstable();
        config.targets.dedup();
        let blocks = model.num_hidden_layers as usize;
        if let Some(beyond) = config.layers.iter().flatten().find(|&&layer| layer >= blocks) {
            return Err(PolicyError::Config {
                place: "adapter".to_owned(),
                key: "layers_to_transform".to_owned(),
                reason: format!("names block {beyond}; the model has {blocks}, counted from 0"),
            });
        }
        let mut layers = Vec::new();
        for layer in 0..blocks {
            let mut pairs: [Option<LoraPair>; 7] = Default::default();
            let adapted: &[Module] = if config.adapts(layer) { &config.targets } else { &[] };
            for &module in adapted {
                let (rows, columns) = module.shape(model);
                let a = tensor(&key(layer, module, true), &[config.rank, columns])?;
                let b = tensor(&key(layer, module, false), &[rows, config.rank])?;
                pairs[module as usize] = Some(LoraPair { a, b });
            }
            layers.push(LoraLayer { pairs, scale: config.scale() });
        }
        Ok(Self { config, layers })
    }

    /// Reads an adapter folder for a model. Every key that the configuration implies must be there with its shape,
    /// and no other.
    pub fn load(folder: &Path, model: &ModelConfig, device: Device) -> Result<Self, PolicyError> {
        let path = folder.join("adapter_config.json");
        let text = fs::read_to_string(&path).map_err(PolicyError::read(&path))?;
        let value: Value = serde_json::from_str(&text).map_err(PolicyError::json(&path))?;
        let config = LoraConfig::from_json(&value, &path.display().to_string())?;
        let path = folder.join("adapter_model.safetensors");
        let place = path.display().to_string();
        let mut file = read_tensors(&path, device)?;
        let lora = Self::from_tensors(model, config, |name, shape| file.take(name, shape, Kind::Float, &place))?;
        file.finish(&place)?;
        Ok(lora)
    }

    /// Writes the adapter to `folder`, each file atomically, the configuration last: a folder with a configuration
    /// is a whole adapter. The same adapter gives the same bytes.
    pub fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join("adapter_model.safetensors");
        write_atomically(&path, &tensor_bytes(&self.tensors(), &BTreeMap::new(), &path)?)?;
        let path = folder.join("adapter_config.json");
        let text = serde_json::to_string_pretty(&self.config.to_json()).map_err(PolicyError::json(&path))?;
        write_atomically(&path, text.as_bytes())
    }

    /// SHA-256, in hexadecimal, over the configuration and the tensors: what a composition binds an adapter by.
    pub fn digest(&self) -> Result<String, PolicyError> {
        let mut hash = Sha256::new();
        hash.update(self.config.to_json().to_string());
        hash.update(tensor_bytes(&self.tensors(), &BTreeMap::new(), Path::new("adapter"))?);
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// What the adapter looks like.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The pairs of block `layer`.
    pub fn layer(&self, layer: usize) -> &LoraLayer {
        &self.layers[layer]
    }

    /// All tensors with their PEFT keys, in a fixed order. They share storage with the adapter.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        let mut tensors = Vec::new();
        for (layer, pairs) in self.layers.iter().enumerate() {
            for module in Module::ALL {
                if let Some(pair) = pairs.pair(module) {
                    tensors.push((key(layer, module, true), pair.a.shallow_clone()));
                    tensors.push((key(layer, module, false), pair.b.shallow_clone()));
                }
            }
        }
        tensors
    }

    /// Whether gradients are to be computed for the adapter's tensors.
    pub fn set_trainable(&self, trainable: bool) {
        for (_, tensor) in self.tensors() {
            let _ = tensor.set_requires_grad(trainable);
        }
    }

    /// A copy with tensors of its own, not trainable: what a learner publishes.
    pub fn snapshot(&self) -> Self {
        self.copied(|tensor| tensor.detach().copy())
    }

    /// A copy that computes in another kind of number, for a model of that kind.
    pub fn to_kind(&self, kind: Kind) -> Self {
        self.copied(|tensor| tensor.detach().to_dtype(kind, false, true))
    }

    fn copied(&self, copy: impl Fn(&Tensor) -> Tensor) -> Self {
        let layers = self.layers.iter().map(|layer| LoraLayer {
            scale: layer.scale,
            pairs: Module::ALL
                .map(|module| layer.pair(module).map(|pair| LoraPair { a: copy(&pair.a), b: copy(&pair.b) })),
        });
        Self { config: self.config.clone(), layers: layers.collect() }
    }
}

fn key(layer: usize, module: Module, is_a: bool) -> String {
    let half = if is_a { "lora_A" } else { "lora_B" };
    format!("base_model.model.model.layers.{layer}.{}.{half}.weight", module.path())
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::active::Active;
    use crate::model::tests::{tiny, tiny_model, values};
    use crate::packed::Packed;
    use crate::tensorfile::write_tensors;

    fn lora(targets: Vec<Module>) -> Lora {
        Lora::new(&tiny(), LoraConfig { rank: 2, alpha: 3.0, targets, layers: None }, 1, Device::Cpu).unwrap()
    }

    #[test]
    fn a_new_adapter_changes_nothing_and_a_trained_one_adds_its_scaled_product() {
        let model = tiny_model(1);
        let lora = lora(vec![Module::Q, Module::Down]);
        let packed = Packed { prefix: vec![1, 2, 3], branches: vec![] };
        let run = |active: &Active| values(&model.forward(&packed, active, None).unwrap());
        assert_eq!(run(&Active::Base), run(&Active::Adapter(&lora)));
        let pair = lora.layer(0).pair(Module::Q).unwrap();
        pair.b.shallow_clone().copy_(&(Tensor::arange(48, (Kind::Float, Device::Cpu)) / 50.0).view([24, 2]));
        let x = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([1, 12]);
        let found = lora.layer(0).add(Module::Q, &x, Tensor::zeros([1, 24], (Kind::Float, Device::Cpu)));
        let (a, b) = (values(&pair.a), values(&pair.b));
        for (row, found) in values(&found).into_iter().enumerate() {
            let products = (0..2).map(|r| b[row * 2 + r] * (0..12).map(|at| a[r * 12 + at] * at as f64).sum::<f64>());
            assert!((found - 1.5 * products.sum::<f64>()).abs() < 1e-5);
        }
        assert!(lora.layer(0).pair(Module::K).is_none());
    }

    #[test]
    fn keys_and_options_are_those_of_peft() {
        let folder = tempfile::tempdir().unwrap();
        lora(vec![Module::Q, Module::Down]).save(folder.path()).unwrap();
        let file = read_tensors(&folder.path().join("adapter_model.safetensors"), Device::Cpu).unwrap();
        let shapes: Vec<(&str, Vec<i64>)> =
            file.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.size())).collect();
        let expected = [
            ("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", vec![2, 10]),
            ("base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", vec![12, 2]),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", vec![2, 12]),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", vec![24, 2]),
            ("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", vec![2, 10]),
            ("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", vec![12, 2]),
            ("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", vec![2, 12]),
            ("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", vec![24, 2]),
        ];
        assert_eq!(shapes, expected);
        let text = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let picked = ["peft_type", "r", "lora_alpha", "target_modules", "bias", "lora_dropout", "task_type"]
            .map(|key| config[key].clone());
        let expected = [
            json!("LORA"),
            json!(2),
            json!(3.0),
            json!(["q_proj", "down_proj"]),
            json!("none"),
            json!(0.0),
            json!("CAUSAL_LM"),
        ];
        assert_eq!(picked, expected);
    }

    #[test]
    fn an_adapter_is_read_back_bit_for_bit_and_its_digest_tells_any_change() {
        let folder = tempfile::tempdir().unwrap();
        let saved = lora(Module::ALL.to_vec());
        saved.save(folder.path()).unwrap();
        let read = Lora::load(folder.path(), &tiny(), Device::Cpu).unwrap();
        assert_eq!((read.config(), read.digest().unwrap()), (saved.config(), saved.digest().unwrap()));
        assert_eq!(saved.snapshot().digest().unwrap(), saved.digest().unwrap());
        let louder = LoraConfig { alpha: 6.0, ..saved.config().clone() };
        let mut digests = BTreeSet::from([
            saved.digest().unwrap(),
            Lora::new(&tiny(), louder, 1, Device::Cpu).unwrap().digest().unwrap(),
        ]);
        let _ = read.tensors()[3].1.get(0).g_add_scalar_(1e-4);
        digests.insert(read.digest().unwrap());
        assert_eq!(digests.len(), 3);
    }

    #[test]
    fn blocks_that_are_left_out_have_no_pair_and_no_tensor_and_come_back_so() {
        let folder = tempfile::tempdir().unwrap();
        let config = LoraConfig { targets: vec![Module::Q], ..LoraConfig::all_linears(2, 3.0).from_layer(1, 2) };
        assert_eq!(config.layers, Some(vec![1]));
        let saved = Lora::new(&tiny(), config.clone(), 1, Device::Cpu).unwrap();
        assert!(saved.layer(0).pair(Module::Q).is_none() && saved.layer(1).pair(Module::Q).is_some());
        assert!(saved.tensors().iter().all(|(name, _)| name.contains(".layers.1.")));
        saved.save(folder.path()).unwrap();
        let path = folder.path().join("adapter_config.json");
        let mut written: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(written["layers_to_transform"], json!([1]));
        let load = || Lora::load(folder.path(), &tiny(), Device::Cpu);
        let read = load().unwrap();
        assert_eq!((read.config(), read.digest().unwrap()), (&config, saved.digest().unwrap()));
        // PEFT also writes one block as a number.
        written["layers_to_transform"] = json!(1);
        fs::write(&path, written.to_string()).unwrap();
        assert_eq!(load().unwrap().config(), &config);
        // And without the list the other block's tensors are missing.
        written["layers_to_transform"] = Value::Null;
        fs::write(&path, written.to_string()).unwrap();
        assert!(matches!(load(), Err(PolicyError::MissingTensor { name, .. }) if name.contains(".layers.0.")));
        let beyond = LoraConfig { layers: Some(vec![1, 2]), ..config };
        match Lora::new(&tiny(), beyond, 1, Device::Cpu) {
            Err(PolicyError::Config { key, reason, .. }) => {
                assert!(key == "layers_to_transform" && reason.contains("block 2"), "{key}: {reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(LoraConfig::all_linears(2, 3.0).from_layer(0, 2), LoraConfig::all_linears(2, 3.0));
    }

    #[test]
    fn every_key_is_checked_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let lora = lora(vec![Module::Q]);
        lora.save(folder.path()).unwrap();
        let path = folder.path().join("adapter_model.safetensors");
        let load = |tensors: &[(String, Tensor)]| {
            write_tensors(&path, tensors, &BTreeMap::new()).unwrap();
            Lora::load(folder.path(), &tiny(), Device::Cpu)
        };
        let all = lora.tensors();
        assert!(load(&all).is_ok());
        assert!(matches!(load(&all[1..]), Err(PolicyError::MissingTensor { name, .. }) if name == all[0].0));
        let mut renamed = lora.tensors();
        renamed.push((
            "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight".into(),
            Tensor::from_slice(&[0f32]),
        ));
        assert!(matches!(load(&renamed), Err(PolicyError::UnknownTensor { name, .. }) if name.contains("k_proj")));
        let mut flat = lora.tensors();
        flat[0].1 = flat[0].1.view([-1]);
        assert!(matches!(load(&flat), Err(PolicyError::TensorShape { name, .. }) if name == all[0].0));
    }

    #[test]
    fn options_that_change_the_formula_are_refused_by_name() {
        let plain = LoraConfig::all_linears(16, 16.0).to_json();
        assert_eq!(LoraConfig::from_json(&plain, "x").unwrap(), LoraConfig::all_linears(16, 16.0));
        for (key, value) in [
            ("use_rslora", json!(true)),
            ("use_dora", json!(true)),
            ("bias", json!("all")),
            ("modules_to_save", json!(["lm_head"])),
            ("rank_pattern", json!({"q_proj": 8})),
            ("alpha_pattern", json!({"q_proj": 8})),
            ("layers_to_transform", json!([])),
            ("layers_to_transform", json!("all")),
            ("fan_in_fan_out", json!(true)),
            ("a_new_option", json!(2)),
            ("peft_type", json!("LOHA")),
            ("target_modules", json!(["lm_head"])),
            ("target_modules", json!([])),
            ("r", json!(0)),
            ("lora_alpha", json!(-1)),
        ] {
            let mut config = plain.clone();
            config[key] = value;
            match LoraConfig::from_json(&config, "x") {
                Err(PolicyError::Config { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{key}: {other:?}"),
            }
        }
    }
}
