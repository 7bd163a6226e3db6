//! The files that a run leaves for readers: `evaluation.json` and `metrics.jsonl`. The report is drawn from them, and so can
//! be any other.

pub mod evaluation;
pub mod metrics;

pub use evaluation::{ArmResult, Evaluation};
pub use metrics::{Metric, MetricsLog};

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a file of a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is not there.
    #[error("{path} is missing; it is written by `{writer}`")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The command that writes it.
        writer: &'static str,
    },
    /// The system refuses.
    #[error("{path}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// It does not hold what it should.
    #[error("{path} cannot be understood: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What and where.
        reason: String,
    },
}

impl FileError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| FileError::Io { path, reason: error.to_string() }
    }
}

/// Reads a JSON file; `writer` is the command that makes it, for the message when it is missing.
///
/// # Errors
/// Every variant of [`FileError`].
pub fn read_json<T: DeserializeOwned>(path: &Path, writer: &'static str) -> Result<T, FileError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FileError::Missing { path: path.to_owned(), writer });
        }
        Err(error) => return Err(FileError::io(path)(error)),
    };
    serde_json::from_str(&text)
        .map_err(|error| FileError::Malformed { path: path.to_owned(), reason: error.to_string() })
}

/// Writes JSON so that a reader, or a later start after a kill, sees the old file or the whole new one.
///
/// # Errors
/// Where the system refuses.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| FileError::Malformed { path: path.to_owned(), reason: error.to_string() })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

/// Writes a file whole: to a temporary name beside it, synced, then renamed, and the folder synced.
///
/// # Errors
/// Where the system refuses.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(FileError::io(folder))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".partial");
    let temporary = PathBuf::from(temporary);
    let write = || -> io::Result<()> {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(folder)?.sync_all()
    };
    write().map_err(FileError::io(path))
}
