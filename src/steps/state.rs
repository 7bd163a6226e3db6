//! `state.json`: which steps are done, and what a run must not change while it goes on.
//!
//! What lies inside of a step (waves, a learner's batches) is in the log's manifest and in checkpoints; this file only says
//! where `trace run` goes on, and holds what results depend on besides the configuration.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::layout::RunDir;
use crate::config::compare::{self, Difference};
use crate::config::show::{Detail, to_toml};
use crate::config::{Config, ConfigError, ConfigFile};
use crate::record::{self, FileError, read_json, write_json};

/// The steps of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// What the base policy does in the target.
    Rollout,
    /// Which capabilities its failures lack.
    Analyze,
    /// An environment for each, calibrated.
    Synthesize,
    /// An adapter for each.
    Train,
    /// Gates over the adapters.
    Compose,
    /// What TRACE is compared with.
    Baseline,
    /// All arms on test tasks.
    Evaluate,
    /// The page.
    Report,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 8] = [
        Step::Rollout,
        Step::Analyze,
        Step::Synthesize,
        Step::Train,
        Step::Compose,
        Step::Baseline,
        Step::Evaluate,
        Step::Report,
    ];

    /// The command that does it.
    pub fn name(self) -> &'static str {
        match self {
            Step::Rollout => "rollout",
            Step::Analyze => "analyze",
            Step::Synthesize => "synthesize",
            Step::Train => "train",
            Step::Compose => "compose",
            Step::Baseline => "baseline",
            Step::Evaluate => "evaluate",
            Step::Report => "report",
        }
    }

    /// The first step whose result depends on a key of the configuration.
    pub fn first_reader(key: &str) -> Step {
        match key.split_once('.').map_or(key, |(table, _)| table) {
            "analysis" => Step::Analyze,
            "synthesis" => Step::Synthesize,
            // Calibration samples as training does.
            "train" if key == "train.temperature" => Step::Synthesize,
            "train" => Step::Train,
            "compose" => Step::Compose,
            "baseline" => Step::Baseline,
            "evaluate" => Step::Evaluate,
            _ => Step::Rollout,
        }
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Digest of the configuration, names and places left out.
    pub config: String,
    /// LibTorch's threads: the last bits of every result depend on them.
    pub threads: u32,
    /// Digest of the base policy's files.
    pub policy: String,
    /// The steps that were begun, with what is known of each.
    pub steps: BTreeMap<Step, Progress>,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Whether it is done.
    pub done: bool,
    /// Rollouts that it sampled, evaluations on dev and test seeds left out; known when it is done.
    pub rollouts: u64,
}

/// Why a run cannot go on under what was given.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A file of the run.
    #[error(transparent)]
    File(#[from] FileError),
    /// The run's own configuration.
    #[error("the run's own configuration cannot be used: {0}")]
    Config(#[from] Box<ConfigError>),
    /// A key that a step has used has another value now.
    #[error(
        "{key} is {is} now, but {dir} was begun with {was}, and `{step}` has used it; set it back, or give the new run \
         another run.name"
    )]
    Changed {
        /// The key.
        key: String,
        /// Its value in the run.
        was: String,
        /// Its value now.
        is: String,
        /// The step.
        step: &'static str,
        /// The run's directory.
        dir: String,
    },
    /// The base policy is not the one that the run was begun with.
    #[error(
        "the files in {model} are not those that {dir} was begun with; put them back, or give the new run another run.name"
    )]
    PolicyChanged {
        /// The policy's folder.
        model: String,
        /// The run's directory.
        dir: String,
    },
    /// The base policy cannot be read.
    #[error("the base policy in {model} cannot be read: {reason}; `trace doctor` says what is missing")]
    Policy {
        /// The policy's folder.
        model: String,
        /// What the system says.
        reason: String,
    },
}

impl State {
    /// Opens a run, or begins one: writes its configuration and state where there is none.
    ///
    /// # Errors
    /// Where the run was begun with a configuration or policy that differs in what a step has used.
    pub fn open(dir: &RunDir, config: &Config) -> Result<Self, ResumeError> {
        let policy = policy_digest(&config.policy.model).map_err(|error| ResumeError::Policy {
            model: config.policy.model.display().to_string(),
            reason: error.to_string(),
        })?;
        let state = match read_json::<State>(&dir.state(), "trace run") {
            Ok(state) => state,
            Err(FileError::Missing { .. }) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
                let threads = if config.run.threads == 0 { cores } else { config.run.threads };
                let state = State { config: compare::digest(config), threads, policy, steps: BTreeMap::new() };
                return state.begun(dir, config);
            }
            Err(error) => return Err(error.into()),
        };
        let own = Config::load(&dir.config(), &[]).map_err(Box::new)?;
        for Difference { key, was, is } in compare::differences(&own, config) {
            let step = Step::first_reader(&key);
            if state.steps.contains_key(&step) {
                let unset = || "not set".to_owned();
                let (was, is) = (was.unwrap_or_else(unset), is.unwrap_or_else(unset));
                let dir = dir.root().display().to_string();
                return Err(ResumeError::Changed { key, was, is, step: step.name(), dir });
            }
        }
        if policy != state.policy {
            let (model, dir) = (config.policy.model.display().to_string(), dir.root().display().to_string());
            return Err(ResumeError::PolicyChanged { model, dir });
        }
        State { config: compare::digest(config), ..state }.begun(dir, config)
    }

    /// Writes state and configuration, the configuration first: a state without one would be a run without one.
    fn begun(self, dir: &RunDir, config: &Config) -> Result<Self, ResumeError> {
        record::write_whole(&dir.config(), to_toml(config, Detail::Documented).as_bytes())?;
        write_json(&dir.state(), &self)?;
        Ok(self)
    }

    /// Whether a step is done.
    pub fn is_done(&self, step: Step) -> bool {
        self.steps.get(&step).is_some_and(|progress| progress.done)
    }

    /// The first step after this one that was begun, and so has used its result.
    pub fn begun_after(&self, step: Step) -> Option<Step> {
        // The page is drawn from files at any time; it binds nothing.
        self.steps.keys().copied().find(|other| *other > step && *other != Step::Report)
    }

    /// Notes that a step has begun. From then on, its keys of the configuration are bound.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn begin(&mut self, dir: &RunDir, step: Step) -> Result<(), FileError> {
        self.steps.entry(step).or_default();
        write_json(&dir.state(), self)
    }

    /// Notes that a step is done.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn finish(&mut self, dir: &RunDir, step: Step, rollouts: u64) -> Result<(), FileError> {
        self.steps.insert(step, Progress { done: true, rollouts });
        write_json(&dir.state(), self)
    }
}

