//! `trace pretrain`: makes the base policy of the embedded default.
//!
//! A byte-level tokenizer is learned from demonstrations, then a small decoder in stages ([`config`]): first skills, from
//! a scripted agent without lapses in helpdesk worlds that grow from one record to the target's size; at last habits,
//! from the same agent lacking capabilities at known rates. All are supervised on the agent's tokens alone. Every
//! batch is a function of (seed, stage, step), and a checkpoint holds weights, moments and position: a stopped run goes
//! on where it was.

pub mod config;
mod data;
mod probe;
mod schedule;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, bounded};
use serde::{Deserialize, Serialize};
use trace_envs::SeedStream;
use trace_envs::helpdesk::{DemoWorld, Habits};
use trace_policy::chat::{Chat, ChatError};
use trace_policy::config::ModelConfig;
use trace_policy::error::PolicyError;
use trace_policy::model::Model;
use trace_policy::pretrain::{self, PackedExample, Pretrainer, Rates};
use trace_policy::tokenizer::{Tokenizer, TokenizerError, train_bpe};

pub use config::{PretrainConfig, Stage};
use data::{ExampleSource, Mixture};
pub use probe::Probe;

/// Why the base policy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// The model or its files.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The chat template or a demonstration in it.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template changes earlier turns, so that a demonstration is not one sequence.
    #[error("the chat template rewrites earlier turns; a base policy needs one that only appends")]
    Rewritten,
    /// A file of the run.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// LibTorch gave something unexpected.
    #[error("LibTorch: {0}")]
    Torch(String),
    /// A value of the configuration that cannot work.
    #[error("{key}: {reason}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
}

/// Where a run is, beside the weights and moments of its checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Position {
    /// Index in [`PretrainConfig::stage`].
    stage: usize,
    step: u64,
    tokens: u64,
}

/// What is told while training goes on.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub stage: String,
    /// Optimiser steps of the stage.
    pub step: u64,
    /// Tokens of the stage so far.
    pub tokens: u64,
    /// Tokens of the whole stage.
    pub total: u64,
    /// Mean loss since the last report, nats per agent token.
    pub loss: f64,
    /// Tokens per second since the last report.
    pub rate: f64,
    /// Held-out demonstrations without lapses in the target world, where they were measured.
    pub target: Option<Probe>,
    /// The same in worlds of the present size.
    pub worlds: Option<Probe>,
}

/// The added tokens of the base policy's tokenizer, with whether they are special.
const ADDED: [(&str, bool); 9] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

/// Demonstrations from which the tokenizer is learned.
const CORPUS: u64 = 1_500;
/// Tokens between two reports, two probes and two checkpoints.
const REPORT_TOKENS: u64 = 50_000;
const PROBE_TOKENS: u64 = 500_000;
const CHECKPOINT: Duration = Duration::from_secs(120);
/// Packs in a probe.
const PROBE_PACKS: u64 = 12;

fn file_error(path: &Path) -> impl Fn(std::io::Error) -> PretrainError {
    let path = path.to_owned();
    move |error| PretrainError::File { path: path.clone(), reason: error.to_string() }
}

