//! What `trace pretrain` reads: the shape of the base policy and the stages that make it.

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
        /// Tokens of an optimiser step, about: one system prompt and the demonstrations behind it.
        pack_tokens: u32 = 3_072,
        /// Shape of the decoder (family qwen3).
        model: Shape = Shape::default(),
        /// The stages, in order. Each starts from the weights of the one before, with fresh moments.
        stage: Vec<Stage> = Vec::new(),
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
    /// `[[stage]]`: so many tokens of demonstrations.
    Stage {
        /// Its name in what is printed; the policy after it is kept in the folder of that name under `checkpoints`.
        name: String = String::new(),
        /// Training tokens, shared prompts counted once.
        tokens: u64 = 1_000_000,
        /// Learning rate of the hidden matrices (Muon).
        lr_matrices: f64 = 2e-3,
        /// Learning rate of embeddings and norms (AdamW).
        lr_vectors: f64 = 2e-3,
        /// Share of the stage in which the learning rate rises.
        warmup: f64 = 0.01,
        /// Share of the stage, at its end, in which the learning rate falls to a twentieth.
        decay: f64 = 0.3,
        /// Share of the stage in which worlds grow from one record to the target's size; 0: they are grown.
        growth: f64 = 0.0,
        /// Share of packs of random strings to copy at the start of the stage.
        copy: f64 = 0.0,
        /// The same once worlds are grown.
        copy_last: f64 = 0.0,
        /// Tokens of the longest string to copy, once worlds are grown: as far as copying reaches back.
        copy_longest: u32 = 400,
        /// Share of packs of lists in which records are looked up by their item, of the packs that are not copied.
        lookup: f64 = 0.0,
        /// Share of demonstration packs whose system prompt hints at a capability, beside the 15 % of random worlds that
        /// always do.
        hinted: f64 = 0.0,
        /// Share of demonstration packs in the target world itself, once worlds are grown.
        target: f64 = 0.4,
        /// Probability that the agent shows a capability, by level 1, 2 and 3.
        success: Vec<f64> = vec![1.0, 1.0, 1.0],
    }
}
