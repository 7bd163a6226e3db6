//! The shape of a decoder, read from Hugging Face's `config.json`.
//!
//! A key that would change the model's output and is not implemented is an error that names it: a checkpoint is
//! either computed as its authors meant or refused.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::PolicyError;

/// Sizes and constants of a decoder of the qwen3 family.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding; token ids run from 0 to this number less one.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Number of decoder blocks.
    pub num_hidden_layers: i64,
    /// Query heads.
    pub num_attention_heads: i64,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: i64,
    /// Width of one head; even.
    pub head_dim: i64,
    /// Width inside the feed-forward part.
    pub intermediate_size: i64,
    /// Added to the mean square in RMS normalisation.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The output head is the embedding itself.
    pub tie_word_embeddings: bool,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: i64,
}

/// Keys whose value has no effect on what this crate computes.
const IGNORED: [&str; 13] = [
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "max_window_layers",
    "_name_or_path",
    "_attn_implementation_autoset",
];

impl ModelConfig {
    /// Reads `config.json` in `folder`.
    pub fn load(folder: &Path) -> Result<Self, PolicyError> {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path).map_err(PolicyError::read(&path))?;
        let value = serde_json::from_str(&text).map_err(PolicyError::json(&path))?;
        Self::from_json(&value, &path.display().to_string())
    }

    /// Reads the object of a `config.json`; `place` names it in errors.
    pub fn from_json(value: &Value, place: &str) -> Result<Self, PolicyError> {
        let mut keys = Keys {
            map: value.as_object().cloned().ok_or_else(|| fault(place, "config", "must be a JSON object"))?,
            place,
        };
        match keys.map.remove("model_type") {
            Some(Value::String(family)) if family == "qwen3" => {}
            other => {
                let found = other.map_or("absent".to_owned(), |value| value.to_string());
                return Err(fault(
                    place,
                    "model_type",
                    &format!("is {found}; the families that can be run are: qwen3"),
                ));
            }
        }
        let hidden_size = keys.integer("hidden_size", None)?;
        let num_attention_heads = keys.integer("num_attention_heads", None)?;
        keys.demand("hidden_act", &[json!("silu")])?;
        keys.demand("attention_bias", &[json!(false)])?;
        keys.demand("use_sliding_window", &[json!(false)])?;
        keys.demand("sliding_window", &[Value::Null])?;
        keys.demand("rope_scaling", &[Value::Null])?;
        if let Some(types) = keys.map.remove("layer_types") {
            let full = types.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"));
            if !full {
                return Err(fault(
                    place,
                    "layer_types",
                    "holds other layers than full_attention, which are not implemented",
                ));
            }
        }
        let mut rope_theta = keys.number("rope_theta")?;
        // transformers 5 writes the rotary settings as an object.
        if let Some(parameters) = keys.map.remove("rope_parameters") {
            match parameters.get("rope_type").and_then(Value::as_str) {
                None | Some("default") => {
                    rope_theta = parameters.get("rope_theta").and_then(Value::as_f64).or(rope_theta)
                }
                Some(other) => {
                    return Err(fault(
                        place,
                        "rope_parameters",
                        &format!("asks for `{other}`, which is not implemented"),
                    ));
                }
            }
        }
        let config = Self {
            vocab_size: keys.integer("vocab_size", None)?,
            hidden_size,
            num_hidden_layers: keys.integer("num_hidden_layers", None)?,
            num_attention_heads,
            num_key_value_heads: keys.integer("num_key_value_heads", Some(num_attention_heads))?,
            head_dim: keys.integer("head_dim", Some(128))?,
            intermediate_size: keys.integer("intermediate_size", None)?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope_theta.unwrap_or(10_000.0),
            tie_word_embeddings: keys.boolean("tie_word_embeddings", false)?,
            max_position_embeddings: keys.integer("max_position_embeddings", Some(32_768))?,
        };
        if let Some(key) = keys.map.keys().find(|key| !IGNORED.contains(&key.as_str())) {
            return Err(fault(place, key, "is not known here and may change the result, so the model is refused"));
        }
        config.check(place)?;
        Ok(config)
    }

    /// Checks that the sizes fit together; `place` names the configuration in errors.
    pub fn check(&self, place: &str) -> Result<(), PolicyError> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        if let Some((key, size)) = sizes.iter().find(|(_, size)| !(1..=1 << 40).contains(size)) {
            return Err(fault(place, key, &format!("is {size}; it must be a positive size")));
        }
        if self.num_attention_heads % self.num_key_value_heads != 0 {
            return Err(fault(place, "num_key_value_heads", "must divide num_attention_heads"));
        }
        if self.head_dim % 2 != 0 {
            return Err(fault(place, "head_dim", "must be even, for rotary positions turn pairs"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(fault(place, "rms_norm_eps", "must lie between 0 and 1"));
        }
        if !(self.rope_theta > 1.0 && self.rope_theta.is_finite()) {
            return Err(fault(place, "rope_theta", "must be greater than 1"));
        }
        Ok(())
    }

    /// The object of a `config.json` that transformers reads as this model.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "attention_bias": false,
            "use_sliding_window": false,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "torch_dtype": "float32",
        })
    }

    /// Number of parameters of the model.
    pub fn parameter_count(&self) -> u64 {
        let attention = self.hidden_size * self.head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads);
        let norms = 2 * self.hidden_size + 2 * self.head_dim;
        let block = attention + norms + 3 * self.hidden_size * self.intermediate_size;
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        (self.num_hidden_layers * block + self.hidden_size + tables * self.vocab_size * self.hidden_size) as u64
    }
}

