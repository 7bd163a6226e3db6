//! One living process and the exchange of lines with it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use super::protocol::{Envelope, Request, parse_reply};
use super::spawn::{Launch, spawn};
use crate::failure::EnvError;

/// How much of the end of standard error is kept for messages.
const STDERR_TAIL_BYTES: usize = 2048;

/// How long a process that closed its output may take to end, so that its exit status can be reported.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// A process that speaks the protocol. Dropping it kills the process group and collects the exit status, so that no
/// zombie stays.
pub(super) struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Bytes of standard output behind the last line that was taken.
    inbox: Vec<u8>,
    stderr_tail: Vec<u8>,
    next_id: u64,
}

impl Worker {
    /// Starts a process.
    pub(super) fn start(launch: &Launch) -> Result<Self, EnvError> {
        let program = || launch.program.display().to_string();
        let failed = |e: io::Error| EnvError::Gone(format!("{} could not be started: {e}", program()));
        let mut child = spawn(launch).map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(io::Error::other("its streams are no pipes")));
        };
        let worker =
            Self { child, stdin, stdout, stderr: Some(stderr), inbox: Vec::new(), stderr_tail: Vec::new(), next_id: 1 };
        let stderr = worker.stderr.as_ref().map(AsRawFd::as_raw_fd);
        for fd in [Some(worker.stdin.as_raw_fd()), Some(worker.stdout.as_raw_fd()), stderr].into_iter().flatten() {
            set_nonblocking(fd).map_err(failed)?;
        }
        Ok(worker)
    }

    /// The process's id.
    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Asks and waits for the reply: the outer error says that the process is of no further use, the inner one is its
    /// own answer.
    pub(super) fn ask(
        &mut self,
        request: &Request,
        wait: Duration,
        max_line_bytes: usize,
    ) -> Result<Result<serde_json::Value, String>, EnvError> {
        let id = self.next_id;
        self.next_id += 1;
        let envelope = Envelope { id, request: request.clone() };
        let mut line = serde_json::to_vec(&envelope).map_err(|e| EnvError::Misuse(e.to_string()))?;
        line.push(b'\n');
        let reply = self.exchange(&line, wait, max_line_bytes)?;
        parse_reply(&reply, id).map_err(EnvError::Garbage)
    }

    /// Bytes of memory that the process has in use, where the kernel says.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        // SAFETY: sysconf reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Some(pages * u64::try_from(page).ok()?)
    }

    /// Writes a line and reads one, until the deadline.
    fn exchange(&mut self, line: &[u8], wait: Duration, max_line_bytes: usize) -> Result<Vec<u8>, EnvError> {
        let deadline = Instant::now() + wait;
        let mut unsent = self.send(line);
        // The index up to which the inbox is known to hold no line's end.
        let mut searched = 0;
        loop {
            if let Some(end) = self.inbox[searched..].iter().position(|b| *b == b'\n') {
                let rest = self.inbox.split_off(searched + end + 1);
                let mut reply = std::mem::replace(&mut self.inbox, rest);
                reply.pop();
                return Ok(reply);
            }
            searched = self.inbox.len();
            if searched > max_line_bytes {
                return Err(EnvError::Garbage(format!("a line above the limit of {max_line_bytes} bytes")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EnvError::Deadline { seconds: wait.as_secs_f64().ceil() as u64 });
            }
            let stderr = self.stderr.as_ref().map(AsRawFd::as_raw_fd);
            let writing = (!unsent.is_empty()).then(|| self.stdin.as_raw_fd());
            let ready = poll(self.stdout.as_raw_fd(), stderr, writing, left)
                .map_err(|e| EnvError::Gone(format!("its pipes cannot be watched: {e}")))?;
            if ready.stderr {
                self.read_stderr();
            }
            if ready.stdin {
                unsent = self.send(unsent);
            }
            if ready.stdout {
                let mut buffer = [0; 16 << 10];
                match self.stdout.read(&mut buffer) {
                    Ok(0) => return Err(self.gone()),
                    Ok(n) => self.inbox.extend_from_slice(&buffer[..n]),
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(e) => return Err(EnvError::Gone(format!("its output cannot be read: {e}"))),
                }
            }
        }
    }

    /// Writes what the pipe takes without waiting, and returns the rest.
    fn send<'a>(&mut self, unsent: &'a [u8]) -> &'a [u8] {
        match self.stdin.write(unsent) {
            Ok(n) => &unsent[n..],
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => unsent,
            // It no longer reads; whether it ended, its output says.
            Err(_) => &[],
        }
    }

    /// Takes what standard error holds, and keeps the end of it.
    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut buffer = [0; 4096];
        // At most 64 KiB at a time: a process that writes without end must not hold us here.
        for _ in 0..16 {
            match stderr.read(&mut buffer) {
                Ok(0) => {
                    self.stderr = None;
                    break;
                }
                Ok(n) => {
                    self.stderr_tail.extend_from_slice(&buffer[..n]);
                    let surplus = self.stderr_tail.len().saturating_sub(STDERR_TAIL_BYTES);
                    self.stderr_tail.drain(..surplus);
                }
                Err(_) => break,
            }
        }
    }

    /// The error for a process that closed its output: with its exit status and the end of its standard error.
    fn gone(&mut self) -> EnvError {
        let until = Instant::now() + EXIT_GRACE;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => break "it closed its output and goes on running".to_string(),
            }
        };
        self.read_stderr();
        let tail = String::from_utf8_lossy(&self.stderr_tail);
        let tail = tail.trim();
        EnvError::Gone(if tail.is_empty() { status } else { format!("{status}; it wrote: {tail}") })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Ok(group) = libc::pid_t::try_from(self.child.id())
            && matches!(self.child.try_wait(), Ok(None))
        {
            // SAFETY: the child leads this group (see `Launch::command`) and has not been waited for, so the id is
            // still its own.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        // Killed or ended: this returns at once.
        let _ = self.child.wait();
    }
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: `fd` is an open pipe of ours; F_GETFL and F_SETFL touch nothing but its flags.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Which pipes can be read or written without waiting, or have ended.
struct Ready {
    stdout: bool,
    stderr: bool,
    stdin: bool,
}

/// Waits until one of the pipes is ready, at most `wait`.
fn poll(stdout: RawFd, stderr: Option<RawFd>, stdin: Option<RawFd>, wait: Duration) -> io::Result<Ready> {
    // A negative descriptor is passed over by the kernel.
    let entry = |fd: Option<RawFd>, events| libc::pollfd { fd: fd.unwrap_or(-1), events, revents: 0 };
    let mut fds = [entry(Some(stdout), libc::POLLIN), entry(stderr, libc::POLLIN), entry(stdin, libc::POLLOUT)];
    // Rounded up, so that a wait of less than a millisecond does not spin.
    let milliseconds = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX - 1) + 1;
    // SAFETY: `fds` is an array of three valid entries that outlives the call.
    if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let [stdout, stderr, stdin] = fds.map(|fd| fd.revents != 0);
    Ok(Ready { stdout, stderr, stdin })
}