/// Files larger than this are known by their length and their ends: a base policy of 60 GB would take minutes otherwise.
const WHOLE: u64 = 64 << 20;
/// Bytes of each end.
const END: u64 = 1 << 20;

/// SHA-256, in hexadecimal, over names and contents of a policy's files.
fn policy_digest(model: &Path) -> std::io::Result<String> {
    let mut files: Vec<_> = std::fs::read_dir(model)?.collect::<Result<_, _>>()?;
    files.retain(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.ends_with(".json") || name.ends_with(".jinja") || name.ends_with(".safetensors")
    });
    files.sort_by_key(std::fs::DirEntry::file_name);
    if files.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "there is no config.json"));
    }
    let mut digest = Sha256::new();
    for file in files {
        let length = file.metadata()?.len();
        digest.update(file.file_name().as_encoded_bytes());
        digest.update([0]);
        digest.update(length.to_le_bytes());
        let mut content = std::fs::File::open(file.path())?;
        if length <= WHOLE {
            std::io::copy(&mut content, &mut Feed(&mut digest))?;
        } else {
            std::io::copy(&mut content.by_ref().take(END), &mut Feed(&mut digest))?;
            std::io::Seek::seek(&mut content, std::io::SeekFrom::End(-(END as i64)))?;
            std::io::copy(&mut content, &mut Feed(&mut digest))?;
        }
    }
    Ok(compare::hex(&digest.finalize()))
}

struct Feed<'a>(&'a mut Sha256);

impl std::io::Write for Feed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn run() -> (TempDir, RunDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("config.json"), "{}").unwrap();
        let mut config = Config::default();
        config.policy.model = model;
        let dir = RunDir::new(folder.path().join("run"));
        (folder, dir, config)
    }

    #[test]
    fn a_step_that_is_done_is_done_after_a_restart() {
        let (_folder, dir, config) = run();
        let mut state = State::open(&dir, &config).unwrap();
        state.begin(&dir, Step::Rollout).unwrap();
        state.finish(&dir, Step::Rollout, 12).unwrap();
        let again = State::open(&dir, &config).unwrap();
        assert_eq!(again, state);
        assert!(again.is_done(Step::Rollout) && !again.is_done(Step::Analyze));
    }

    #[test]
    fn a_changed_key_that_a_step_has_used_is_an_error_that_names_it() {
        let (_folder, dir, mut config) = run();
        let mut state = State::open(&dir, &config).unwrap();
        state.begin(&dir, Step::Rollout).unwrap();
        config.rollout.tasks = 7;
        let error = State::open(&dir, &config).unwrap_err().to_string();
        assert!(error.starts_with("rollout.tasks is 7 now") && error.contains("with 200, and `rollout`"), "{error}");
        config.rollout.tasks = 200;
        config.run.seed = 9;
        assert!(State::open(&dir, &config).unwrap_err().to_string().starts_with("run.seed is 9 now"));
    }

    #[test]
    fn a_key_that_no_step_has_used_may_change_and_is_written_to_the_run() {
        let (_folder, dir, mut config) = run();
        let mut state = State::open(&dir, &config).unwrap();
        state.begin(&dir, Step::Synthesize).unwrap();
        config.train.k = 8;
        config.run.name = "other".into();
        State::open(&dir, &config).unwrap();
        assert_eq!(Config::load(&dir.config(), &[]).unwrap(), config);
        config.train.temperature = 0.5;
        let error = State::open(&dir, &config).unwrap_err().to_string();
        assert!(error.contains("train.temperature") && error.contains("`synthesize`"), "{error}");
    }

    #[test]
    fn another_base_policy_is_an_error() {
        let (_folder, dir, config) = run();
        State::open(&dir, &config).unwrap();
        std::fs::write(config.policy.model.join("model.safetensors"), "other").unwrap();
        assert!(matches!(State::open(&dir, &config), Err(ResumeError::PolicyChanged { .. })));
        std::fs::remove_dir_all(&config.policy.model).unwrap();
        assert!(matches!(State::open(&dir, &config), Err(ResumeError::Policy { .. })));
    }

    #[test]
    fn every_key_of_the_configuration_belongs_to_a_step() {
        assert_eq!(Step::first_reader("run.seed"), Step::Rollout);
        assert_eq!(Step::first_reader("synthesis.calibration.seeds"), Step::Synthesize);
        assert_eq!(Step::first_reader("baseline"), Step::Baseline);
        assert_eq!(Step::first_reader("train.k"), Step::Train);
    }
}
