//! Environments by name, started when they are needed.

mod support;

use std::sync::Arc;

use support::{COUNTER, one_process, tight};
use trace_envs::{EnvError, EnvRegistry};

fn registry() -> EnvRegistry {
    EnvRegistry::empty(tight(), one_process())
}

#[test]
fn a_file_is_started_once_and_shared() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("counter.py"), COUNTER).unwrap();
    let registry = registry();
    registry.add_folder(folder.path()).unwrap();
    let first = registry.get("counter").unwrap();
    assert!(Arc::ptr_eq(&first, &registry.get("counter").unwrap()));
    assert_eq!(first.spec().levels, 2);
    assert!(first.reset(1, 1).is_ok());
}

#[test]
fn a_run_s_own_file_replaces_the_library_s_of_the_same_name() {
    let folder = tempfile::tempdir().unwrap();
    let own = COUNTER.replace("\"name\": \"counter\"", "\"name\": \"information_gathering\"");
    std::fs::write(folder.path().join("information_gathering.py"), own).unwrap();
    let registry = EnvRegistry::builtin();
    assert_eq!(registry.get("information_gathering").unwrap().spec().levels, 3);
    registry.add_folder(folder.path()).unwrap();
    assert_eq!(registry.get("information_gathering").unwrap().spec().levels, 2);
}

#[test]
fn a_file_that_calls_itself_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.py"), COUNTER).unwrap();
    let registry = registry();
    registry.add_folder(folder.path()).unwrap();
    let Err(EnvError::Load { name, reason }) = registry.get("other").map(drop) else { panic!("loaded") };
    assert_eq!(name, "other");
    assert!(reason.contains("calls itself \"counter\""), "{reason}");
}
