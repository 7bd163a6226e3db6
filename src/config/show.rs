//! The effective configuration as TOML, with the documentation of each key above it. What is printed reads back as the
//! same configuration.

use std::fmt::Write;

use super::read::ConfigFile;
use super::section::Key;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Keys and values.
    Values,
    /// The documentation of each key as comments above it.
    Documented,
}

/// A configuration as TOML.
pub fn to_toml<T: ConfigFile>(config: &T, detail: Detail) -> String {
    let Ok(toml::Value::Table(values)) = toml::Value::try_from(config) else {
        unreachable!("a table of plain values is a TOML table");
    };
    let mut out = String::new();
    table(&mut out, "", &T::keys(), &values, detail);
    out.trim_start().to_owned()
}

fn comment(out: &mut String, key: &Key, detail: Detail) {
    if detail == Detail::Documented {
        for line in key.doc.lines() {
            let _ = writeln!(out, "#{line}");
        }
    }
}

/// Plain keys first, then the tables below: TOML's order.
fn table(out: &mut String, path: &str, keys: &[Key], values: &toml::Table, detail: Detail) {
    for key in keys.iter().filter(|key| key.children.is_empty()) {
        comment(out, key, detail);
        match values.get(key.name) {
            Some(value) => {
                let _ = writeln!(out, "{} = {value}", key.name);
            }
            // Not set, and without a default: shown, so that it can be found.
            None => {
                let _ = writeln!(out, "# {} =", key.name);
            }
        }
    }
    for key in keys.iter().filter(|key| !key.children.is_empty()) {
        let below = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let items: Vec<&toml::Table> = match values.get(key.name) {
            Some(toml::Value::Table(inner)) => vec![inner],
            Some(toml::Value::Array(items)) => items.iter().filter_map(toml::Value::as_table).collect(),
            _ => Vec::new(),
        };
        for item in items {
            out.push('\n');
            comment(out, key, detail);
            let _ = if key.list { writeln!(out, "[[{below}]]") } else { writeln!(out, "[{below}]") };
            table(out, &below, &key.children, item, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::section::Documented;

    #[test]
    fn what_is_shown_reads_back_as_the_same_configuration() {
        let text = "[run]\nname = 'a'\ndir = 'x/y'\n[train]\nlr = 1e-5\n[[baseline]]\nname = 'grpo'\n[[baseline]]\n\
                    name = 'wide'\nrank = 64\n[evaluate]\narms = ['base', 'grpo', 'wide']\n";
        let config = Config::parse("test.toml", text, &[]).unwrap();
        for detail in [Detail::Values, Detail::Documented] {
            assert_eq!(Config::parse("shown", &to_toml(&config, detail), &[]).unwrap(), config);
        }
    }

    #[test]
    fn every_key_is_documented_and_shown() {
        fn walk(keys: &[Key], shown: &str) {
            for key in keys {
                assert!(key.doc.trim().len() > 5, "{} has no documentation", key.name);
                assert!(key.list || shown.contains(key.name), "{} is not shown", key.name);
                if !key.list {
                    walk(&key.children, shown);
                }
            }
        }
        walk(&Config::keys(), &to_toml(&Config::default(), Detail::Documented));
    }
}
