//! The kernel's limits on a worker: the backstop where the interpreter's own limits fail.

use std::io;

/// Address space of a worker. Counts reserved as well as used memory, so it is generous.
const ADDRESS_SPACE_BYTES: u64 = 4 << 30;

/// Seconds of processor time beyond a call's own limit before the kernel ends the worker.
const CPU_GRACE_SECONDS: u64 = 2;

fn set(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` is a valid rlimit for the duration of the call, which reads it and nothing else.
    if unsafe { libc::setrlimit(resource, &limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Confines this process for good: bounded address space, no core dumps, no file writes. For a worker's start.
///
/// # Errors
/// Where the kernel refuses.
pub fn confine() -> io::Result<()> {
    set(libc::RLIMIT_AS, ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES)?;
    set(libc::RLIMIT_CORE, 0, 0)?;
    // A worker writes to its pipes only, and pipes are not counted.
    set(libc::RLIMIT_FSIZE, 0, 0)
}

/// Lets this process use `seconds` of processor time from now on, and a little more; then the kernel ends it.
pub(super) fn allow_cpu_seconds(seconds: f64) {
    // SAFETY: an all-zero rusage is a valid value, and getrusage writes to it only.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
    };
    let soft = used.max(0) as u64 + seconds.ceil() as u64 + CPU_GRACE_SECONDS;
    // The hard limit stays, so that the next call can raise the soft one again. A refusal leaves the limit of the call
    // before, and the client's deadline as the backstop.
    let _ = set(libc::RLIMIT_CPU, soft, libc::RLIM_INFINITY);
}
