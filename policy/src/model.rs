//! The decoder: weights and arithmetic of the qwen3 family.
//!
//! [`Model::forward`] computes whole packs with gradients; a sampler drives the same arithmetic step by step through
//! [`Model::embed`], [`Model::rope`], [`Model::qkv`], [`Model::finish`] and [`Model::final_norm`], and brings only an
//! attention of its own, over its cache. Tensors are flat over tokens: `[N, ...]` for any N tokens of any sequences.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::active::{Active, LayerActive};
use crate::config::ModelConfig;
use crate::error::PolicyError;
use crate::gates::Capture;
use crate::lora::Module;
use crate::packed::{PackLayout, Packed};
use crate::tensorfile::{TensorFile, read_tensors, write_atomically, write_tensors};

/// Elements of logits that are alive at once where log-probs are computed in chunks of tokens.
const LOGITS_PER_CHUNK: i64 = 1 << 20;

/// The weights of one decoder block.
#[derive(Debug)]
struct Block {
    input_norm: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    post_norm: Tensor,
    /// By [`Module`]: `[out, in]`.
    linears: [Tensor; 7],
}

/// Cosines and sines of token positions, each `[N, 1, head_dim]`.
#[derive(Debug)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

/// A decoder with its weights on one device.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    device: Device,
    kind: Kind,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    /// None where the embedding is the head.
    head: Option<Tensor>,
    inverse_frequencies: Tensor,
}

impl Model {
    /// Reads `config.json` and `model.safetensors`, or the shards that `model.safetensors.index.json` lists, and
    /// computes in f32. A missing, unknown or misshapen tensor is an error that names it.
    pub fn load(folder: &Path, device: Device) -> Result<Self, PolicyError> {
        let config = ModelConfig::load(folder)?;
        let index = folder.join("model.safetensors.index.json");
        let mut file = if index.is_file() {
            read_shards(folder, &index, device)?
        } else {
            read_tensors(&folder.join("model.safetensors"), device)?
        };
        let place = folder.display().to_string();
        if config.tie_word_embeddings && file.tensors.contains_key("lm_head.weight") {
            // Some checkpoints write the tied head out; it must then be the embedding.
            let head = file.take("lm_head.weight", &[config.vocab_size, config.hidden_size], Kind::Float, &place)?;
            let same =
                file.tensors.get("model.embed_tokens.weight").is_some_and(|table| table.to_kind(Kind::Float) == head);
            if !same {
                return Err(PolicyError::UnknownTensor { name: "lm_head.weight".to_owned(), place });
            }
        }
        let model =
            Self::build(config, device, Kind::Float, |name, shape| file.take(name, shape, Kind::Float, &place))?;
        file.finish(&place)?;
        Ok(model)
    }

    /// A model with random weights: normal, of variance 1 / in for linear maps (divided by twice the depth where they
    /// write to the residual stream), of deviation 0.02 for the tables; norms are ones. The same seed gives the same model.
    pub fn random(config: ModelConfig, seed: u64, device: Device) -> Result<Self, PolicyError> {
        config.check("model")?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let depth = config.num_hidden_layers as f64;
        Self::build(config, device, Kind::Float, |name, shape| {
            if shape.len() == 1 {
                return Ok(Tensor::ones(shape, (Kind::Float, device)));
            }
            let deviation = match name {
                "model.embed_tokens.weight" | "lm_head.weight" => 0.02,
                _ if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => {
                    (2.0 * depth * shape[1] as f64).sqrt().recip()
                }
                _ => (shape[1] as f64).sqrt().recip(),
            };
            let draw = |_| {
                let value: f64 = StandardNormal.sample(&mut rng);
                (value * deviation) as f32
            };
            let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(draw).collect();
            Ok(Tensor::from_slice(&values).view(shape).to_device(device))
        })
    }

