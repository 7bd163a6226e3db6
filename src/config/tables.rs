//! The tables of the configuration and their defaults: the published settings of TRACE where there are any.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::section::{Documented, section};

section! {
    /// A whole configuration.
    Config {
        /// What the run is called, where it lies, and what makes it repeatable.
        run: Run = Run::default(),
        /// The base policy and the limits of its sampling.
        policy: Policy = Policy::default(),
        /// Deadlines and retries: past them, an episode fails instead of hanging.
        limits: Limits = Limits::default(),
        /// The world in which the agent is to become better.
        target: Target = Target::default(),
        /// Step 0: what the frozen base policy does in the target.
        rollout: Rollout = Rollout::default(),
        /// Step 1: which capabilities the failures lack.
        analysis: Analysis = Analysis::default(),
        /// Step 2: one environment for each capability, and its calibration.
        synthesis: Synthesis = Synthesis::default(),
        /// Step 3: one adapter for each capability, by GRPO.
        train: Train = Train::default(),
        /// Step 4: gates that choose an adapter, or none, for every token.
        compose: Compose = Compose::default(),
        /// What TRACE is compared with: adapters that are trained in one environment, as `[[baseline]]` tables.
        baseline: Vec<Baseline> = Vec::new(),
        /// The comparison on test seeds.
        evaluate: Evaluate = Evaluate::default(),
    }
}

impl Config {
    /// Where the run lies: `run.dir`, or `runs/NAME`.
    pub fn run_dir(&self) -> PathBuf {
        self.run.dir.clone().unwrap_or_else(|| Path::new("runs").join(&self.run.name))
    }
}

section! {
    /// `[run]`
    Run {
        /// Name of the run, used in tables and reports.
        name: String = "run".to_owned(),
        /// The run's directory. Without it: `runs/NAME`, below the directory in which `trace` is started.
        dir: Option<PathBuf> = None,
        /// Every random choice follows from it: the same seed and configuration repeat a run bit for bit.
        seed: u64 = 1,
        /// Threads of LibTorch. 0 takes every core; the number found is kept with the run, since the order of sums, and
        /// so the last bits of every result, depends on it.
        threads: u32 = 0,
        /// Share of every sampling stage that is done, in (0, 1]: rollout tasks, calibration seeds, training iterations,
        /// composition tasks. For curves over the number of rollouts. Evaluation is never scaled.
        share: f64 = 1.0,
    }
}

section! {
    /// `[policy]`
    Policy {
        /// Folder of the base policy: config.json, model.safetensors, tokenizer.json, tokenizer_config.json. Relative to
        /// the directory in which `trace` is started.
        model: PathBuf = PathBuf::from("data/base"),
        /// How many episodes are sampled at once, each in a fixed slot. Part of the run's state: a row's last bits depend
        /// on the batch that it is in.
        max_slots: u32 = 64,
        /// The most tokens of one assistant turn; a turn that needs more ends its episode as truncated.
        max_new_tokens: u32 = 256,
        /// The most tokens of one episode, prompt included.
        max_context: u32 = 4096,
    }
}

section! {
    /// `[limits]`
    Limits {
        /// How often an episode is begun anew, with the same seed, after a failure of its environment; then it is marked
        /// as failed, which is never a reward of 0.
        env_retries: u32 = 2,
        /// Seconds that one call of an environment may take.
        env_step_seconds: f64 = 30.0,
        /// Seconds that all calls of one episode may take together.
        env_episode_seconds: f64 = 300.0,
        /// Seconds that one call of the policy may take.
        policy_seconds: f64 = 600.0,
    }
}

section! {
    /// `[target]`
    Target {
        /// Name of a built-in environment, or the path of a Python file.
        environment: String = "helpdesk".to_owned(),
        /// Level of difficulty; 0 is the environment's own mix.
        level: u32 = 0,
    }
}

section! {
    /// `[rollout]`
    Rollout {
        /// Number of train tasks that the base policy tries.
        tasks: u32 = 200,
        /// Episodes of each task.
        trials: u32 = 4,
        /// Sampling temperature; 0 is greedy.
        temperature: f64 = 1.0,
        /// Nucleus sampling: the smallest set of tokens with this much probability. 1 is off.
        top_p: f64 = 1.0,
        /// Only the most probable tokens. 0 is off.
        top_k: u32 = 0,
    }
}

