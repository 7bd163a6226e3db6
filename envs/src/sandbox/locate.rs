//! Where the worker's binary is.

use std::path::{Path, PathBuf};

use crate::failure::EnvError;

/// The binary's file name.
pub const WORKER: &str = "trace-env-worker";

/// Names the binary's path where it is not beside the executable.
pub const WORKER_VARIABLE: &str = "TRACE_ENV_WORKER";

/// Finds the worker: `TRACE_ENV_WORKER`, else beside this executable, else in the folder above (tests run from
/// `target/release/deps`).
///
/// # Errors
/// [`EnvError::Load`] with the places that were searched.
pub fn find_worker() -> Result<PathBuf, EnvError> {
    let named = std::env::var_os(WORKER_VARIABLE).map(PathBuf::from);
    search(named, std::env::current_exe().ok().as_deref())
}

fn search(named: Option<PathBuf>, executable: Option<&Path>) -> Result<PathBuf, EnvError> {
    let missing = |reason: String| EnvError::Load { name: WORKER.to_string(), reason };
    if let Some(path) = named {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(missing(format!("{WORKER_VARIABLE} is {}, which is no file", path.display())))
        };
    }
    let places: Vec<PathBuf> =
        executable.into_iter().flat_map(|e| e.ancestors().skip(1).take(2)).map(|dir| dir.join(WORKER)).collect();
    places.iter().find(|p| p.is_file()).cloned().ok_or_else(|| {
        let searched: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        missing(format!(
            "not found as {}; build it with `cargo build --release -p trace-envs` or set {WORKER_VARIABLE}",
            searched.join(" or ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_found_beside_the_executable_or_one_above_or_as_named() {
        let dir = tempfile::tempdir().unwrap();
        let deps = dir.path().join("deps");
        std::fs::create_dir(&deps).unwrap();
        let above = dir.path().join(WORKER);
        std::fs::write(&above, "").unwrap();
        assert_eq!(search(None, Some(&deps.join("test-1"))).unwrap(), above);
        assert_eq!(search(None, Some(&dir.path().join("trace"))).unwrap(), above);
        let beside = deps.join(WORKER);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(search(None, Some(&deps.join("test-1"))).unwrap(), beside);
        assert_eq!(search(Some(above.clone()), Some(&deps.join("test-1"))).unwrap(), above);
    }

    #[test]
    fn a_missing_worker_is_an_error_that_names_the_places() {
        let dir = tempfile::tempdir().unwrap();
        let error = search(None, Some(&dir.path().join("a/trace"))).unwrap_err().to_string();
        assert!(error.contains(&dir.path().join("a").join(WORKER).display().to_string()), "{error}");
        assert!(error.contains(WORKER_VARIABLE), "{error}");
        let error = search(Some(dir.path().join("gone")), None).unwrap_err().to_string();
        assert!(error.contains("which is no file"), "{error}");
    }
}
