//! From text to a configuration that can be run, or to an error that points at the place.

use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, NamedSource, SourceSpan};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::check::Violation;
use super::section::{Documented, Key};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {reason}")]
    #[diagnostic(help("configurations that come with the program lie in configs/"))]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Not TOML, or a value of the wrong type.
    #[error("{name}, line {line}: {reason}")]
    Malformed {
        /// File name, or the override as given.
        name: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
        /// The text, for display.
        #[source_code]
        source_code: NamedSource<String>,
        /// Where in it.
        #[label("here")]
        span: SourceSpan,
    },
    /// A key that the program does not know.
    #[error("{name}, line {line}: unknown key `{key}` in {table}; the nearest known key is `{nearest}`")]
    UnknownKey {
        /// File name, or the override as given.
        name: String,
        /// Line, from 1.
        line: usize,
        /// The key as written.
        key: String,
        /// The table it stands in, such as `[train]`.
        table: String,
        /// The known key that is most like it, with its table when that is another one.
        nearest: String,
        /// The known keys of that table.
        #[help]
        known: String,
        /// The text, for display.
        #[source_code]
        source_code: NamedSource<String>,
        /// Where in it.
        #[label("not known")]
        span: SourceSpan,
    },
    /// Values that cannot work, alone or together.
    #[error("{name}: {}", join(.violations))]
    Impossible {
        /// File name.
        name: String,
        /// All that is wrong, each with the key to change.
        violations: Vec<Violation>,
    },
    /// An override that is not `TABLE.KEY=VALUE`.
    #[error("--set {0:?} is not TABLE.KEY=VALUE")]
    #[diagnostic(help("for example --set train.k=8 or --set run.name=second"))]
    Override(String),
}

fn join(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}

/// A configuration that stands in a file of its own.
pub trait ConfigFile: Documented + Serialize + DeserializeOwned {
    /// Everything about it that cannot work; empty when it can be run.
    fn violations(&self) -> Vec<Violation>;

    /// Reads a file, applies overrides of the form `TABLE.KEY=VALUE`, and refuses what cannot work.
    ///
    /// # Errors
    /// Every variant of [`ConfigError`].
    fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
        Self::parse(&path.display().to_string(), &text, overrides)
    }

    /// The same from text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// Every variant of [`ConfigError`] but `Unreadable`.
    fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self, ConfigError> {
        let source = Text { name, text };
        let mut config: Self = source.typed()?;
        if !overrides.is_empty() {
            let mut merged: toml::Table = toml::from_str(text).map_err(|error| source.malformed(&error))?;
            for given in overrides {
                merge(&mut merged, read_override::<Self>(given)?);
            }
            config = Self::deserialize(merged).map_err(|error| source.at(0..0, error.message().to_owned()))?;
        }
        let violations = config.violations();
        if !violations.is_empty() {
            let lines = |violation: Violation| Violation { line: source.line_of_key(violation.key), ..violation };
            let violations = violations.into_iter().map(lines).collect();
            return Err(ConfigError::Impossible { name: name.to_owned(), violations });
        }
        Ok(config)
    }
}

/// One override as a table; a value that is not TOML is taken as a string.
fn read_override<T: ConfigFile>(given: &str) -> Result<toml::Table, ConfigError> {
    let (key, value) = given.split_once('=').ok_or_else(|| ConfigError::Override(given.to_owned()))?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || !key.split('.').all(|part| !part.is_empty()) {
        return Err(ConfigError::Override(given.to_owned()));
    }
    let as_written = format!("{key} = {value}");
    let text = match toml::from_str::<toml::Table>(&as_written) {
        Ok(_) => as_written,
        Err(_) => format!("{key} = {}", toml::Value::String(value.to_owned())),
    };
    let name = format!("--set {given}");
    let source = Text { name: &name, text: &text };
    source.typed::<T>()?;
    toml::from_str(&text).map_err(|error| source.malformed(&error))
}

/// Puts `over` on top of `base`: tables key by key, anything else as a whole.
fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => merge(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// A text with the name that stands for it in messages.
struct Text<'a> {
    name: &'a str,
    text: &'a str,
}

