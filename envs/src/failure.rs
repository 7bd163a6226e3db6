//! How an environment fails.

/// A failure of an environment: infrastructure, never a reward and never the policy's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The environment's file or address could not be read or understood.
    #[error("environment {name} cannot be loaded: {reason}")]
    Load {
        /// Name or path.
        name: String,
        /// What is wrong and where.
        reason: String,
    },
    /// No episode could be started for this seed.
    #[error("reset of seed {seed} failed: {reason}")]
    Reset {
        /// The seed that was asked for.
        seed: u64,
        /// Why.
        reason: String,
    },
    /// The environment raised while acting.
    #[error("step {step_id} failed: {reason}")]
    Step {
        /// The step that was asked for.
        step_id: u64,
        /// Why.
        reason: String,
    },
    /// No reply within the deadline; the worker was ended.
    #[error("no reply within {seconds} s; the environment's worker was ended")]
    Deadline {
        /// The deadline.
        seconds: u64,
    },
    /// The worker process is gone.
    #[error("the environment's worker is gone: {0}")]
    Gone(String),
    /// A reply that is not one.
    #[error("the environment's reply cannot be read: {0}")]
    Garbage(String),
    /// A verdict that is not one.
    #[error("the environment's verdict is refused: {0}")]
    BadVerdict(String),
    /// A call that the contract does not allow, such as a level that the spec lacks.
    #[error("{0}")]
    Misuse(String),
}
