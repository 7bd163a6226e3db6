//! The log: Parquet on disk, written in sealed segments.
//!
//! # On disk
//!
//! ```text
//! RUN/trajectories/_manifest.jsonl                 one line per sealed segment, in the order they were sealed
//! RUN/trajectories/phase=train/part-00000.parquet  a sealed segment: never touched again
//! RUN/trajectories/phase=train/.part-00001.tmp     a segment that is being written, or that a crash left behind
//! RUN/updates/...                                  the same, without phases
//! ```
//!
//! Names that begin with `_` or `.` are what dataset readers (pyarrow, DuckDB, Spark) skip, so a phase's folder, or all
//! of `trajectories/`, can be read with them while a run goes on.
//!
//! # What is promised
//!
//! A *unit* is what is appended, and redone, as a whole: a wave of rollouts, or a learner's batch. It has a key. A unit
//! is *acknowledged* when [`TrajectoryLog::append`] returns: its segment was written to a temporary file, synced,
//! renamed, its folder synced, and a line for it synced to the manifest. Each segment carries its units' keys in its
//! own metadata, so the manifest can be rebuilt from the segments and is an index, not the truth.
//!
//! Opening a log after a crash, at whatever point, removes temporary files, drops a half line of the manifest, and
//! takes up sealed segments that the manifest does not list. So an acknowledged unit is there exactly once, a unit that
//! was not acknowledged is there once or not at all, and appending a key that is there changes nothing.

mod read;
mod segment;
mod store;
mod trajectory;
mod updates;

pub use read::{LogReader, RowFilter, UnitPlace};
pub use segment::{SegmentEntry, UnitEntry};
pub use store::{Appended, LogError, Recovery};
pub use trajectory::{Phase, TrajectoryLog, digest};
pub use updates::UpdateLog;

#[cfg(test)]
mod tests;
