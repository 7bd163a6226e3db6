//! What cannot work, alone or in combination, is refused when the configuration is read.

use std::fmt;

use super::read::ConfigFile;
use super::tables::{Baseline, Config, Hints};

/// A value that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key to change, by its path.
    pub key: &'static str,
    /// Its value as it stands.
    pub value: String,
    /// The line on which it is set, where the file sets it.
    pub line: Option<usize>,
    /// Why it cannot work, and what would.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.value)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Arms that every run can have; a baseline must not take their names.
pub const BUILT_IN_ARMS: [&str; 4] = ["base", "trace", "singles", "best_single"];

/// Prefix of an arm that is one adapter.
pub const ADAPTER_ARM: &str = "adapter:";

#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn unless(&mut self, holds: bool, key: &'static str, value: impl fmt::Display, reason: impl Into<String>) {
        if !holds {
            self.0.push(Violation { key, value: value.to_string(), line: None, reason: reason.into() });
        }
    }

    fn at_least(&mut self, key: &'static str, value: u32, least: u32, why: &str) {
        self.unless(value >= least, key, value, format!("must be at least {least}{why}"));
    }

    fn positive(&mut self, key: &'static str, value: f64) {
        self.unless(value.is_finite() && value > 0.0, key, value, "must be greater than 0");
    }

    fn not_negative(&mut self, key: &'static str, value: f64) {
        self.unless(value.is_finite() && value >= 0.0, key, value, "must be at least 0");
    }

    fn share(&mut self, key: &'static str, value: f64) {
        self.unless((0.0..=1.0).contains(&value), key, value, "must be in [0, 1]");
    }

    fn order(&mut self, low: (&'static str, f64), high: (&'static str, f64)) {
        self.unless(low.1 <= high.1, low.0, low.1, format!("must not exceed {} = {}", high.0, high.1));
    }

    /// Sampling from which nothing is trained: anything that is a distribution.
    fn sampling(&mut self, keys: [&'static str; 2], temperature: f64, top_p: f64) {
        self.not_negative(keys[0], temperature);
        self.unless(top_p > 0.0 && top_p <= 1.0, keys[1], top_p, "must be in (0, 1]; 1 is off");
    }
}

impl ConfigFile for Config {
    fn violations(&self) -> Vec<Violation> {
        let mut found = Found::default();
        run_and_policy(self, &mut found);
        limits(self, &mut found);
        rollout_and_analysis(self, &mut found);
        calibration(self, &mut found);
        train(self, &mut found);
        compose(self, &mut found);
        baselines(self, &mut found);
        evaluate(self, &mut found);
        found.0
    }
}

fn run_and_policy(config: &Config, found: &mut Found) {
    let run = &config.run;
    let plain = |name: &str| {
        !name.is_empty() && !name.starts_with('.') && name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
    };
    found.unless(
        plain(&run.name),
        "run.name",
        format!("{:?}", run.name),
        "must be a folder's name: letters, digits, `_`, `-`, `.`",
    );
    found.unless(run.share > 0.0 && run.share <= 1.0, "run.share", run.share, "must be in (0, 1]");
    // TOML's integers are signed: a larger seed could not be written back.
    found.unless(run.seed <= i64::MAX as u64, "run.seed", run.seed, "must be below 2^63");
    let policy = &config.policy;
    found.at_least("policy.max_slots", policy.max_slots, 1, "");
    found.at_least("policy.max_new_tokens", policy.max_new_tokens, 1, "");
    found.unless(
        policy.max_new_tokens < policy.max_context,
        "policy.max_new_tokens",
        policy.max_new_tokens,
        format!("must be below policy.max_context = {}, which holds the prompt as well", policy.max_context),
    );
}

fn limits(config: &Config, found: &mut Found) {
    let limits = &config.limits;
    let retries = limits.env_retries;
    found.unless(retries <= 100, "limits.env_retries", retries, "must be at most 100: what fails so often is broken");
    found.positive("limits.env_step_seconds", limits.env_step_seconds);
    found.positive("limits.policy_seconds", limits.policy_seconds);
    found.order(
        ("limits.env_step_seconds", limits.env_step_seconds),
        ("limits.env_episode_seconds", limits.env_episode_seconds),
    );
}

