//! Which keys two configurations differ in, and whether a run may go on under the new one.

use sha2::{Digest, Sha256};

use super::show::{Detail, to_toml};
use super::tables::{Config, Limits};

/// A key with two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key by its path, such as `train.k`.
    pub key: String,
    /// Its value in the first configuration, as TOML; `None` where it is not set.
    pub was: Option<String>,
    /// Its value in the second.
    pub is: Option<String>,
}

/// Keys that change no result: the run may go on when they differ. Limits only decide what becomes of failures.
const FREE: [&str; 6] = [
    "run.name",
    "run.dir",
    "limits.env_retries",
    "limits.env_step_seconds",
    "limits.env_episode_seconds",
    "limits.policy_seconds",
];

/// All differences but those in keys that change no result, in the order of the keys' names.
pub fn differences(was: &Config, is: &Config) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", &value(was), &value(is), &mut found);
    found.retain(|difference| !FREE.contains(&difference.key.as_str()));
    found
}

/// SHA-256, in hexadecimal, over all that can change a result.
pub fn digest(config: &Config) -> String {
    let mut config = config.clone();
    config.run.name = String::new();
    config.run.dir = None;
    config.limits = Limits::default();
    hex(&Sha256::digest(to_toml(&config, Detail::Values).as_bytes()))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn value(config: &Config) -> toml::Value {
    toml::Value::try_from(config).unwrap_or_else(|_| toml::Value::Table(toml::Table::new()))
}

fn walk(path: &str, was: &toml::Value, is: &toml::Value, found: &mut Vec<Difference>) {
    if let (toml::Value::Table(a), toml::Value::Table(b)) = (was, is) {
        let mut names: Vec<&String> = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))).collect();
        names.sort();
        for name in names {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match (a.get(name), b.get(name)) {
                (Some(x), Some(y)) => walk(&below, x, y, found),
                (x, y) => found.push(Difference {
                    key: below,
                    was: x.map(ToString::to_string),
                    is: y.map(ToString::to_string),
                }),
            }
        }
    } else if was != is {
        found.push(Difference { key: path.to_owned(), was: Some(was.to_string()), is: Some(is.to_string()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_key_and_both_values() {
        let mut other = Config::default();
        other.train.k = 8;
        other.synthesis.calibration.seeds = 5;
        other.synthesis.library = Some("lib".into());
        let found: Vec<String> = differences(&Config::default(), &other)
            .into_iter()
            .map(|d| format!("{}: {} -> {}", d.key, d.was.unwrap_or("-".into()), d.is.unwrap_or("-".into())))
            .collect();
        assert_eq!(
            found,
            ["synthesis.calibration.seeds: 100 -> 5", "synthesis.library: - -> \"lib\"", "train.k: 16 -> 8"]
        );
    }

    #[test]
    fn names_and_places_change_no_result_and_everything_else_does() {
        let base = Config::default();
        let mut renamed = base.clone();
        renamed.run.name = "other".into();
        renamed.run.dir = Some("elsewhere".into());
        assert_eq!((differences(&base, &renamed), digest(&base)), (vec![], digest(&renamed)));
        let mut seeded = base.clone();
        seeded.run.seed = 2;
        assert_ne!(digest(&base), digest(&seeded));
    }
}