section! {
    /// `[analysis]`
    Analysis {
        /// Independent labelling runs, N. Each labels the trajectories of a random half of the tasks.
        runs: u32 = 10,
        /// Least coverage of a capability in a run: the share of failed trajectories that lack it.
        rho: f64 = 0.10,
        /// Least contrastive gap in a run: error rate among failed minus error rate among passed trajectories.
        delta: f64 = 0.20,
        /// A capability is kept when at least this many of the N runs pass it, K.
        keep: u32 = 8,
        /// The most candidates; the environment's evidence must not name more.
        max_candidates: u32 = 10,
        /// Failed trajectories listed as examples of a kept capability, spread over tasks.
        examples: u32 = 8,
    }
}

section! {
    /// `[synthesis]`
    Synthesis {
        /// Folder with one Python environment for each capability. Without it: the library inside the program.
        library: Option<PathBuf> = None,
        /// How hard the environments are for the base policy, and what is acceptable.
        calibration: Calibration = Calibration::default(),
    }
}

/// What to do with an environment that calibration does not accept at any level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReject {
    /// The run stops and says what failed.
    Stop,
    /// It is used all the same, with a warning in the terminal and in the report.
    Proceed,
}
impl Documented for OnReject {}

section! {
    /// `[synthesis.calibration]`: rollouts of the base policy in a capability environment, sampled as in training.
    Calibration {
        /// Train seeds, each one group.
        seeds: u32 = 100,
        /// Rollouts of each seed.
        rollouts: u32 = 16,
        /// Levels of difficulty in the order in which they are tried until one is accepted; 0 is the environment's own
        /// mix.
        levels: Vec<u32> = vec![0],
        /// What to do when no level is accepted: "stop" or "proceed".
        on_reject: OnReject = OnReject::Stop,
        /// Least mean reward.
        min_mean: f64 = 0.2,
        /// Largest mean reward.
        max_mean: f64 = 0.6,
        /// Least share of rollouts with reward 1.
        min_success: f64 = 0.2,
        /// Largest share of rollouts with reward 1.
        max_success: f64 = 0.6,
        /// Least standard deviation of the reward over all rollouts.
        min_std: f64 = 0.05,
        /// Largest share of groups whose rollouts all have reward 1.
        max_all_success: f64 = 0.2,
        /// Largest share of groups whose rollouts all have reward 0. Above it, hints are given in training.
        max_all_zero: f64 = 0.2,
        /// Largest share of groups without any difference in reward.
        max_constant: f64 = 0.5,
        /// Least share of groups with a difference in reward, of all groups that were sampled, failed ones included.
        min_informative: f64 = 0.5,
    }
}

/// When a share of a group's rollouts gets the environment's hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hints {
    /// Where calibration found more all-zero groups than `synthesis.calibration.max_all_zero`.
    Auto,
    /// Never.
    Off,
    /// Always.
    On,
}
impl Documented for Hints {}

section! {
    /// `[train]`
    Train {
        /// Rank of the adapters.
        rank: u32 = 16,
        /// Their scale is alpha / rank.
        alpha: f64 = 16.0,
        /// The first block that adapters change, counted from 0. The gate of a block sees the block's input, and the first
        /// blocks' inputs tell little of where in an episode a token stands: what an adapter does there, gates can hardly
        /// give to the tokens that need it. In a deep model that is a small share of the adapter, in a shallow one a
        /// large one.
        first_layer: u32 = 0,
        /// Learning rate of AdamW.
        lr: f64 = 1e-5,
        /// Decoupled weight decay of AdamW.
        weight_decay: f64 = 0.0,
        /// Gradients are scaled down to this norm.
        max_grad_norm: f64 = 1.0,
        /// Rollouts of a group, K: all of one seed, so that the task is identical within it.
        k: u32 = 16,
        /// Groups of an iteration.
        groups: u32 = 32,
        /// Iterations of one adapter.
        iterations: u32 = 20,
        /// Groups of an optimiser step; an iteration has groups / groups_per_step of them.
        groups_per_step: u32 = 32,
        /// The ratio of new to old probability is clipped below at 1 - clip_low.
        clip_low: f64 = 0.2,
        /// And above at 1 + clip_high.
        clip_high: f64 = 0.2,
        /// Weight of the KL term towards the base; 0 leaves it out.
        kl: f64 = 0.0,
        /// Sampling temperature of training and calibration.
        temperature: f64 = 1.0,
        /// Only 1 is possible: a ratio of probabilities needs the same support on both sides.
        top_p: f64 = 1.0,
        /// Only 0 is possible, for the same reason.
        top_k: u32 = 0,
        /// Constant groups carry no signal; up to this share of an iteration's groups is sampled again with new seeds.
        replacement: f64 = 0.5,
        /// When hints are given: "auto", "off" or "on".
        hints: Hints = Hints::Auto,
        /// Share of a group's rollouts that gets the hint, where hints are given.
        hint_share: f64 = 0.25,
        /// Iterations between evaluations on dev seeds; the last iteration is always evaluated. The best adapter is kept.
        dev_every: u32 = 5,
        /// Dev tasks of such an evaluation, in the environment trained on.
        dev_tasks: u32 = 32,
        /// Episodes of each dev task.
        dev_trials: u32 = 2,
        /// Tokens of one pass forward and backward; bounds memory, changes no gradient.
        max_tokens_per_pass: u32 = 16384,
    }
}

