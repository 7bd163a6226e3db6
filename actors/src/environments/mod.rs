//! The environment server: episodes on threads that may block, and what becomes of those that do not come back.
//!
//! An episode's calls block: they run on a pool of threads, each call under a deadline that begins when the call does,
//! not when it is queued. A call that passes its deadline is given up together with its episode and its thread; the
//! thread is replaced, and ends by itself if the call ever returns. Too many threads that never return stop the run.

mod pool;
mod server;

pub(crate) use pool::panic_text;
pub(crate) use server::{EnvArguments, EnvMessage, EnvServer, Opened};
pub use server::{EnvFailure, EnvironmentSource};
