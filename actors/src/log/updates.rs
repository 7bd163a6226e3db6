//! The log of updates: `RUN/updates/part-NNNNN.parquet`, one unit per learner's batch.

use std::fs;
use std::path::Path;

use super::segment::read_rows;
use super::store::{Appended, LogError, MANIFEST, Recovery, SealedStore, at, whole_lines};
use crate::batch::{updates_batch, updates_rows};
use crate::rows::UpdateRow;
use crate::schema::updates_schema;

/// The folder of updates within a run directory.
const UPDATES: &str = "updates";

/// The log of updates of one run, open for writing by this process alone.
pub struct UpdateLog {
    store: SealedStore,
}

impl UpdateLog {
    /// Opens or creates the log of a run directory and repairs what a crash left.
    ///
    /// # Errors
    /// As [`super::TrajectoryLog::open`].
    pub fn open(run_dir: &Path) -> Result<(Self, Recovery), LogError> {
        let (store, recovery) = SealedStore::open(&run_dir.join(UPDATES), updates_schema())?;
        Ok((Self { store }, recovery))
    }

    /// Appends what a learner did with its batch; a key that is there changes nothing.
    ///
    /// # Errors
    /// A row that is refused; the file system's refusals. A failed append can be repeated.
    pub fn append(&mut self, key: &str, rows: &[UpdateRow]) -> Result<Appended, LogError> {
        let batch = updates_batch(rows)?;
        self.store.append("", key, &batch)
    }

    /// All rows that are acknowledged, in the order of their units; without opening the log for writing.
    ///
    /// # Errors
    /// Where a segment cannot be read. A run without updates has none.
    pub fn read(run_dir: &Path) -> Result<Vec<UpdateRow>, LogError> {
        let root = run_dir.join(UPDATES);
        let path = root.join(MANIFEST);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let (segments, _) = whole_lines(&fs::read_to_string(&path).map_err(at(&path))?);
        let mut rows = Vec::new();
        for segment in segments {
            let path = root.join(&segment.file);
            let count = segment.units.iter().map(|u| u.rows).sum();
            let batch = read_rows(&path, 0, count, None).map_err(|source| LogError::Segment { path, source })?;
            rows.extend(updates_rows(&batch)?);
        }
        Ok(rows)
    }
}