fn rollout_and_analysis(config: &Config, found: &mut Found) {
    let rollout = &config.rollout;
    found.at_least("rollout.tasks", rollout.tasks, 2, ": analysis draws random halves of the tasks");
    found.at_least("rollout.trials", rollout.trials, 1, "");
    found.sampling(["rollout.temperature", "rollout.top_p"], rollout.temperature, rollout.top_p);
    found.unless(
        rollout.temperature > 0.0 || rollout.trials == 1,
        "rollout.trials",
        rollout.trials,
        "greedy trials of a task are all the same: set rollout.trials = 1 or rollout.temperature above 0",
    );
    let analysis = &config.analysis;
    found.at_least("analysis.runs", analysis.runs, 1, "");
    found.unless(
        (1..=analysis.runs).contains(&analysis.keep),
        "analysis.keep",
        analysis.keep,
        format!("must be between 1 and analysis.runs = {}", analysis.runs),
    );
    found.share("analysis.rho", analysis.rho);
    found.share("analysis.delta", analysis.delta);
    found.at_least("analysis.max_candidates", analysis.max_candidates, 1, "");
    found.at_least("analysis.examples", analysis.examples, 1, "");
}

fn calibration(config: &Config, found: &mut Found) {
    let calibration = &config.synthesis.calibration;
    found.at_least("synthesis.calibration.seeds", calibration.seeds, 1, "");
    found.at_least(
        "synthesis.calibration.rollouts",
        calibration.rollouts,
        2,
        ": a group of one has no difference in reward",
    );
    let levels = &calibration.levels;
    let distinct = levels.iter().enumerate().all(|(index, level)| !levels[..index].contains(level));
    found.unless(
        !levels.is_empty() && distinct,
        "synthesis.calibration.levels",
        format!("{levels:?}"),
        "must list at least one level, each once",
    );
    for (key, value) in [
        ("synthesis.calibration.min_mean", calibration.min_mean),
        ("synthesis.calibration.max_mean", calibration.max_mean),
        ("synthesis.calibration.min_success", calibration.min_success),
        ("synthesis.calibration.max_success", calibration.max_success),
        ("synthesis.calibration.min_std", calibration.min_std),
        ("synthesis.calibration.max_all_success", calibration.max_all_success),
        ("synthesis.calibration.max_all_zero", calibration.max_all_zero),
        ("synthesis.calibration.max_constant", calibration.max_constant),
        ("synthesis.calibration.min_informative", calibration.min_informative),
    ] {
        found.share(key, value);
    }
    found.order(
        ("synthesis.calibration.min_mean", calibration.min_mean),
        ("synthesis.calibration.max_mean", calibration.max_mean),
    );
    found.order(
        ("synthesis.calibration.min_success", calibration.min_success),
        ("synthesis.calibration.max_success", calibration.max_success),
    );
}

fn train(config: &Config, found: &mut Found) {
    let train = &config.train;
    found.at_least("train.rank", train.rank, 1, "");
    found.positive("train.alpha", train.alpha);
    found.positive("train.lr", train.lr);
    found.not_negative("train.weight_decay", train.weight_decay);
    found.positive("train.max_grad_norm", train.max_grad_norm);
    found.at_least("train.k", train.k, 2, ": the advantage of a rollout is taken against its group");
    found.at_least("train.groups", train.groups, 1, "");
    found.at_least("train.iterations", train.iterations, 1, "");
    found.unless(
        (1..=train.groups).contains(&train.groups_per_step),
        "train.groups_per_step",
        train.groups_per_step,
        format!("must be between 1 and train.groups = {}", train.groups),
    );
    found.unless(
        train.clip_low > 0.0 && train.clip_low < 1.0,
        "train.clip_low",
        train.clip_low,
        "must be in (0, 1): the ratio is clipped at 1 - clip_low, which stays above 0",
    );
    found.positive("train.clip_high", train.clip_high);
    found.not_negative("train.kl", train.kl);
    found.unless(
        train.temperature.is_finite() && train.temperature > 0.0,
        "train.temperature",
        train.temperature,
        "training samples: the temperature must be above 0, or all rollouts of a group are the same",
    );
    found.unless(
        train.top_p == 1.0,
        "train.top_p",
        train.top_p,
        "must be 1: the objective's ratio of new to old probability is over all tokens, and a sampler that leaves \
         some out gives other old probabilities",
    );
    found.unless(
        train.top_k == 0,
        "train.top_k",
        train.top_k,
        "must be 0 (off): the objective's ratio of new to old probability is over all tokens",
    );
    found.not_negative("train.replacement", train.replacement);
    let hinted = (train.hint_share * f64::from(train.k)).round();
    found.unless(
        train.hints == Hints::Off || (hinted >= 1.0 && hinted < f64::from(train.k)),
        "train.hint_share",
        train.hint_share,
        format!(
            "must give the hint to some but not all of the k = {} rollouts of a group (or set train.hints = \"off\")",
            train.k
        ),
    );
    found.unless(
        (1..=train.iterations).contains(&train.dev_every),
        "train.dev_every",
        train.dev_every,
        format!("must be between 1 and train.iterations = {}", train.iterations),
    );
    found.at_least("train.dev_tasks", train.dev_tasks, 1, "");
    found.at_least("train.dev_trials", train.dev_trials, 1, "");
    found.unless(
        train.max_tokens_per_pass >= config.policy.max_context,
        "train.max_tokens_per_pass",
        train.max_tokens_per_pass,
        format!("must hold one episode of policy.max_context = {}", config.policy.max_context),
    );
}

