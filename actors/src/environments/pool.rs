//! Threads for calls that block, and may never return.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

/// A job was not begun, is running, or was given up. The one who changes it from `QUEUED` or `RUNNING` decides.
const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const GIVEN_UP: u8 = 2;
const DONE: u8 = 3;

/// Why a blocking call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// It panicked, with this message.
    Panicked(String),
    /// It did not return in time and was given up with its thread.
    Deadline,
    /// More calls were given up and have not returned than the pool tolerates.
    TooManyStuck(usize),
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    state: Arc<AtomicU8>,
    begun: oneshot::Sender<()>,
}

struct Shared {
    jobs: Receiver<Job>,
    /// Threads whose call was given up and has not returned.
    stuck: AtomicUsize,
}

/// A pool of threads. The threads end when the pool is dropped and their calls have returned.
pub(super) struct Pool {
    submit: Sender<Job>,
    shared: Arc<Shared>,
    /// How many threads may be stuck at once.
    tolerated: usize,
}

impl Pool {
    pub(super) fn new(threads: usize, tolerated: usize) -> Self {
        // Its length is bounded by the number of live episodes: each has at most one call under way.
        let (submit, jobs) = unbounded();
        let shared = Arc::new(Shared { jobs, stuck: AtomicUsize::new(0) });
        (0..threads).for_each(|_| spawn_thread(&shared));
        Self { submit, shared, tolerated }
    }

    /// Runs a call on a thread and waits for it at most `deadline` from its beginning.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        deadline: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallFailure> {
        let stuck = self.shared.stuck.load(Ordering::Acquire);
        if stuck > self.tolerated {
            return Err(CallFailure::TooManyStuck(stuck));
        }
        let (begun, begins) = oneshot::channel();
        let (result, mut returned) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(QUEUED));
        let run = Box::new(move || {
            let out = catch_unwind(AssertUnwindSafe(call)).map_err(|panic| CallFailure::Panicked(panic_text(&*panic)));
            // Nobody listens any more where the call was given up: then what it returns is dropped here, on its thread.
            let _ = result.send(out);
        });
        let gone = || CallFailure::Panicked("the thread pool is gone".to_owned());
        self.submit.send(Job { run, state: Arc::clone(&state), begun }).map_err(|_| gone())?;
        // The queue moves: each thread is busy at most for its call's deadline before it is replaced.
        begins.await.map_err(|_| gone())?;
        if let Ok(out) = tokio::time::timeout(deadline, &mut returned).await {
            return out.unwrap_or_else(|_| Err(gone()));
        }
        if state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // It returned in the same moment.
            return returned.await.unwrap_or_else(|_| Err(gone()));
        }
        self.shared.stuck.fetch_add(1, Ordering::AcqRel);
        spawn_thread(&self.shared);
        Err(CallFailure::Deadline)
    }

    /// Runs something on a thread without waiting for it, such as dropping what may block.
    pub(super) fn dispatch(&self, call: impl FnOnce() + Send + 'static) {
        let (begun, _) = oneshot::channel();
        let run = Box::new(move || drop(catch_unwind(AssertUnwindSafe(call))));
        // Where the pool is gone, so is the process.
        let _ = self.submit.send(Job { run, state: Arc::new(AtomicU8::new(QUEUED)), begun });
    }
}

fn spawn_thread(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        while let Ok(job) = shared.jobs.recv() {
            job.state.store(RUNNING, Ordering::Release);
            let _ = job.begun.send(());
            (job.run)();
            if job.state.compare_exchange(RUNNING, DONE, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // The call was given up and another thread has this one's place.
                shared.stuck.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    });
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn a_call_that_never_returns_costs_its_deadline_and_no_other_call() {
        let pool = Pool::new(1, 4);
        let (release, held) = mpsc::channel::<()>();
        let hung = pool.call(SHORT, move || held.recv());
        assert_eq!(hung.await, Err(CallFailure::Deadline));
        assert_eq!(pool.call(LONG, || 7).await, Ok(7), "the thread was replaced");
        assert_eq!(pool.shared.stuck.load(Ordering::Acquire), 1);
        drop(release);
        while pool.shared.stuck.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pool.call(LONG, || 8).await, Ok(8));
    }

    #[tokio::test]
    async fn a_deadline_begins_with_the_call_not_with_the_queue() {
        let pool = Arc::new(Pool::new(1, 4));
        let slow = |pool: Arc<Pool>| async move {
            pool.call(Duration::from_millis(200), || std::thread::sleep(Duration::from_millis(60))).await
        };
        let calls: Vec<_> = (0..5).map(|_| tokio::spawn(slow(Arc::clone(&pool)))).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), Ok(()), "queued for longer than its deadline, but ran shorter");
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_its_call_alone() {
        let pool = Pool::new(1, 4);
        let failed: Result<(), _> = pool.call(LONG, || panic!("out of records")).await;
        assert_eq!(failed, Err(CallFailure::Panicked("out of records".to_owned())));
        assert_eq!(pool.call(LONG, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn too_many_calls_that_never_return_are_said_not_piled_up() {
        let pool = Pool::new(1, 2);
        let (_release, held) = crossbeam_channel::bounded::<()>(0);
        for _ in 0..3 {
            let held = held.clone();
            assert_eq!(pool.call(SHORT, move || held.recv().is_ok()).await, Err(CallFailure::Deadline));
        }
        assert_eq!(pool.call(LONG, || 7).await, Err(CallFailure::TooManyStuck(3)));
    }
}
