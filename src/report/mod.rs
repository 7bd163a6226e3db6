//! `report.html`: one self-contained page, drawn from the files of a run. No script, no network, no file beside it.
//!
//! [`Inputs`] is everything that it shows; what a run does not have yet is left out of the page. Every text that comes
//! from outside (names, conversations, details of checks) passes through [`html::escape`].

pub mod charts;
pub mod html;
mod page;
pub mod sections;
pub mod table;

use std::path::Path;

use crate::analyze::{Record, Selected};
use crate::record::metrics::MetricsLog;
use crate::record::{Evaluation, FileError, Metric, read_json};

/// Everything that the page shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// The run's name.
    pub run: String,
    /// `capabilities/analysis.json`.
    pub analysis: Option<Record>,
    /// `capabilities/selected_capabilities.json`.
    pub selected: Vec<Selected>,
    /// `metrics.jsonl`.
    pub metrics: Vec<Metric>,
    /// `evaluation.json`.
    pub evaluation: Option<Evaluation>,
}

impl Inputs {
    /// Reads what a run directory has.
    ///
    /// # Errors
    /// Where a file is there and cannot be understood.
    pub fn read(run: &str, dir: &Path) -> Result<Self, FileError> {
        fn optional<T>(read: Result<T, FileError>) -> Result<Option<T>, FileError> {
            match read {
                Ok(value) => Ok(Some(value)),
                Err(FileError::Missing { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
        let capabilities = dir.join("capabilities");
        Ok(Self {
            run: run.to_owned(),
            analysis: optional(read_json(&capabilities.join("analysis.json"), "trace analyze"))?,
            selected: optional(read_json(&capabilities.join("selected_capabilities.json"), "trace analyze"))?
                .unwrap_or_default(),
            metrics: MetricsLog::read(&dir.join("metrics.jsonl"))?,
            evaluation: optional(read_json(&dir.join("evaluation.json"), "trace evaluate"))?,
        })
    }
}

/// The page.
pub fn render(inputs: &Inputs) -> String {
    page::page(&format!("TRACE report: {}", inputs.run), &sections::all(inputs))
}

#[cfg(test)]
mod tests;