fn compose(config: &Config, found: &mut Found) {
    let compose = &config.compose;
    found.at_least("compose.tasks", compose.tasks, 1, "");
    found.at_least("compose.trials", compose.trials, 1, "");
    found.at_least("compose.rounds", compose.rounds, 1, "");
    found.at_least("compose.passes", compose.passes, 1, "");
    found.at_least("compose.steps", compose.steps, 1, "");
    found.positive("compose.temperature", compose.temperature);
    found.positive("compose.tau", compose.tau);
    found.positive("compose.lr", compose.lr);
    found.at_least("compose.max_states", compose.max_states, 1, "");
    found.not_negative("compose.prior", compose.prior);
    found.not_negative("compose.context_weight", compose.context_weight);
}

fn baselines(config: &Config, found: &mut Found) {
    for (index, baseline) in config.baseline.iter().enumerate() {
        let Baseline { name, rank, alpha, .. } = baseline;
        let quoted = format!("{name:?}");
        let file_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        found.unless(file_name, "baseline.name", &quoted, "must be letters, digits, `_` and `-`");
        found.unless(
            !BUILT_IN_ARMS.contains(&name.as_str()),
            "baseline.name",
            &quoted,
            format!("is the name of a built-in arm; those are {}", BUILT_IN_ARMS.join(", ")),
        );
        found.unless(
            !config.baseline[..index].iter().any(|other| other.name == *name),
            "baseline.name",
            &quoted,
            "two baselines have this name",
        );
        found.unless(
            config.evaluate.arms.iter().any(|arm| arm == name),
            "baseline.name",
            &quoted,
            "would be trained for nothing: add it to evaluate.arms or remove the table",
        );
        found.at_least("baseline.rank", *rank, 1, "");
        found.positive("baseline.alpha", *alpha);
    }
}