impl Text<'_> {
    /// Checks syntax, then keys, then types: an unknown key is the likelier cause of what follows.
    fn typed<T: ConfigFile>(&self) -> Result<T, ConfigError> {
        let document = DeTable::parse(self.text).map_err(|error| self.malformed(&error))?;
        let root = T::keys();
        self.refuse_unknown(document.get_ref(), "", &root, &root)?;
        toml::from_str(self.text).map_err(|error| self.malformed(&error))
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count()
    }

    fn at(&self, span: Range<usize>, reason: String) -> ConfigError {
        ConfigError::Malformed {
            name: self.name.to_owned(),
            line: self.line(span.start),
            reason,
            source_code: NamedSource::new(self.name, self.text.to_owned()),
            span: span.into(),
        }
    }

    fn malformed(&self, error: &toml::de::Error) -> ConfigError {
        self.at(error.span().unwrap_or(0..0), error.message().to_owned())
    }

    fn refuse_unknown(&self, table: &DeTable<'_>, path: &str, known: &[Key], root: &[Key]) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = name.get_ref().as_ref();
            let Some(found) = known.iter().find(|candidate| candidate.name == key) else {
                return Err(self.unknown(key, name.span(), path, known, root));
            };
            if found.children.is_empty() {
                continue;
            }
            let below = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            match value.get_ref() {
                DeValue::Table(inner) => self.refuse_unknown(inner, &below, &found.children, root)?,
                DeValue::Array(items) => {
                    for item in items.iter() {
                        if let DeValue::Table(inner) = item.get_ref() {
                            self.refuse_unknown(inner, &below, &found.children, root)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn unknown(&self, key: &str, span: Range<usize>, path: &str, known: &[Key], root: &[Key]) -> ConfigError {
        let table = if path.is_empty() { "the top level".to_owned() } else { format!("[{path}]") };
        let names: Vec<&str> = known.iter().map(|candidate| candidate.name).collect();
        ConfigError::UnknownKey {
            name: self.name.to_owned(),
            line: self.line(span.start),
            key: key.to_owned(),
            nearest: nearest(key, path, root),
            known: format!("keys of {table}: {}", names.join(", ")),
            table,
            source_code: NamedSource::new(self.name, self.text.to_owned()),
            span: span.into(),
        }
    }

    /// The line on which a key, given by its path, is set; `None` where the default stands.
    fn line_of_key(&self, path: &str) -> Option<usize> {
        let document = DeTable::parse(self.text).ok()?;
        let mut table = document.get_ref().clone();
        let mut line = None;
        for part in path.split('.') {
            let (name, value) = table.iter().find(|(name, _)| name.get_ref().as_ref() == part)?;
            line = Some(self.line(name.span().start));
            let next = match value.get_ref() {
                DeValue::Table(inner) => inner.clone(),
                _ => DeTable::new(),
            };
            table = next;
        }
        line
    }
}

/// The known key that is most like `key`, which stood in the table `path`: preferably of the same table.
fn nearest(key: &str, path: &str, root: &[Key]) -> String {
    let mut best = (f64::MIN, String::new());
    let mut consider = |table: &str, name: &str| {
        let same_table = table == path;
        let score = strsim::normalized_damerau_levenshtein(key, name).max(strsim::jaro_winkler(key, name) - 0.1)
            + if same_table { 0.15 } else { 0.0 };
        if score > best.0 {
            let full = if same_table || table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
            best = (score, full);
        }
    };
    fn walk(keys: &[Key], table: &str, consider: &mut impl FnMut(&str, &str)) {
        for key in keys {
            consider(table, key.name);
            let below = if table.is_empty() { key.name.to_owned() } else { format!("{table}.{}", key.name) };
            walk(&key.children, &below, consider);
        }
    }
    walk(root, "", &mut consider);
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn refused(text: &str) -> String {
        Config::parse("test.toml", text, &[]).expect_err("must be refused").to_string()
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Config::parse("test.toml", "", &[]).unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_nearest_known_key_its_table_and_line() {
        assert_eq!(
            refused("[run]\nseed = 2\n\n[train]\niteratons = 3\n"),
            "test.toml, line 5: unknown key `iteratons` in [train]; the nearest known key is `iterations`"
        );
        assert_eq!(
            refused("[synthesis.calibration]\nseds = 3\n"),
            "test.toml, line 2: unknown key `seds` in [synthesis.calibration]; the nearest known key is `seeds`"
        );
        assert_eq!(
            refused("[[baseline]]\nname = 'a'\n[[baseline]]\nnme = 'b'\n"),
            "test.toml, line 4: unknown key `nme` in [baseline]; the nearest known key is `name`"
        );
        assert_eq!(
            refused("[trian]\n"),
            "test.toml, line 1: unknown key `trian` in the top level; the nearest known key is `train`"
        );
    }

    #[test]
    fn a_key_in_the_wrong_table_is_pointed_to_its_table() {
        assert_eq!(
            refused("[policy]\niterations = 3\n"),
            "test.toml, line 2: unknown key `iterations` in [policy]; the nearest known key is `train.iterations`"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_names_the_line() {
        let text = refused("[train]\nk = 'many'\n");
        assert!(text.starts_with("test.toml, line 2: invalid type: string \"many\""), "{text}");
        let text = refused("[train]\nhints = 'sometimes'\n");
        assert!(text.contains("line 2") && text.contains("`auto`, `off`, `on`"), "{text}");
    }

    #[test]
    fn broken_toml_names_the_line() {
        let text = refused("[run]\nseed = \n");
        assert!(text.starts_with("test.toml, line 2:"), "{text}");
    }

    #[test]
    fn overrides_come_last_and_are_held_to_the_same_rules() {
        let set = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|s| (*s).to_owned()).collect();
            Config::parse("test.toml", "[train]\nk = 4\nlr = 0.1\n", &given)
        };
        let config = set(&["train.k=8", "run.name=second", "evaluate.arms=[\"base\"]"]).unwrap();
        assert_eq!((config.train.k, config.train.lr), (8, 0.1));
        assert_eq!((config.run.name.as_str(), config.evaluate.arms), ("second", vec!["base".to_owned()]));
        assert_eq!(
            set(&["train.kk=8"]).unwrap_err().to_string(),
            "--set train.kk=8, line 1: unknown key `kk` in [train]; the nearest known key is `k`"
        );
        assert!(matches!(set(&["train"]).unwrap_err(), ConfigError::Override(_)));
        assert!(set(&["train.k=1"]).unwrap_err().to_string().contains("train.k"));
    }

    #[test]
    fn an_impossible_value_names_its_key_and_line() {
        let text = refused("[run]\nseed = 1\n[train]\ntemperature = 0\n");
        assert!(text.starts_with("test.toml: train.temperature = 0 (line 4): "), "{text}");
    }
}