/// Makes the base policy, or goes on making it, and writes it to `config.out`. `tell` is called with progress.
///
/// # Errors
/// Every variant of [`PretrainError`]; what was reached is in the checkpoints.
pub fn pretrain(config: &PretrainConfig, mut tell: impl FnMut(&Report)) -> Result<(), PretrainError> {
    let mut habits = Vec::with_capacity(config.stage.len());
    for stage in &config.stage {
        let &[easy, middle, hard] = stage.success.as_slice() else {
            return Err(PretrainError::Config {
                key: "stage.success",
                reason: "needs one number for each of 3 levels".into(),
            });
        };
        habits.push(Habits { success: [easy, middle, hard] });
    }
    if config.threads > 0 {
        tch::set_num_threads(config.threads as i32);
    }
    fs::create_dir_all(&config.checkpoints).map_err(file_error(&config.checkpoints))?;
    let chat = load_or_learn_chat(config)?;
    let model = Model::random(shape(config), config.seed, tch::Device::Cpu)?;
    let mut trainer = Pretrainer::new(model, pretrain::PretrainConfig::default())?;
    let from = restore(config, &mut trainer)?.unwrap_or_default();
    for (index, (stage, habits)) in config.stage.iter().zip(habits).enumerate().skip(from.stage) {
        let at = if index == from.stage { from } else { Position { stage: index, ..Position::default() } };
        if at.step == 0 {
            trainer = Pretrainer::new(trainer.into_model(), pretrain::PretrainConfig::default())?;
        }
        let source = ExampleSource { chat: chat.clone(), habits, pack_tokens: config.pack_tokens as usize };
        let end = train(config, stage, &mut trainer, source, at, &mut tell)?;
        save(config, &trainer, end)?;
        trainer.model().save(&config.checkpoints.join(&stage.name))?;
    }
    trainer.model().save(&config.out)?;
    Ok(())
}

fn shape(config: &PretrainConfig) -> ModelConfig {
    let model = &config.model;
    ModelConfig {
        vocab_size: model.vocabulary.into(),
        hidden_size: model.width.into(),
        num_hidden_layers: model.layers.into(),
        num_attention_heads: model.heads.into(),
        num_key_value_heads: model.kv_heads.into(),
        head_dim: model.head_width.into(),
        intermediate_size: model.feed_forward.into(),
        rms_norm_eps: 1e-6,
        rope_theta: model.rope_theta,
        tie_word_embeddings: true,
        max_position_embeddings: model.positions.into(),
    }
}

/// The chat of `config.out`; its tokenizer is learned first where it is missing.
fn load_or_learn_chat(config: &PretrainConfig) -> Result<Chat, PretrainError> {
    let out = &config.out;
    if !out.join("tokenizer.json").is_file() {
        let words = (0..CORPUS).flat_map(|i| {
            let mut rng = SeedStream::keyed(&[config.seed, 1, i]);
            let world = DemoWorld::random(&mut rng, 1.0);
            let demo = world.demo(&mut rng, 1.0, &Habits::NONE);
            data::demo_text(&demo)
        });
        let corpus: Vec<String> = words.collect();
        train_bpe(corpus.into_iter(), config.model.vocabulary as usize, &ADDED, out)?;
    }
    let tokenizer = Tokenizer::load(out)?;
    if tokenizer.vocab_size() != config.model.vocabulary as usize {
        return Err(PretrainError::Config {
            key: "model.vocabulary",
            reason: format!(
                "{} has {} tokens; remove it to learn another",
                out.join("tokenizer.json").display(),
                tokenizer.vocab_size()
            ),
        });
    }
    Ok(Chat::load(out, SystemTime::UNIX_EPOCH)?)
}

/// The pack of one optimiser step, and the share of the stage that it was drawn for.
struct Batch {
    example: PackedExample,
    done: f64,
}

/// Draws the batches of a stage on a thread of its own, a few ahead.
fn draw_batches(
    seed: u64,
    stage: &Stage,
    source: ExampleSource,
    from: Position,
) -> Receiver<Result<Batch, PretrainError>> {
    let (send, receive) = bounded(8);
    let stage = stage.clone();
    std::thread::spawn(move || {
        let (mut step, mut tokens) = (from.step, from.tokens);
        while tokens < stage.tokens {
            let done = tokens as f64 / stage.tokens as f64;
            let mut rng = SeedStream::keyed(&[seed, 2 + from.stage as u64, step]);
            let example = source.draw(&mut rng, schedule::mixture(&stage, done));
            let batch = example.map(|example| Batch { example, done });
            tokens += batch.as_ref().map_or(0, |batch| batch.example.packed.tokens() as u64);
            step += 1;
            let failed = batch.is_err();
            // The trainer is gone where it failed.
            if send.send(batch).is_err() || failed {
                return;
            }
        }
    });
    receive
}