fn evaluate(config: &Config, found: &mut Found) {
    let evaluate = &config.evaluate;
    found.at_least("evaluate.tasks", evaluate.tasks, 2, ": intervals come from resampling tasks");
    found.at_least("evaluate.trials", evaluate.trials, 1, "");
    found.sampling(["evaluate.temperature", "evaluate.top_p"], evaluate.temperature, evaluate.top_p);
    found.unless(
        evaluate.temperature > 0.0 || evaluate.trials == 1,
        "evaluate.trials",
        evaluate.trials,
        "greedy trials of a task are all the same: set evaluate.trials = 1, or evaluate.greedy = true with a \
         temperature above 0",
    );
    found.unless(
        !(evaluate.greedy && evaluate.temperature == 0.0),
        "evaluate.greedy",
        evaluate.greedy,
        "evaluate.temperature = 0 is greedy already",
    );
    found.at_least("evaluate.bootstrap", evaluate.bootstrap, 100, ": fewer samples give no interval");
    found.unless(
        evaluate.confidence > 0.0 && evaluate.confidence < 1.0,
        "evaluate.confidence",
        evaluate.confidence,
        "must be in (0, 1)",
    );
    found.unless(!evaluate.arms.is_empty(), "evaluate.arms", "[]", "must name at least one arm");
    for (index, arm) in evaluate.arms.iter().enumerate() {
        let known = BUILT_IN_ARMS.contains(&arm.as_str())
            || arm.strip_prefix(ADAPTER_ARM).is_some_and(|capability| !capability.is_empty())
            || config.baseline.iter().any(|baseline| baseline.name == *arm);
        found.unless(
            known,
            "evaluate.arms",
            format!("{arm:?}"),
            format!(
                "is no arm: built in are {}, {ADAPTER_ARM}NAME is one adapter, any other needs a [[baseline]] of that name",
                BUILT_IN_ARMS.join(", ")
            ),
        );
        found.unless(
            !evaluate.arms[..index].contains(arm),
            "evaluate.arms",
            format!("{arm:?}"),
            "the arm is listed twice",
        );
    }
    if evaluate.arms.iter().any(|arm| arm == "best_single") {
        found.at_least("evaluate.select_tasks", evaluate.select_tasks, 1, ": best_single is chosen on them");
        found.at_least("evaluate.select_trials", evaluate.select_trials, 1, ": best_single is chosen on them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<&'static str> {
        let config: Config = toml::from_str(text).unwrap();
        config.violations().iter().map(|violation| violation.key).collect()
    }

    #[test]
    fn the_defaults_can_be_run() {
        assert_eq!(Config::default().violations(), []);
    }

    #[test]
    fn what_cannot_work_is_refused_by_key() {
        let cases: &[(&str, &[&str])] = &[
            ("[run]\nname = '../up'", &["run.name"]),
            ("[run]\nshare = 0", &["run.share"]),
            ("[policy]\nmax_new_tokens = 4096", &["policy.max_new_tokens"]),
            ("[rollout]\ntemperature = 0", &["rollout.trials"]),
            ("[rollout]\ntemperature = 0\ntrials = 1", &[]),
            ("[analysis]\nkeep = 11", &["analysis.keep"]),
            ("[analysis]\nruns = 5", &["analysis.keep"]),
            ("[synthesis.calibration]\nrollouts = 1", &["synthesis.calibration.rollouts"]),
            ("[synthesis.calibration]\nlevels = [1, 1]", &["synthesis.calibration.levels"]),
            ("[synthesis.calibration]\nmin_mean = 0.7", &["synthesis.calibration.min_mean"]),
            ("[train]\ntemperature = 0", &["train.temperature"]),
            ("[train]\ntemperature = nan", &["train.temperature"]),
            ("[train]\nk = 1\nhints = 'off'", &["train.k"]),
            ("[train]\ntop_p = 0.9", &["train.top_p"]),
            ("[train]\ntop_k = 50", &["train.top_k"]),
            ("[train]\nclip_low = 1", &["train.clip_low"]),
            ("[train]\nclip_high = 0", &["train.clip_high"]),
            ("[train]\ngroups = 8", &["train.groups_per_step"]),
            ("[train]\niterations = 2", &["train.dev_every"]),
            ("[train]\nhint_share = 1", &["train.hint_share"]),
            ("[train]\nhint_share = 0.01", &["train.hint_share"]),
            ("[train]\nhint_share = 1\nhints = 'off'", &[]),
            ("[train]\nmax_tokens_per_pass = 100", &["train.max_tokens_per_pass"]),
            ("[compose]\nprior = -1", &["compose.prior"]),
            ("[compose]\ntau = 0", &["compose.tau"]),
            ("[evaluate]\narms = ['grpo']", &["evaluate.arms"]),
            ("[evaluate]\narms = ['base', 'base']", &["evaluate.arms"]),
            ("[evaluate]\narms = ['adapter:']", &["evaluate.arms"]),
            ("[evaluate]\narms = ['adapter:precision']", &[]),
            ("[evaluate]\ntemperature = 0\ntrials = 1\ngreedy = true", &["evaluate.greedy"]),
            ("[[baseline]]\nname = 'grpo'", &["baseline.name"]),
            ("[[baseline]]\nname = 'trace'\n[evaluate]\narms = ['trace']", &["baseline.name"]),
            ("[[baseline]]\nname = 'grpo'\n[evaluate]\narms = ['base', 'grpo']", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(keys(text), *expected, "{text}");
        }
    }
}