    fn build(
        config: ModelConfig,
        device: Device,
        kind: Kind,
        mut tensor: impl FnMut(&str, &[i64]) -> Result<Tensor, PolicyError>,
    ) -> Result<Self, PolicyError> {
        let table = [config.vocab_size, config.hidden_size];
        let embedding = tensor("model.embed_tokens.weight", &table)?;
        let mut blocks = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let mut norm = |name: &str, size: i64| tensor(&format!("model.layers.{layer}.{name}.weight"), &[size]);
            let input_norm = norm("input_layernorm", config.hidden_size)?;
            let q_norm = norm("self_attn.q_norm", config.head_dim)?;
            let k_norm = norm("self_attn.k_norm", config.head_dim)?;
            let post_norm = norm("post_attention_layernorm", config.hidden_size)?;
            let mut linears = Vec::new();
            for module in Module::ALL {
                let (rows, columns) = module.shape(&config);
                linears.push(tensor(&format!("model.layers.{layer}.{}.weight", module.path()), &[rows, columns])?);
            }
            let linears =
                linears.try_into().map_err(|_| PolicyError::Usage("a block has seven linear maps".to_owned()))?;
            blocks.push(Block { input_norm, q_norm, k_norm, post_norm, linears });
        }
        let norm = tensor("model.norm.weight", &[config.hidden_size])?;
        let head = if config.tie_word_embeddings { None } else { Some(tensor("lm_head.weight", &table)?) };
        // In f32 throughout, as transformers computes them, so that long positions turn by the same angles.
        let inverse: Vec<f32> = (0..config.head_dim / 2)
            .map(|pair| 1.0 / (config.rope_theta as f32).powf((2 * pair) as f32 / config.head_dim as f32))
            .collect();
        let inverse_frequencies = Tensor::from_slice(&inverse).to_device(device);
        Ok(Self { config, device, kind, embedding, blocks, norm, head, inverse_frequencies })
    }

    /// A copy that computes in another kind of number; f64 serves as a reference.
    pub fn to_kind(&self, kind: Kind) -> Result<Self, PolicyError> {
        let tensors: BTreeMap<String, Tensor> = self.parameters().into_iter().collect();
        Self::build(self.config.clone(), self.device, kind, |name, _| {
            Ok(tensors[name].detach().to_dtype(kind, false, true))
        })
    }

    /// Writes `config.json` and `model.safetensors`, each atomically. Other programs read them as a qwen3 checkpoint.
    pub fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        write_tensors(&folder.join("model.safetensors"), &self.parameters(), &BTreeMap::new())?;
        let path = folder.join("config.json");
        let text = serde_json::to_string_pretty(&self.config.to_json()).map_err(PolicyError::json(&path))?;
        write_atomically(&path, text.as_bytes())
    }

    /// All parameters with their Hugging Face names, in a fixed order. They share storage with the model.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut named = vec![("model.embed_tokens.weight".to_owned(), self.embedding.shallow_clone())];
        for (layer, block) in self.blocks.iter().enumerate() {
            let norms = [
                ("input_layernorm", &block.input_norm),
                ("self_attn.q_norm", &block.q_norm),
                ("self_attn.k_norm", &block.k_norm),
                ("post_attention_layernorm", &block.post_norm),
            ];
            for (name, tensor) in norms {
                named.push((format!("model.layers.{layer}.{name}.weight"), tensor.shallow_clone()));
            }
            for module in Module::ALL {
                let tensor = &block.linears[module as usize];
                named.push((format!("model.layers.{layer}.{}.weight", module.path()), tensor.shallow_clone()));
            }
        }
        named.push(("model.norm.weight".to_owned(), self.norm.shallow_clone()));
        named.extend(self.head.as_ref().map(|head| ("lm_head.weight".to_owned(), head.shallow_clone())));
        named
    }

    /// The model's sizes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The kind of number of weights and activations.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether gradients are to be computed for all parameters: only pretraining asks for that.
    pub fn set_trainable(&self, trainable: bool) {
        for (_, tensor) in self.parameters() {
            let _ = tensor.set_requires_grad(trainable);
        }
    }

    /// Hidden states after the final norm, `[packed.tokens(), hidden]`, in the flat order of [`Packed`].
    pub fn forward(
        &self,
        packed: &Packed,
        active: &Active,
        mut capture: Option<&mut Capture>,
    ) -> Result<Tensor, PolicyError> {
        packed.check(&self.config)?;
        let group = self.config.num_attention_heads / self.config.num_key_value_heads;
        let layout = PackLayout::new(packed, group, self.kind, self.device);
        let rope = self.rope(&layout.positions);
        let mut x = self.embed(&layout.ids);
        for layer in 0..self.blocks.len() {
            let acting = active.layer(layer, &x, capture.as_deref_mut());
            let (q, k, v) = self.qkv(layer, &x, &rope, &acting);
            x = self.finish(layer, &x, &layout.attend(&q, &k, &v), &acting);
        }
        Ok(self.final_norm(&x))
    }

    /// Number of decoder blocks.
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }

    /// Embeddings `[N, hidden]` of ids `[N]` (i64).
    pub fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding, ids, -1, false, false)
    }

    /// The rotation of positions `[N]` (integers).
    pub fn rope(&self, positions: &Tensor) -> Rope {
        let angles = positions.to_kind(Kind::Float).unsqueeze(1) * &self.inverse_frequencies;
        let angles = Tensor::cat(&[&angles, &angles], 1).unsqueeze(1);
        Rope { cos: angles.cos().to_kind(self.kind), sin: angles.sin().to_kind(self.kind) }
    }

    /// The first half of block `layer` for its input `x: [N, hidden]`: queries `[N, heads, head_dim]` and keys
    /// `[N, kv heads, head_dim]`, normalised and turned, and values `[N, kv heads, head_dim]`.
    pub fn qkv(&self, layer: usize, x: &Tensor, rope: &Rope, acting: &LayerActive) -> (Tensor, Tensor, Tensor) {
        let (block, width) = (&self.blocks[layer], self.config.head_dim);
        let x = self.rms_norm(x, &block.input_norm);
        let heads = |module: Module, count: i64| self.linear(layer, module, &x, acting).view([-1, count, width]);
        let q = self.rms_norm(&heads(Module::Q, self.config.num_attention_heads), &block.q_norm);
        let k = self.rms_norm(&heads(Module::K, self.config.num_key_value_heads), &block.k_norm);
        (turn(&q, rope), turn(&k, rope), heads(Module::V, self.config.num_key_value_heads))
    }

    /// The second half of block `layer`: from its input `x: [N, hidden]` and attention's result
    /// `[N, heads * head_dim]` to its output `[N, hidden]`.
    pub fn finish(&self, layer: usize, x: &Tensor, attended: &Tensor, acting: &LayerActive) -> Tensor {
        let x = x + self.linear(layer, Module::O, attended, acting);
        let inner = self.rms_norm(&x, &self.blocks[layer].post_norm);
        let gate = self.linear(layer, Module::Gate, &inner, acting).silu();
        let inner = gate * self.linear(layer, Module::Up, &inner, acting);
        x + self.linear(layer, Module::Down, &inner, acting)
    }

    /// The norm after the last block, `[N, hidden]` to `[N, hidden]`.
    pub fn final_norm(&self, x: &Tensor) -> Tensor {
        self.rms_norm(x, &self.norm)
    }

    /// `module` of block `layer` on `x: [N, in]`, with whatever acts on top of the base: `[N, out]`.
    pub fn linear(&self, layer: usize, module: Module, x: &Tensor, acting: &LayerActive) -> Tensor {
        acting.add(module, x, x.matmul(&self.blocks[layer].linears[module as usize].tr()))
    }

    /// Logits `[N, vocabulary]` of final hidden states `[N, hidden]`.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        hidden.matmul(&self.head.as_ref().unwrap_or(&self.embedding).tr())
    }

    /// Log-probs `[N]` of targets `[N]` (i64) at final hidden states `[N, hidden]`: `log_softmax(logits / temperature)`.
    /// Computed in chunks of tokens. With gradients enabled, the chunks live until the backward pass: a caller that
    /// trains on many tokens runs forward and backward chunk by chunk ([`Model::head_chunk`]).
    pub fn logprobs(&self, hidden: &Tensor, targets: &Tensor, temperature: f64) -> Tensor {
        let (total, step) = (hidden.size()[0], self.head_chunk());
        let chunks: Vec<Tensor> = (0..total)
            .step_by(step as usize)
            .map(|start| {
                let length = step.min(total - start);
                self.chunk_logprobs(&hidden.narrow(0, start, length), &targets.narrow(0, start, length), temperature)
            })
            .collect();
        if chunks.is_empty() { Tensor::zeros([0], (self.kind, self.device)) } else { Tensor::cat(&chunks, 0) }
    }

    /// Tokens per chunk: few enough for a small vocabulary's logits to stay in the cache, enough for the head's weights
    /// not to be read in vain where the vocabulary is large.
    pub fn head_chunk(&self) -> i64 {
        (LOGITS_PER_CHUNK / self.config.vocab_size).max(256)
    }

    fn chunk_logprobs(&self, hidden: &Tensor, targets: &Tensor, temperature: f64) -> Tensor {
        let logits = self.logits(hidden);
        let logits = if temperature == 1.0 { logits } else { logits / temperature };
        let kind = if self.kind == Kind::Double { Kind::Double } else { Kind::Float };
        logits.log_softmax(-1, kind).gather(1, &targets.unsqueeze(1), false).squeeze_dim(1)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        x.rms_norm(weight.size(), Some(weight), self.config.rms_norm_eps)
    }
}

