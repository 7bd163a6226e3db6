//! The direction of dependencies, and that lints and versions are stated once.

use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

fn manifest(folder: &str) -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("Cargo.toml");
    toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

/// Names of all dependencies, those of builds and tests included.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

fn ours(folder: &str) -> Vec<String> {
    dependencies(&manifest(folder)).into_iter().filter(|name| name.starts_with("trace-")).collect()
}

#[test]
fn dependencies_point_from_src_to_actors_to_policy_and_envs() {
    assert_eq!(ours("envs"), [""; 0], "envs knows none of ours");
    assert_eq!(ours("policy"), [""; 0], "policy knows none of ours");
    assert_eq!(ours("actors"), ["trace-envs", "trace-policy"]);
    assert_eq!(ours("."), ["trace-actors", "trace-envs", "trace-policy"]);
}

#[test]
fn each_crate_is_worth_using_alone() {
    for (folder, foreign) in [
        ("envs", ["tch", "tokenizers", "safetensors", "arrow", "parquet", "ractor", "clap"].as_slice()),
        ("policy", ["monty", "arrow", "parquet", "ractor", "tokio", "clap"].as_slice()),
        ("actors", ["monty", "clap", "miette", "indicatif"].as_slice()),
    ] {
        let has = dependencies(&manifest(folder));
        let found: Vec<&&str> = foreign.iter().filter(|name| has.contains(**name)).collect();
        assert!(found.is_empty(), "{folder} depends on {found:?}");
    }
}

#[test]
fn every_member_of_the_workspace_is_known_here() {
    let root = manifest(".");
    let members: Vec<&str> =
        root["workspace"]["members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(BTreeSet::from_iter(members), BTreeSet::from(["actors", "policy", "envs"]));
}

#[test]
fn lints_and_versions_are_stated_once_in_the_workspace() {
    for folder in [".", "actors", "policy", "envs"] {
        let manifest = manifest(folder);
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{folder}: lints");
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(kind).and_then(Value::as_table) else { continue };
            for (name, value) in table {
                let inherited = value.as_table().and_then(|value| value.get("workspace")?.as_bool());
                assert_eq!(inherited, Some(true), "{folder}: {name} states its own version");
            }
        }
    }
}
