//! The log of trajectories: `RUN/trajectories/phase=.../part-NNNNN.parquet`.

use std::fmt::Write as _;
use std::path::Path;

use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::read::LogReader;
use super::segment::SegmentEntry;
use super::store::{Appended, LogError, Recovery, SealedStore};
use crate::batch::trajectory_rows;
use crate::rows::SegmentRow;
use crate::schema::trajectory_schema;

/// The folder of trajectories within a run directory.
pub(crate) const TRAJECTORIES: &str = "trajectories";

/// The part of a run that rollouts were sampled for. It is the log's partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Foreign trajectories.
    Import,
    /// The frozen base in the target environment, for analysis.
    Base,
    /// The base in a capability environment, to calibrate it.
    Calibrate,
    /// A learner's rollouts.
    Train,
    /// Rollouts that gates are trained on.
    Gate,
    /// Dev and test rollouts.
    Evaluate,
}

impl Phase {
    /// All phases, in the order of a run.
    pub const ALL: [Phase; 6] =
        [Phase::Import, Phase::Base, Phase::Calibrate, Phase::Train, Phase::Gate, Phase::Evaluate];

    /// The name in the path.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Import => "import",
            Phase::Base => "base",
            Phase::Calibrate => "calibrate",
            Phase::Train => "train",
            Phase::Gate => "gate",
            Phase::Evaluate => "evaluate",
        }
    }

    /// The phase's folder below `trajectories/`.
    pub fn partition(self) -> String {
        format!("phase={}", self.name())
    }

    /// The phase of a folder below `trajectories/`.
    pub fn of_partition(partition: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|p| partition.strip_prefix("phase=") == Some(p.name()))
    }
}

/// The log of trajectories of one run, open for writing by this process alone.
pub struct TrajectoryLog {
    store: SealedStore,
}

impl TrajectoryLog {
    /// Opens or creates the log of a run directory and repairs what a crash left; what was repaired is returned.
    ///
    /// # Errors
    /// [`LogError::Locked`] where another process writes it; [`LogError::Damaged`] where an acknowledged segment is
    /// missing or has another size; the file system's refusals.
    pub fn open(run_dir: &Path) -> Result<(Self, Recovery), LogError> {
        let (store, recovery) = SealedStore::open(&run_dir.join(TRAJECTORIES), trajectory_schema())?;
        Ok((Self { store }, recovery))
    }

    /// Appends a unit; when this returns, the unit is acknowledged. A key that is there changes nothing: the unit that
    /// was acknowledged first is the one that counts.
    ///
    /// # Errors
    /// A batch of another schema or with a row that is refused; the file system's refusals. A failed append can be
    /// repeated.
    pub fn append(&mut self, phase: Phase, key: &str, batch: &RecordBatch) -> Result<Appended, LogError> {
        trajectory_rows(batch)?;
        self.store.append(&phase.partition(), key, batch)
    }

    /// True where a unit of that key is acknowledged.
    pub fn contains(&self, key: &str) -> bool {
        self.store.contains(key)
    }

    /// The rows of a unit; `None` where there is none of that key.
    ///
    /// # Errors
    /// Where its segment cannot be read.
    pub fn read_unit(&self, key: &str) -> Result<Option<RecordBatch>, LogError> {
        self.store.read_unit(key)
    }

    /// The acknowledged segments in the order in which they were sealed.
    pub fn segments(&self) -> &[SegmentEntry] {
        self.store.segments()
    }

    /// The folder `RUN/trajectories`.
    pub fn root(&self) -> &Path {
        self.store.root()
    }
}

/// SHA-256 of all that a run's trajectories say, in hexadecimal. Units are taken in the order of (phase, key), so the
/// order in which they were sealed does not matter; the run's id, all times and all durations are left out.
///
/// # Errors
/// Where the log cannot be read.
pub fn digest(run_dir: &Path) -> Result<String, LogError> {
    let reader = LogReader::open(run_dir)?;
    let mut units: Vec<_> = reader.units().collect();
    units.sort();
    let mut hash = Sha256::new();
    for unit in units {
        hash_line(&mut hash, unit.phase.name().as_bytes());
        hash_line(&mut hash, unit.key.as_bytes());
        for row in reader.unit_rows(&unit)? {
            let json = serde_json::to_vec(&timeless(row)).expect("a row is plain JSON");
            hash_line(&mut hash, &json);
        }
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    }))
}

fn hash_line(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// The row without what differs between two runs of the same configuration.
fn timeless(mut row: SegmentRow) -> SegmentRow {
    row.run.clear();
    row.started_at_us = 0;
    row.wall_ms = 0;
    for turn in &mut row.turns {
        turn.policy_ms = None;
        turn.env_ms = None;
    }
    row
}
