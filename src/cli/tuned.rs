//! The process's environment for LibTorch. It is read before `main`, so the program starts itself anew with it.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// What is set where the caller has not set it:
/// - OpenMP's threads sleep at barriers. Spinning, two of them on two cores take four to thirty times as long as soon as
///   anything else runs: a compiler, an environment's worker, a second run.
/// - glibc keeps freed memory. By default it hands every large tensor back to the kernel, and the next one is paged in
///   again: a fifth to a third of the time of a training step.
const SETTINGS: [(&str, &str); 2] = [
    ("OMP_WAIT_POLICY", "passive"),
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184"),
];

/// Starts this program anew, in place of itself, under [`SETTINGS`]; returns at once where they are in place.
pub(super) fn ensure() {
    let missing: Vec<_> = SETTINGS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    let Ok(program) = std::env::current_exe() else { return };
    if missing.is_empty() {
        return;
    }
    // Only returns where it fails; then the program goes on, slower.
    let error = Command::new(program).args(std::env::args_os().skip(1)).envs(missing).exec();
    tracing::warn!("cannot start anew with settings for LibTorch, going on without: {error}");
}
