//! Where everything of a run lies. A person can read the folder without the program.

use std::path::{Path, PathBuf};

/// A run's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The run that lies there, or will.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The effective configuration, every key written out.
    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// Which steps are done.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// One measurement a line.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// The candidates that label runs label.
    pub fn candidates(&self) -> PathBuf {
        self.0.join("capabilities/candidate_capabilities.json")
    }

    /// A label run, from 1.
    pub fn label_run(&self, attempt: u32) -> PathBuf {
        self.0.join(format!("capabilities/run_{attempt:02}.json"))
    }

    /// The kept capabilities, largest gap first.
    pub fn selected(&self) -> PathBuf {
        self.0.join("capabilities/selected_capabilities.json")
    }

    /// The measures of all candidates.
    pub fn analysis(&self) -> PathBuf {
        self.0.join("capabilities/analysis.json")
    }

    /// The Python environments of the kept capabilities.
    pub fn environments(&self) -> PathBuf {
        self.0.join("environments")
    }

    /// A capability's environment, relative to the run.
    pub fn environment_name(capability: &str) -> PathBuf {
        Path::new("environments").join(format!("{capability}.py"))
    }

    /// What a learner leaves: its state, an adapter for each dev evaluation, and the best one.
    pub fn learner(&self, name: &str) -> PathBuf {
        self.0.join("adapters").join(name)
    }

    /// The adapter of a learner after so many iterations, in PEFT format.
    pub fn adapter_after(&self, name: &str, iteration: u32) -> PathBuf {
        self.learner(name).join(format!("i{iteration:04}"))
    }

    /// Which adapter of a learner is kept, and why.
    pub fn kept(&self, name: &str) -> PathBuf {
        self.learner(name).join("kept.json")
    }

    /// The gates after a round, with their adapters by name and digest.
    pub fn composition(&self, round: u32) -> PathBuf {
        self.0.join(format!("composition/r{round}"))
    }

    /// Which composition is used, and what made it.
    pub fn composed(&self) -> PathBuf {
        self.0.join("composition/composed.json")
    }

    /// What each arm did on the test tasks.
    pub fn evaluation(&self) -> PathBuf {
        self.0.join("evaluation.json")
    }

    /// The page.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.html")
    }
}
