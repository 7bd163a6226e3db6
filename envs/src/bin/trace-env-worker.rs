//! The sandbox's worker: runs one Python environment and speaks the environment protocol on its standard streams.
//!
//! Started by `trace_envs::sandbox`, not by hand. It writes nothing but replies to standard output.

use std::io;
use std::process::ExitCode;

use trace_envs::sandbox::{confine, serve};

/// Counts what is allocated, so that the interpreter can refuse to exceed a call's memory; past the limit and some
/// headroom the process ends with status 65.
#[global_allocator]
static ALLOCATOR: monty_alloc::LimitedAllocator = monty_alloc::LimitedAllocator;

/// Stack of the thread that interprets: parser and interpreter recurse with the depth of the code that they are given.
const STACK_BYTES: usize = 256 << 20;

fn main() -> ExitCode {
    if let Err(e) = confine() {
        eprintln!("trace-env-worker: the kernel refuses the worker's limits: {e}");
        return ExitCode::FAILURE;
    }
    let interpreter = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(|| serve(io::BufReader::new(io::stdin()), io::stdout().lock()));
    match interpreter.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(Ok(Err(e))) => {
            eprintln!("trace-env-worker: {e}");
            ExitCode::FAILURE
        }
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("trace-env-worker: no thread to interpret on: {e}");
            ExitCode::FAILURE
        }
    }
}
