//! Environments by name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::contract::Environment;
use crate::failure::EnvError;
use crate::helpdesk::Helpdesk;
use crate::library::LIBRARY;
use crate::process::ProcessLimits;
use crate::sandbox::{Limits, PythonEnvironment};

/// A Python file that was named but not needed yet.
#[derive(Clone, Debug)]
struct Source {
    /// What messages call the file.
    file: String,
    text: String,
}

enum Entry {
    Ready(Arc<dyn Environment>),
    /// Started at its first use, so that naming many environments costs no processes.
    Python(Source),
}

/// The environments that a run can name: the built-in ones, and Python files of folders. A name given again replaces
/// what it named, so a run's own file takes precedence over the library's of the same name.
pub struct EnvRegistry {
    entries: Mutex<BTreeMap<String, Entry>>,
    limits: Limits,
    process: ProcessLimits,
}

impl EnvRegistry {
    /// No environments; Python files that are added run under these limits.
    pub fn empty(limits: Limits, process: ProcessLimits) -> Self {
        Self { entries: Mutex::default(), limits, process }
    }

    /// The target world `helpdesk`, `helpdesk_mean_check`, and the library.
    pub fn builtin() -> Self {
        let registry = Self::empty(Limits::default(), ProcessLimits::default());
        registry.add(Arc::new(Helpdesk::new()));
        registry.add(Arc::new(Helpdesk::mean_check()));
        for (name, text) in LIBRARY {
            let source = Source { file: format!("library/{name}.py"), text: text.to_string() };
            registry.insert(name.to_string(), Entry::Python(source));
        }
        registry
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        // An entry is replaced as a whole: what a panicking thread left behind is whole too.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, name: String, entry: Entry) {
        self.entries().insert(name, entry);
    }

    /// Adds an environment under the name in its spec.
    pub fn add(&self, env: Arc<dyn Environment>) {
        self.insert(env.spec().name.clone(), Entry::Ready(env));
    }

    /// Adds a Python file under its name without `.py`, which must be the name in its `SPEC` when it is used.
    ///
    /// # Errors
    /// [`EnvError::Load`] where it cannot be read.
    pub fn add_file(&self, path: &Path) -> Result<String, EnvError> {
        let file = path.display().to_string();
        let unreadable = |reason: String| EnvError::Load { name: file.clone(), reason };
        let name = match (path.extension().and_then(|e| e.to_str()), path.file_stem().and_then(|s| s.to_str())) {
            (Some("py"), Some(stem)) => stem.to_string(),
            _ => return Err(unreadable("an environment's file is called NAME.py".to_string())),
        };
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        self.insert(name.clone(), Entry::Python(Source { file, text }));
        Ok(name)
    }

    /// Adds every `*.py` of a folder, in the order of their names, and returns the names.
    ///
    /// # Errors
    /// [`EnvError::Load`] where the folder or a file cannot be read.
    pub fn add_folder(&self, folder: &Path) -> Result<Vec<String>, EnvError> {
        let unreadable =
            |e: std::io::Error| EnvError::Load { name: folder.display().to_string(), reason: e.to_string() };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|e| e == "py") {
                paths.push(path);
            }
        }
        paths.sort();
        paths.iter().map(|path| self.add_file(path)).collect()
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    /// The environment of this name; a Python file's processes are started at its first use and shared from then on.
    ///
    /// # Errors
    /// [`EnvError::Load`] where the name is unknown, or the file is no environment or one of another name.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Environment>, EnvError> {
        let refused = |reason: String| Err(EnvError::Load { name: name.to_string(), reason });
        let found = match self.entries().get(name) {
            Some(Entry::Ready(env)) => return Ok(Arc::clone(env)),
            Some(Entry::Python(source)) => Some(source.clone()),
            None => None,
        };
        let Some(source) = found else {
            return refused(format!("there is no such environment; there are {}", self.names().join(", ")));
        };
        // Started without the lock: others need not wait for it. Two that come at once start it twice, and one is
        // kept.
        let env =
            PythonEnvironment::from_source(&source.file, &source.text, self.limits.clone(), self.process.clone())?;
        if env.spec().name != name {
            return refused(format!("{} calls itself {:?} in its SPEC", source.file, env.spec().name));
        }
        let env: Arc<dyn Environment> = Arc::new(env);
        match self.entries().get_mut(name) {
            Some(Entry::Ready(other)) => return Ok(Arc::clone(other)),
            Some(entry) => *entry = Entry::Ready(Arc::clone(&env)),
            None => {}
        }
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_names_are_known_without_a_process_being_started() {
        let names = EnvRegistry::builtin().names();
        assert_eq!(
            names,
            [
                "helpdesk",
                "helpdesk_mean_check",
                "information_gathering",
                "multi_step_completion",
                "precondition_verification",
                "structured_data_reasoning",
                "tool_calling_precision"
            ]
        );
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = EnvRegistry::builtin().get("helpdeks").map(drop).unwrap_err().to_string();
        assert!(error.contains("helpdeks") && error.contains("helpdesk_mean_check"), "{error}");
    }

    #[test]
    fn only_python_files_that_can_be_read_are_taken() {
        let registry = EnvRegistry::empty(Limits::default(), ProcessLimits::default());
        assert!(matches!(registry.add_file(Path::new("notes.txt")), Err(EnvError::Load { .. })));
        assert!(matches!(registry.add_file(Path::new("/nowhere/env.py")), Err(EnvError::Load { .. })));
        assert!(matches!(registry.add_folder(Path::new("/nowhere")), Err(EnvError::Load { .. })));
        let folder = tempfile::tempdir().unwrap();
        for file in ["b.py", "a.py", "notes.txt"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(registry.add_folder(folder.path()).unwrap(), ["a", "b"]);
        assert_eq!(registry.names(), ["a", "b"]);
    }
}