fn train(
    config: &PretrainConfig,
    stage: &Stage,
    trainer: &mut Pretrainer,
    source: ExampleSource,
    from: Position,
    tell: &mut impl FnMut(&Report),
) -> Result<Position, PretrainError> {
    let total = stage.tokens;
    let held_out = ExampleSource { chat: source.chat.clone(), habits: Habits::NONE, pack_tokens: source.pack_tokens };
    let probe_of = |model: &Model, mixture: Mixture| -> Result<Probe, PretrainError> {
        let packs: Result<Vec<PackedExample>, PretrainError> =
            (0..PROBE_PACKS).map(|i| held_out.draw(&mut SeedStream::keyed(&[config.seed, 9, i]), mixture)).collect();
        probe::probe(model, &packs?)
    };
    let batches = draw_batches(config.seed, stage, source, from);
    let mut at = from;
    let (mut loss_sum, mut losses, mut since) = (0.0, 0u32, Instant::now());
    let mut reported = at.tokens;
    let mut saved = Instant::now();
    for batch in batches {
        let batch = batch?;
        let share = schedule::lr(stage, batch.done);
        let rates = Rates { hidden: stage.lr_matrices * share, other: stage.lr_vectors * share };
        let tokens = batch.example.packed.tokens() as u64;
        loss_sum += trainer.step(&[batch.example], rates)?.loss;
        at = Position { step: at.step + 1, tokens: at.tokens + tokens, ..at };
        losses += 1;
        if at.tokens - reported >= REPORT_TOKENS || at.tokens >= total {
            let probes = at.tokens / PROBE_TOKENS != reported / PROBE_TOKENS || at.tokens >= total;
            let rate = (at.tokens - reported) as f64 / since.elapsed().as_secs_f64();
            let (target, worlds) = if probes {
                let growth = schedule::mixture(stage, batch.done).growth;
                let target = probe_of(trainer.model(), Mixture { target: 1.0, ..schedule::demonstrations(1.0) })?;
                (Some(target), Some(probe_of(trainer.model(), schedule::demonstrations(growth))?))
            } else {
                (None, None)
            };
            let loss = loss_sum / f64::from(losses);
            tell(&Report {
                stage: stage.name.clone(),
                step: at.step,
                tokens: at.tokens,
                total,
                loss,
                rate,
                target,
                worlds,
            });
            (loss_sum, losses, since, reported) = (0.0, 0, Instant::now(), at.tokens);
        }
        if saved.elapsed() >= CHECKPOINT {
            save(config, trainer, at)?;
            saved = Instant::now();
        }
    }
    Ok(at)
}

/// The note of a checkpoint that says where it stands.
const POSITION: &str = "position";

fn checkpoint(config: &PretrainConfig) -> PathBuf {
    config.checkpoints.join("checkpoint.safetensors")
}

/// Writes weights, moments and position as one file, in place of the one before.
fn save(config: &PretrainConfig, trainer: &Pretrainer, at: Position) -> Result<(), PretrainError> {
    let path = checkpoint(config);
    let text =
        serde_json::to_string(&at).map_err(|e| PretrainError::File { path: path.clone(), reason: e.to_string() })?;
    trainer.save(&path, &BTreeMap::from([(POSITION.to_string(), text)]))?;
    Ok(())
}

fn restore(config: &PretrainConfig, trainer: &mut Pretrainer) -> Result<Option<Position>, PretrainError> {
    let path = checkpoint(config);
    if !path.is_file() {
        return Ok(None);
    }
    let notes = trainer.restore(&path)?;
    let bad = |reason: String| PretrainError::File { path: path.clone(), reason };
    let text = notes.get(POSITION).ok_or_else(|| bad("it does not say where it stands".to_string()))?;
    serde_json::from_str(text).map(Some).map_err(|e| bad(e.to_string()))
}
