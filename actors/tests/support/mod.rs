//! A small random model, a small world, and a run of a few iterations on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trace_actors::batch::trajectory_rows;
use trace_actors::log::Phase;
use trace_actors::plan::{Acting, AdapterShape, ArmSpec, GroupPlan, Limits, WavePlan};
use trace_actors::progress::Silent;
use trace_actors::rows::{SamplingParams, SegmentRow};
use trace_actors::{LearnerConfig, LearnerSpec, Runtime, RuntimeConfig, TrainOutcome, TrainReport, WaveOutcome};
use trace_envs::{
    Action, Check, EnvError, EnvSpec, Environment, Episode, Message, Opening, Role, Split, StepReply, Verdict,
};
use trace_policy::config::ModelConfig;
use trace_policy::model::Model;
use trace_policy::tokenizer::{BASE_TOKENS, train_bpe};

const VOCABULARY: i64 = 320;

/// A stop token whose logit is large, one way or the other: a random model then ends some turns early and others late.
const STOP_SCALE: f64 = 12.0;

const TEMPLATE: &str = "\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// Rewards short words by their length: two turns, and what a random policy says differs from rollout to rollout.
pub struct WordsEnv {
    spec: EnvSpec,
}

impl WordsEnv {
    pub fn new() -> Self {
        let spec = EnvSpec {
            name: "words".into(),
            description: "Rewards some words.".into(),
            capability: Some("words".into()),
            levels: 1,
            max_turns: 2,
            tools: Vec::new(),
            evidence: Vec::new(),
        };
        Self { spec }
    }
}

struct Words {
    opening: Opening,
    said: Vec<String>,
}

impl Environment for WordsEnv {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&self, seed: u64, _: u32) -> Result<Box<dyn Episode>, EnvError> {
        let messages = vec![
            Message::new(Role::System, "You say words."),
            Message::new(Role::User, format!("A word for {seed}, please.")),
        ];
        let hint = Some("Say a short one.".into());
        Ok(Box::new(Words { opening: Opening { messages, tools: Vec::new(), hint, level: 1 }, said: Vec::new() }))
    }
}

impl Episode for Words {
    fn opening(&self) -> &Opening {
        &self.opening
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if step_id as usize == self.said.len() {
            self.said.push(action.text.clone());
        }
        Ok(StepReply { messages: vec![Message::new(Role::User, "And another?")], done: step_id == 1 })
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        let letters: usize = self.said.iter().map(|s| s.chars().count()).sum();
        let reward = (letters % 3) as f64 / 2.0;
        let checks = vec![Check { name: "length".into(), score: reward, weight: 1.0, detail: format!("{letters}") }];
        Ok(Verdict { reward, checks })
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        Ok(None)
    }
}

/// Writes a small random model with a tokenizer and a chat template.
pub fn write_model(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let corpus = "You say words. A word for 12, please. And another? Say a short one. word words short another please";
    let tokenizer =
        train_bpe(std::iter::repeat_n(corpus.to_owned(), 20), VOCABULARY as usize - 20, &BASE_TOKENS, dir).unwrap();
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    let config = ModelConfig {
        vocab_size: VOCABULARY,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 16,
        intermediate_size: 48,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 512,
    };
    let model = Model::random(config, 5, tch::Device::Cpu).unwrap();
    let stop = i64::from(tokenizer.stop_ids()[0]);
    for (name, tensor) in model.parameters() {
        if name == "model.embed_tokens.weight" {
            // Random tables are small: logits of this size make the distribution neither flat nor a point.
            tch::no_grad(|| {
                let _ = tensor.shallow_clone().g_mul_scalar_(STOP_SCALE);
                let _ = tensor.get(stop).g_mul_scalar_(2.0);
            });
        }
    }
    model.save(dir).unwrap();
}

pub fn config(model: &Path, run: &Path) -> RuntimeConfig {
    let env: Arc<dyn Environment> = Arc::new(WordsEnv::new());
    RuntimeConfig {
        run_id: "test".into(),
        run_seed: 11,
        limits: Limits { max_context: 300, max_turn_tokens: 24, ..Limits::default() },
        max_slots: 8,
        kv_budget_bytes: 64 << 20,
        env_threads: 2,
        ..RuntimeConfig::new(model, run, Arc::new(move |_: &str| Ok(Arc::clone(&env))), Arc::new(Silent))
    }
}

pub fn learner_spec() -> LearnerSpec {
    LearnerSpec { name: "words".into(), adapter: AdapterShape { rank: 4, alpha: 4.0, first_layer: 0 }, seed: 3 }
}

pub fn learner_config() -> LearnerConfig {
    LearnerConfig { lr: 1e-2, groups_per_step: 2, ..LearnerConfig::default() }
}

/// A wave of four groups of four.
pub fn wave(unit: &str, phase: Phase, acting: Acting, split: Split, first: u64) -> WavePlan {
    WavePlan {
        unit: unit.into(),
        phase,
        environment: "words".into(),
        capability: Some("words".into()),
        acting,
        iteration: first as u32,
        trials: false,
        sampling: SamplingParams::default(),
        groups: (0..4).map(|g| GroupPlan::new(g, split.seed(first * 4 + g), 1, 4)).collect(),
    }
}

pub fn training_wave(iteration: u64) -> WavePlan {
    let unit = format!("train/words/i{iteration:04}");
    wave(&unit, Phase::Train, Acting::Learner("words".into()), Split::Train, iteration)
}

pub fn base() -> Acting {
    Acting::Arm(ArmSpec::base())
}

pub fn rows(outcome: &WaveOutcome) -> Vec<SegmentRow> {
    trajectory_rows(&outcome.batch).unwrap()
}

pub fn report(outcome: TrainOutcome) -> TrainReport {
    match outcome {
        TrainOutcome::Trained(report) => report,
        TrainOutcome::ConsumedBefore => panic!("consumed before"),
    }
}

/// Iterations that are not yet consumed, then the adapter; returns the adapter's digest.
pub async fn train_to(runtime: &Runtime, iterations: u64, adapter: &Path) -> String {
    let status = runtime.open_learner(&learner_spec()).await.unwrap();
    for iteration in u64::from(status.version)..iterations {
        let plan = training_wave(iteration);
        let unit = plan.unit.clone();
        let outcome = runtime.rollout(plan).await.unwrap();
        runtime.train("words", &unit, &outcome.batch, &learner_config()).await.unwrap();
    }
    runtime.export_adapter("words", adapter).await.unwrap()
}

/// The folder of a model that all tests of this binary share.
pub fn model() -> PathBuf {
    use std::sync::OnceLock;
    static MODEL: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = MODEL.get_or_init(|| {
        let dir = tempfile::TempDir::new().unwrap();
        write_model(dir.path());
        dir
    });
    dir.path().to_owned()
}