section! {
    /// `[compose]`
    Compose {
        /// Train tasks of the target that the base and each adapter try, for winning trajectories to learn from.
        tasks: u32 = 100,
        /// Episodes of each task and arm.
        trials: u32 = 4,
        /// Rounds; each after the first adds the wins of the routed policy so far and fits new gates to all of them.
        rounds: u32 = 2,
        /// Winning rows of each adapter's own training, the newest, that gates learn from as well.
        own_wins: u32 = 100,
        /// Sampling temperature.
        temperature: f64 = 1.0,
        /// The gate's target is softmax(log-prob of the token under each slot / tau), in nats.
        tau: f64 = 1.0,
        /// What slot 0, the base, is favoured by, in nats: an adapter must earn its tokens.
        prior: f64 = 0.1,
        /// Weight of all tokens that are only read (prompt, observations) and are to stay with the base, beside 1 for all
        /// that the policy sampled. 0 leaves them to chance.
        context_weight: f64 = 0.1,
        /// Learning rate of the gates at the start of a round; falls to 0.
        lr: f64 = 1e-2,
        /// How often a round computes the gates' inputs anew.
        passes: u32 = 3,
        /// Optimiser steps of a pass, each on all states.
        steps: u32 = 100,
        /// The most states that gates are trained on; each takes 4 * layers * hidden bytes. Those on which slots agree are
        /// left out first.
        max_states: u32 = 20_000,
    }
}

/// How long a baseline is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaselineBudget {
    /// Until it has sampled as many rollouts as the whole run before it: base rollouts, calibration, training with its
    /// discarded groups, and gate data. With as many dev evaluations.
    Run,
    /// As many iterations as one capability's adapter.
    Adapter,
}
impl Documented for BaselineBudget {}

section! {
    /// `[[baseline]]`
    Baseline {
        /// Its name among the arms of `evaluate.arms`.
        name: String = String::new(),
        /// The environment that it is trained in: a built-in name or the path of a Python file. "helpdesk_mean_check" is
        /// "helpdesk" with the mean of the outcome checks as its reward: a denser signal than all or nothing.
        environment: String = "helpdesk".to_owned(),
        /// Level of difficulty; 0 is the environment's own mix.
        level: u32 = 0,
        /// Rank of its adapter.
        rank: u32 = 16,
        /// Scale times rank of its adapter.
        alpha: f64 = 16.0,
        /// How many rollouts it may sample: "run", as many as the run, or "adapter", as many as one adapter.
        budget: BaselineBudget = BaselineBudget::Run,
    }
}

section! {
    /// `[evaluate]`
    Evaluate {
        /// Test tasks; every arm gets the same.
        tasks: u32 = 200,
        /// Episodes of each task and arm.
        trials: u32 = 4,
        /// Sampling temperature.
        temperature: f64 = 1.0,
        /// Nucleus sampling; 1 is off.
        top_p: f64 = 1.0,
        /// Only the most probable tokens; 0 is off.
        top_k: u32 = 0,
        /// Whether each arm is also run once per task at temperature 0.
        greedy: bool = false,
        /// What is compared: "base", "trace" (adapters and gates), "singles" (each adapter alone), "best_single" (the one
        /// that is best on dev tasks), "adapter:NAME", and names of baselines.
        arms: Vec<String> = vec!["base".to_owned(), "best_single".to_owned(), "trace".to_owned()],
        /// Dev tasks of the target on which the best single adapter is chosen.
        select_tasks: u32 = 64,
        /// Episodes of each of them.
        select_trials: u32 = 2,
        /// Samples of the paired bootstrap over tasks.
        bootstrap: u32 = 10_000,
        /// Confidence of the intervals, in (0, 1).
        confidence: f64 = 0.95,
    }
}
