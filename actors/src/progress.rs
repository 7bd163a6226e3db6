//! How the runtime says how far it is. Whoever shows it (a terminal, a log, a page) implements [`Progress`].

/// Something worth showing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProgressEvent<'a> {
    /// Work on a unit begins.
    Begun {
        /// The unit's key.
        unit: &'a str,
        /// How many rollouts (or rows) it has.
        total: u64,
    },
    /// Work on a unit went on. The same count may be said twice; a unit that is redone begins again.
    Advanced {
        /// The unit's key.
        unit: &'a str,
        /// How many of its rollouts (or rows) are done.
        done: u64,
        /// Tokens sampled for it so far.
        sampled_tokens: u64,
    },
    /// The unit is acknowledged (or consumed).
    Ended {
        /// The unit's key.
        unit: &'a str,
    },
    /// Something a person should know: a repair, a restart, a retry.
    Noted {
        /// One sentence.
        message: &'a str,
    },
}

/// Receives progress. Called from several threads, often; it must return quickly.
pub trait Progress: Send + Sync {
    /// Takes one event.
    fn event(&self, event: ProgressEvent<'_>);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: ProgressEvent<'_>) {}
}
