//! Reading a log, also while a run writes it: only what is acknowledged is seen, and nothing is repaired.

use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::UInt64Array;
use arrow::compute::take_record_batch;
use arrow::record_batch::RecordBatch;
use trace_envs::Split;

use super::segment::{SegmentEntry, read_rows};
use super::store::{LogError, MANIFEST, at, whole_lines};
use super::trajectory::{Phase, TRAJECTORIES};
use crate::batch::trajectory_rows;
use crate::rows::{SegmentRow, Status};

/// Which rows to read; an empty or absent condition lets every row pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowFilter {
    /// Any of these phases; other phases' segments are not even opened.
    pub phases: Vec<Phase>,
    /// Units whose key begins so; other units are not read.
    pub unit_prefix: Option<String>,
    /// This environment.
    pub environment: Option<String>,
    /// This capability.
    pub capability: Option<String>,
    /// This arm; `Some(None)` is the base.
    pub adapter: Option<Option<String>>,
    /// Any of these statuses.
    pub statuses: Vec<Status>,
    /// This split.
    pub split: Option<Split>,
    /// This iteration.
    pub iteration: Option<u32>,
    /// With reward 1, or with less; rows without a reward are neither.
    pub passed: Option<bool>,
    /// Rows whose id contains this.
    pub id_contains: Option<String>,
}

impl RowFilter {
    fn unit_passes(&self, unit: &UnitPlace) -> bool {
        (self.phases.is_empty() || self.phases.contains(&unit.phase))
            && self.unit_prefix.as_ref().is_none_or(|prefix| unit.key.starts_with(prefix))
    }

    fn row_passes(&self, row: &SegmentRow) -> bool {
        self.environment.as_ref().is_none_or(|e| *e == row.environment)
            && self.capability.as_ref().is_none_or(|c| Some(c) == row.capability.as_ref())
            && self.adapter.as_ref().is_none_or(|a| *a == row.adapter)
            && (self.statuses.is_empty() || self.statuses.contains(&row.status))
            && self.split.is_none_or(|s| Some(s) == row.split)
            && self.iteration.is_none_or(|i| i == row.iteration)
            && (self.passed.is_none() || self.passed == row.passed())
            && self.id_contains.as_ref().is_none_or(|part| row.id.contains(part.as_str()))
    }
}

/// An acknowledged unit and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitPlace {
    /// The unit's phase.
    pub phase: Phase,
    /// Its key.
    pub key: String,
    /// Its segment, below `trajectories/`.
    pub file: String,
    /// The segment's row that is its first.
    pub first_row: usize,
    /// How many rows it has.
    pub rows: usize,
}

/// A log's acknowledged units at the moment when it was opened.
pub struct LogReader {
    root: PathBuf,
    segments: Vec<SegmentEntry>,
}

impl LogReader {
    /// Reads the manifest of a run directory. A run without trajectories has no units.
    ///
    /// # Errors
    /// Where the manifest cannot be read.
    pub fn open(run_dir: &Path) -> Result<Self, LogError> {
        let root = run_dir.join(TRAJECTORIES);
        let path = root.join(MANIFEST);
        let segments = match path.exists() {
            true => whole_lines(&fs::read_to_string(&path).map_err(at(&path))?).0,
            false => Vec::new(),
        };
        Ok(Self { root, segments })
    }

    /// The units in the order in which they were sealed.
    pub fn units(&self) -> impl Iterator<Item = UnitPlace> {
        self.segments.iter().filter_map(|s| Some((s, Phase::of_partition(s.partition())?))).flat_map(|(s, phase)| {
            s.units.iter().scan(0, move |next, unit| {
                let first_row = *next;
                *next += unit.rows;
                Some(UnitPlace { phase, key: unit.key.clone(), file: s.file.clone(), first_row, rows: unit.rows })
            })
        })
    }

    /// A unit's rows of the named columns (all of them where `None`), as Arrow.
    ///
    /// # Errors
    /// Where its segment cannot be read.
    pub fn unit_batch(&self, unit: &UnitPlace, columns: Option<&[&str]>) -> Result<RecordBatch, LogError> {
        let path = self.root.join(&unit.file);
        read_rows(&path, unit.first_row, unit.rows, columns).map_err(|source| LogError::Segment { path, source })
    }

    /// A unit's rows.
    ///
    /// # Errors
    /// Where its segment cannot be read or holds what is not a row.
    pub fn unit_rows(&self, unit: &UnitPlace) -> Result<Vec<SegmentRow>, LogError> {
        Ok(trajectory_rows(&self.unit_batch(unit, None)?)?)
    }

    /// The rows that pass a filter, unit after unit in the order in which they were sealed; one unit is in memory at a
    /// time. An error ends the unit that it is in, not the iteration.
    pub fn rows(&self, filter: RowFilter) -> impl Iterator<Item = Result<SegmentRow, LogError>> {
        let wanted: Vec<UnitPlace> = self.units().filter(|u| filter.unit_passes(u)).collect();
        wanted.into_iter().flat_map(move |unit| match self.unit_rows(&unit) {
            Ok(rows) => rows.into_iter().filter(|r| filter.row_passes(r)).map(Ok).collect::<Vec<_>>(),
            Err(e) => vec![Err(e)],
        })
    }

    /// The newest `most` rows that pass a filter, as Arrow, in the order in which they were sealed. Units are read from the
    /// end on, and no more of them than it takes.
    ///
    /// # Errors
    /// Where a segment cannot be read or holds what is not a row.
    pub fn newest(&self, filter: &RowFilter, most: usize) -> Result<Vec<RecordBatch>, LogError> {
        let units: Vec<UnitPlace> = self.units().filter(|u| filter.unit_passes(u)).collect();
        let (mut left, mut newest) = (most, Vec::new());
        for unit in units.iter().rev() {
            if left == 0 {
                break;
            }
            let batch = self.unit_batch(unit, None)?;
            let rows = trajectory_rows(&batch)?;
            let picked: Vec<u64> = (0..rows.len())
                .rev()
                .filter(|&at| filter.row_passes(&rows[at]))
                .take(left)
                .map(|at| at as u64)
                .collect();
            left -= picked.len();
            let ascending = UInt64Array::from_iter_values(picked.into_iter().rev());
            newest.push(
                take_record_batch(&batch, &ascending)
                    .map_err(|source| LogError::Segment { path: self.root.join(&unit.file), source: source.into() })?,
            );
        }
        newest.reverse();
        Ok(newest)
    }
}