/// Rotary positions: `x cos + rotate_half(x) sin` for `x: [N, heads, head_dim]`.
fn turn(x: &Tensor, rope: &Rope) -> Tensor {
    let halves = x.chunk(2, -1);
    x * &rope.cos + Tensor::cat(&[&halves[1].neg(), &halves[0]], -1) * &rope.sin
}

fn read_shards(folder: &Path, index: &Path, device: Device) -> Result<TensorFile, PolicyError> {
    let text = fs::read_to_string(index).map_err(PolicyError::read(index))?;
    let value: Value = serde_json::from_str(&text).map_err(PolicyError::json(index))?;
    let bad = |reason: &str| PolicyError::TensorFile { path: index.to_path_buf(), reason: reason.to_owned() };
    let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(|| bad("it has no weight_map"))?;
    let mut shards: Vec<&str> =
        map.values().map(|shard| shard.as_str().ok_or_else(|| bad("a shard is no name"))).collect::<Result<_, _>>()?;
    shards.sort_unstable();
    shards.dedup();
    let mut all = TensorFile { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
    for shard in shards {
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(bad(&format!("shard `{shard}` is not a file name of the same folder")));
        }
        all.tensors.extend(read_tensors(&folder.join(shard), device)?.tensors);
    }
    Ok(all)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A model small enough for finite differences, of every shape distinct.
    pub(crate) fn tiny() -> ModelConfig {
        ModelConfig {
            vocab_size: 23,
            hidden_size: 12,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 6,
            intermediate_size: 10,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
            max_position_embeddings: 64,
        }
    }

    pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::<f64>::try_from(tensor.detach().to_kind(Kind::Double).reshape([-1])).unwrap()
    }

    /// Logits of one sequence in plain f64 arithmetic, written from the published definition of qwen3.
    fn reference_logits(model: &Model, ids: &[i32]) -> Vec<Vec<f64>> {
        let config = model.config();
        let weights: BTreeMap<String, (Vec<i64>, Vec<f64>)> =
            model.parameters().into_iter().map(|(name, tensor)| (name, (tensor.size(), values(&tensor)))).collect();
        let multiply = |name: &str, x: &[f64]| -> Vec<f64> {
            let (shape, weight) = &weights[name];
            (0..shape[0] as usize)
                .map(|row| x.iter().enumerate().map(|(at, x)| weight[row * x_len(shape) + at] * x).sum())
                .collect()
        };
        fn x_len(shape: &[i64]) -> usize {
            shape[1] as usize
        }
        let norm = |name: &str, x: &[f64]| -> Vec<f64> {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            x.iter().zip(&weights[name].1).map(|(x, weight)| x / (mean + config.rms_norm_eps).sqrt() * weight).collect()
        };
        let width = config.head_dim as usize;
        let turn = |x: &[f64], position: usize| -> Vec<f64> {
            let half = width / 2;
            (0..width)
                .map(|at| {
                    let angle = position as f64 / config.rope_theta.powf(2.0 * (at % half) as f64 / width as f64);
                    let turned = if at < half { -x[at + half] } else { x[at - half] };
                    x[at] * angle.cos() + turned * angle.sin()
                })
                .collect()
        };
        let table = &weights["model.embed_tokens.weight"].1;
        let hidden = config.hidden_size as usize;
        let mut states: Vec<Vec<f64>> =
            ids.iter().map(|&id| table[id as usize * hidden..(id as usize + 1) * hidden].to_vec()).collect();
        for layer in 0..config.num_hidden_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let heads = |part: &str, normed: Option<&str>, states: &[Vec<f64>]| -> Vec<Vec<Vec<f64>>> {
                let each = states.iter().enumerate().map(|(position, state)| {
                    let out = multiply(&name(part), &norm(&name("input_layernorm"), state));
                    out.chunks(width)
                        .map(|head| match normed {
                            Some(normed) => turn(&norm(&name(normed), head), position),
                            None => head.to_vec(),
                        })
                        .collect()
                });
                each.collect()
            };
            let q = heads("self_attn.q_proj", Some("self_attn.q_norm"), &states);
            let k = heads("self_attn.k_proj", Some("self_attn.k_norm"), &states);
            let v = heads("self_attn.v_proj", None, &states);
            let group = (config.num_attention_heads / config.num_key_value_heads) as usize;
            for (at, state) in states.iter_mut().enumerate() {
                let mut attended = Vec::new();
                for (head, query) in q[at].iter().enumerate() {
                    let scores: Vec<f64> = (0..=at)
                        .map(|other| {
                            let dot: f64 = query.iter().zip(&k[other][head / group]).map(|(a, b)| a * b).sum();
                            (dot / (width as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = scores.iter().sum();
                    attended.extend((0..width).map(|d| {
                        scores
                            .iter()
                            .enumerate()
                            .map(|(other, score)| score / total * v[other][head / group][d])
                            .sum::<f64>()
                    }));
                }
                for (state, out) in state.iter_mut().zip(multiply(&name("self_attn.o_proj"), &attended)) {
                    *state += out;
                }
                let inner = norm(&name("post_attention_layernorm"), state);
                let gate = multiply(&name("mlp.gate_proj"), &inner);
                let up = multiply(&name("mlp.up_proj"), &inner);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                for (state, out) in state.iter_mut().zip(multiply(&name("mlp.down_proj"), &inner)) {
                    *state += out;
                }
            }
        }
        states.iter().map(|state| multiply("model.embed_tokens.weight", &norm("model.norm.weight", state))).collect()
    }

    /// Norm weights away from one, so that a forgotten one shows.
    pub(crate) fn tiny_model(seed: u64) -> Model {
        tch::set_num_threads(1);
        let model = Model::random(tiny(), seed, Device::Cpu).unwrap();
        for (index, (_, tensor)) in model.parameters().into_iter().enumerate() {
            if tensor.dim() == 1 {
                let wave = Tensor::arange(tensor.size()[0], (Kind::Float, Device::Cpu)) + index as f64;
                tensor.detach().copy_(&(wave.sin() * 0.3 + 1.0));
            }
        }
        let _ = model.embedding.detach().g_mul_scalar_(20.0);
        model
    }

    fn close(found: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= tolerance, "at {at}: {found} is not {expected}");
        }
    }

    #[test]
    fn every_row_of_a_pack_gets_the_logits_that_it_would_get_alone() {
        let model = tiny_model(3);
        let rows: [&[i32]; 3] = [&[1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 9], &[1, 2, 3, 4, 11, 22]];
        let packed = Packed::from_rows(&rows);
        assert_eq!(packed.prefix.len(), 3);
        let logits = model.logits(&model.forward(&packed, &Active::Base, None).unwrap());
        for (branch, row) in rows.iter().enumerate() {
            let expected = reference_logits(&model, row);
            for position in 1..row.len() {
                let at = packed.predictor(branch, position).unwrap();
                close(&values(&logits.get(at)), &expected[position - 1], 2e-5);
            }
        }
        let alone = Packed { prefix: rows[0].to_vec(), branches: vec![] };
        let bare = Packed { prefix: vec![], branches: vec![rows[0].to_vec()] };
        for packed in [alone, bare] {
            let logits = model.logits(&model.forward(&packed, &Active::Base, None).unwrap());
            close(&values(&logits), &reference_logits(&model, rows[0]).concat(), 2e-5);
        }
    }

    #[test]
    fn a_saved_model_loads_with_the_same_bits_and_foreign_tensors_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = tiny();
        config.tie_word_embeddings = false;
        let model = Model::random(config, 5, Device::Cpu).unwrap();
        model.save(folder.path()).unwrap();
        let loaded = Model::load(folder.path(), Device::Cpu).unwrap();
        assert_eq!(loaded.config(), model.config());
        for ((name, saved), (_, read)) in model.parameters().into_iter().zip(loaded.parameters()) {
            assert_eq!(saved, read, "{name}");
        }
        let path = folder.path().join("model.safetensors");
        let all = model.parameters();
        write_tensors(&path, &all[..all.len() - 1], &BTreeMap::new()).unwrap();
        let missing = Model::load(folder.path(), Device::Cpu);
        assert!(matches!(missing, Err(PolicyError::MissingTensor { name, .. }) if name == "lm_head.weight"));
        let mut more = model.parameters();
        more.push(("model.layers.7.extra.weight".to_owned(), Tensor::from_slice(&[1f32])));
        write_tensors(&path, &more, &BTreeMap::new()).unwrap();
        let unknown = Model::load(folder.path(), Device::Cpu);
        assert!(
            matches!(unknown, Err(PolicyError::UnknownTensor { name, .. }) if name == "model.layers.7.extra.weight")
        );
    }

    #[test]
    fn shards_listed_by_an_index_are_one_model() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::random(tiny(), 5, Device::Cpu).unwrap();
        model.save(folder.path()).unwrap();
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let all = model.parameters();
        let mut map = serde_json::Map::new();
        for (shard, part) in all.chunks(9).enumerate() {
            let name = format!("model-{shard}.safetensors");
            write_tensors(&folder.path().join(&name), part, &BTreeMap::new()).unwrap();
            map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name.clone()))));
        }
        let index = serde_json::json!({"metadata": {}, "weight_map": map});
        fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let loaded = Model::load(folder.path(), Device::Cpu).unwrap();
        for ((name, saved), (_, read)) in all.into_iter().zip(loaded.parameters()) {
            assert_eq!(saved, read, "{name}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_weights_and_another_seed_others() {
        let first = |seed| values(&Model::random(tiny(), seed, Device::Cpu).unwrap().embedding);
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    #[test]
    fn input_that_does_not_fit_the_model_is_refused_with_its_place() {
        let model = tiny_model(1);
        let run = |prefix: Vec<i32>, branches| model.forward(&Packed { prefix, branches }, &Active::Base, None);
        assert!(
            matches!(run(vec![1], vec![vec![2, 23]]), Err(PolicyError::TokenId { id: 23, place, .. }) if place == "index 1 of branch 0")
        );
        assert!(matches!(run(vec![-1], vec![]), Err(PolicyError::TokenId { id: -1, .. })));
        assert!(matches!(run(vec![1; 60], vec![vec![1; 5]]), Err(PolicyError::TooLong { length: 65, limit: 64 })));
        assert!(matches!(run(vec![], vec![]), Err(PolicyError::Usage(_))));
        assert!(matches!(run(vec![1], vec![vec![]]), Err(PolicyError::Usage(_))));
    }

    #[test]
    fn log_probs_are_those_of_the_tempered_softmax() {
        let model = tiny_model(2);
        let hidden = model.forward(&Packed { prefix: vec![1, 2, 3], branches: vec![] }, &Active::Base, None).unwrap();
        let found = values(&model.logprobs(&hidden, &Tensor::from_slice(&[5i64, 0, 22]), 0.5));
        let logits = values(&model.logits(&hidden));
        for (at, target) in [5usize, 0, 22].into_iter().enumerate() {
            let row: Vec<f64> = logits[at * 23..(at + 1) * 23].iter().map(|z| z / 0.5).collect();
            let total: f64 = row.iter().map(|z| z.exp()).sum();
            assert!((found[at] - (row[target] - total.ln())).abs() < 1e-5);
        }
    }
}
