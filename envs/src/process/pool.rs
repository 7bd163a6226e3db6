//! The processes of one environment: started when needed, replaced when they fail.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::protocol::Request;
use super::spawn::Launch;
use super::worker::Worker;
use crate::failure::EnvError;

/// What the client grants an environment's processes.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessLimits {
    /// Processes that share the environment's episodes.
    pub processes: usize,
    /// How long one call may take.
    pub call_deadline: Duration,
    /// How often a call is tried, with a new process each time, before its episode is given up.
    pub attempts: u32,
    /// The longest line that a process may write.
    pub max_line_bytes: usize,
    /// Memory in use above which a process is replaced after a call, as one that leaks.
    pub max_resident_bytes: u64,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            processes: 2,
            call_deadline: Duration::from_secs(10),
            attempts: 3,
            max_line_bytes: 4 << 20,
            max_resident_bytes: 1 << 30,
        }
    }
}

/// Calls between two looks at a process's memory: reading it costs about as much as a call.
const CALLS_PER_MEMORY_LOOK: u64 = 32;

/// A place for a process.
pub(super) struct Seat {
    worker: Option<Worker>,
    /// Counts the processes that sat here: an episode that was opened in an earlier one must be rebuilt.
    generation: u64,
    calls: u64,
}

/// The processes of one environment.
pub(super) struct Pool {
    launch: Launch,
    greeting: Option<Request>,
    pub(super) limits: ProcessLimits,
    seats: Vec<Mutex<Seat>>,
    /// Episodes that were dropped, by seat; the process hears of them at its next call, because a drop must not wait.
    closed: Vec<Mutex<Vec<u64>>>,
    next_seat: AtomicUsize,
    next_episode: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is valid after any panic: at worst a process in mid-reply, whose next reply bears the
    // wrong number and is refused.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new(launch: Launch, greeting: Option<Request>, limits: ProcessLimits) -> Self {
        let processes = limits.processes.max(1);
        Self {
            launch,
            greeting,
            limits,
            seats: (0..processes).map(|_| Mutex::new(Seat { worker: None, generation: 0, calls: 0 })).collect(),
            closed: (0..processes).map(|_| Mutex::default()).collect(),
            next_seat: AtomicUsize::new(0),
            next_episode: AtomicU64::new(0),
        }
    }

    /// The seat of a new episode: each in turn.
    pub(super) fn assign(&self) -> usize {
        self.next_seat.fetch_add(1, Ordering::Relaxed) % self.seats.len()
    }

    /// A number for an episode, never given twice.
    pub(super) fn number(&self) -> u64 {
        self.next_episode.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that an episode is no longer needed.
    pub(super) fn close(&self, seat: usize, episode: u64) {
        lock(&self.closed[seat]).push(episode);
    }

    /// The ids of the living processes.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        self.seats.iter().filter_map(|s| lock(s).worker.as_ref().map(Worker::process_id)).collect()
    }

    /// Does `work` with the process of a seat, which is started where there is none. `work` gets a line to the process
    /// and its generation; where it fails with a failure of the process, the process is replaced and `work` tried
    /// again, [`ProcessLimits::attempts`] times in all.
    ///
    /// # Errors
    /// The last failure; or at once an error that is not one of the process.
    pub(super) fn with<T>(
        &self,
        seat: usize,
        mut work: impl FnMut(&mut Line<'_>, u64) -> Result<T, EnvError>,
    ) -> Result<T, EnvError> {
        let mut seated = lock(&self.seats[seat]);
        let mut attempt = 1;
        loop {
            let result = self.attempt(&mut seated, seat, &mut work);
            match result {
                Err(failure @ (EnvError::Deadline { .. } | EnvError::Gone(_) | EnvError::Garbage(_))) => {
                    seated.worker = None;
                    if attempt >= self.limits.attempts {
                        return Err(failure);
                    }
                    tracing::warn!(program = %self.launch.program.display(), attempt, %failure, "environment process replaced");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn attempt<T>(
        &self,
        seated: &mut Seat,
        seat: usize,
        work: &mut impl FnMut(&mut Line<'_>, u64) -> Result<T, EnvError>,
    ) -> Result<T, EnvError> {
        let generation = self.seated(seated)?;
        let Some(worker) = &mut seated.worker else {
            return Err(EnvError::Gone("it was not started".to_string()));
        };
        let mut line = Line { worker, limits: &self.limits };
        let closed = std::mem::take(&mut *lock(&self.closed[seat]));
        if !closed.is_empty() {
            // What it has not forgotten by now went with its process, if this one is newer.
            line.ask(&Request::Close { episodes: closed })?.map_err(EnvError::Garbage)?;
        }
        let result = work(&mut line, generation)?;
        seated.calls += 1;
        if seated.calls.is_multiple_of(CALLS_PER_MEMORY_LOOK)
            && let Some(bytes) = worker.resident_bytes().filter(|b| *b > self.limits.max_resident_bytes)
        {
            tracing::warn!(program = %self.launch.program.display(), bytes, "environment process replaced: it leaks");
            seated.worker = None;
        }
        Ok(result)
    }

    /// Makes sure that a process sits here, and returns its generation.
    fn seated(&self, seated: &mut Seat) -> Result<u64, EnvError> {
        if seated.worker.is_none() {
            let mut worker = Worker::start(&self.launch)?;
            seated.generation += 1;
            if let Some(greeting) = &self.greeting {
                Line { worker: &mut worker, limits: &self.limits }
                    .ask(greeting)?
                    .map_err(|reason| EnvError::Load { name: self.launch.program.display().to_string(), reason })?;
            }
            seated.worker = Some(worker);
        }
        Ok(seated.generation)
    }
}

/// A line to a process, under the pool's limits.
pub(super) struct Line<'a> {
    worker: &'a mut Worker,
    limits: &'a ProcessLimits,
}

impl Line<'_> {
    /// Asks and waits: the outer error is a failure of the process, the inner one its own answer.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Result<serde_json::Value, String>, EnvError> {
        self.worker.ask(request, self.limits.call_deadline, self.limits.max_line_bytes)
    }
}