/// The keys of a configuration that nobody has read yet.
struct Keys<'a> {
    map: Map<String, Value>,
    place: &'a str,
}

impl Keys<'_> {
    fn integer(&mut self, key: &str, default: Option<i64>) -> Result<i64, PolicyError> {
        match (self.map.remove(key), default) {
            (None | Some(Value::Null), Some(default)) => Ok(default),
            (Some(value), _) => value.as_i64().ok_or_else(|| fault(self.place, key, "must be an integer")),
            (None, None) => Err(fault(self.place, key, "is missing")),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>, PolicyError> {
        match self.map.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Ok(Some(value.as_f64().ok_or_else(|| fault(self.place, key, "must be a number"))?)),
        }
    }

    fn boolean(&mut self, key: &str, default: bool) -> Result<bool, PolicyError> {
        match self.map.remove(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| fault(self.place, key, "must be true or false")),
        }
    }

    fn demand(&mut self, key: &str, allowed: &[Value]) -> Result<(), PolicyError> {
        match self.map.remove(key) {
            Some(value) if !allowed.contains(&value) => {
                Err(fault(self.place, key, &format!("is {value}, which is not implemented (only {})", allowed[0])))
            }
            _ => Ok(()),
        }
    }
}

fn fault(place: &str, key: &str, reason: &str) -> PolicyError {
    PolicyError::Config { place: place.to_owned(), key: key.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen3_4b() -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
            "intermediate_size": 9728, "max_position_embeddings": 262144, "max_window_layers": 36, "model_type": "qwen3",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
            "rope_scaling": null, "rope_theta": 5000000, "sliding_window": null, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
            "vocab_size": 151936
        })
    }

    #[test]
    fn the_published_configuration_of_qwen3_4b_is_read_and_written_back() {
        let config = ModelConfig::from_json(&qwen3_4b(), "config.json").unwrap();
        assert_eq!(config.rope_theta, 5e6);
        assert_eq!(config.parameter_count(), 4_022_468_096);
        assert_eq!(ModelConfig::from_json(&config.to_json(), "again").unwrap(), config);
    }

    #[test]
    fn a_key_that_would_change_the_result_is_refused_by_name() {
        for (key, value) in [
            ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
            ("attention_bias", json!(true)),
            ("use_sliding_window", json!(true)),
            ("hidden_act", json!("gelu")),
            ("model_type", json!("mamba")),
            ("num_key_value_heads", json!(5)),
            ("layer_types", json!(["sliding_attention"])),
            ("some_new_trick", json!(1)),
        ] {
            let mut config = qwen3_4b();
            config[key] = value;
            match ModelConfig::from_json(&config, "config.json") {
                Err(PolicyError::Config { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{key}: {other:?}"),
            }
        }
    }
}
