//! What `trace pretrain` reads: the shape of the base policy and the two stages that make it.

use std::path::PathBuf;

use crate::config::section::section;

section! {
    /// A base policy and how it is made.
    PretrainConfig {
        /// Folder that the finished policy is written to; holds its chat_template.jinja beforehand.
        out: PathBuf = PathBuf::from("data/base"),
        /// Folder of checkpoints; a later call goes on from the newest.
        checkpoints: PathBuf = PathBuf::from("runs/base-policy"),
        /// Weights, examples and their order follow from it.
        seed: u64 = 1,
        /// Threads of LibTorch; 0 takes every core.
        threads: u32 = 0,
        /// Shape of the decoder (family qwen3).
        model: Shape = Shape::default(),
        /// First stage: an agent without lapses, in worlds that grow.
        skills: Skills = Skills::default(),
        /// Second stage: the same agent with habits that lack capabilities at known rates.
        habits: HabitStage = HabitStage::default(),
    }
}

section! {
    /// `[model]`
    Shape {
        /// Byte-level BPE tokens, added tokens included.
        vocabulary: u32 = 1024,
        /// Decoder layers.
        layers: u32 = 6,
        /// Width of the residual stream.
        width: u32 = 192,
        /// Attention heads.
        heads: u32 = 6,
        /// Heads of keys and values.
        kv_heads: u32 = 2,
        /// Width of a head.
        head_width: u32 = 32,
        /// Width of the feed-forward layer.
        feed_forward: u32 = 512,
        /// The most positions.
        positions: u32 = 4096,
        /// Base of the rotary frequencies.
        rope_theta: f64 = 10_000.0,
    }
}

section! {
    /// `[skills]`
    Skills {
        /// Training tokens of the stage, shared prompts counted once.
        tokens: u64 = 17_000_000,
        /// Tokens of an optimiser step, about: one system prompt and the demonstrations behind it. In both stages.
        pack_tokens: u32 = 3_072,
        /// Learning rate of the hidden matrices (Muon).
        lr_matrices: f64 = 2e-3,
        /// Learning rate of embeddings and norms (AdamW).
        lr_vectors: f64 = 2e-3,
        /// Share of the stage in which the learning rate rises.
        warmup: f64 = 0.01,
        /// Share of the stage, at its end, in which the learning rate falls to a twentieth.
        decay: f64 = 0.3,
        /// Share of the stage in which worlds grow from one record to the target's size.
        growth: f64 = 0.5,
        /// Share of copy packs at the start; falls to 0.02 while worlds grow.
        copy: f64 = 0.5,
        /// Share of demonstrations in the target world itself, once worlds are grown.
        target: f64 = 0.4,
    }
}

section! {
    /// `[habits]`
    HabitStage {
        /// Training tokens of the stage.
        tokens: u64 = 3_000_000,
        /// Learning rate of the hidden matrices at the start; falls to a twentieth.
        lr_matrices: f64 = 5e-4,
        /// Learning rate of embeddings and norms at the start; falls to a twentieth.
        lr_vectors: f64 = 5e-4,
        /// Probability that the agent shows a capability, by level 1, 2 and 3.
        success: Vec<f64> = vec![0.7, 0.3, 0.05],
    }
}
