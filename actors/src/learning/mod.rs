//! Learners and the gate trainer: what turns acknowledged rollouts into adapters and gates.
//!
//! A learner's batch is one transaction: rows are chosen, the adapter takes its steps, `updates/1` says what became of
//! each row, and a checkpoint names the unit as consumed; then the adapter is published. Until the checkpoint is there,
//! nothing has happened: a learner that fails is restored from the one before, and the batch, handed in again, gives
//! the same. From the checkpoint on, the unit handed in again changes nothing.

mod gates;
mod learner;
mod report;
mod selection;

pub use gates::{GateJob, GatePass, GateReport};
pub(crate) use gates::{GateMessage, GateTrainer, GateTrainerArguments};
pub(crate) use learner::{LearnerActor, LearnerArguments, LearnerMessage};
pub use report::{LearnError, LearnerStatus, TrainOutcome, TrainReport};
pub(crate) use selection::scoring_row;

#[cfg(test)]
mod tests;
