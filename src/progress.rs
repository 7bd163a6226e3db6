//! Progress for a person: bars with an estimate where standard error is a terminal, and otherwise a plain line now and then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trace_actors::progress::{Progress, ProgressEvent};

/// Time between plain lines of one task.
const LINE_EVERY: Duration = Duration::from_secs(20);

/// What is under way.
struct Task {
    label: String,
    total: u64,
    /// Done before the present unit.
    settled: u64,
    /// Done in all.
    done: u64,
    begun: Instant,
    /// When sampling began, and how much was done then: what is read back counts for no estimate.
    working: Option<(Instant, u64)>,
    said: Instant,
    tokens: u64,
    tokens_settled: u64,
}

/// Shows one task at a time.
pub struct Display {
    task: Mutex<Option<Task>>,
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Default for Display {
    fn default() -> Self {
        Self::new(console::Term::stderr().is_term(), false)
    }
}

impl Display {
    /// Bars for a terminal, else plain lines; nothing at all where `quiet`.
    pub fn new(terminal: bool, quiet: bool) -> Self {
        let bar = (terminal && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
            let style = ProgressStyle::with_template("{prefix:<34} {bar:28} {pos:>6}/{len:<6} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { task: Mutex::new(None), bar, quiet }
    }

    /// Shows nothing.
    pub fn silent() -> Self {
        Self::new(false, true)
    }

    /// A task of `total` rollouts (or other things) begins; it ends with [`Display::end`].
    pub fn begin(&self, label: &str, total: u64) {
        let now = Instant::now();
        let task = Task {
            label: label.to_owned(),
            total,
            settled: 0,
            done: 0,
            begun: now,
            working: None,
            said: now,
            tokens: 0,
            tokens_settled: 0,
        };
        *self.lock() = Some(task);
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(total);
            bar.set_prefix(label.to_owned());
            bar.set_message("");
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        } else {
            self.line(&format!("{label}: 0 of {total}"));
        }
    }

    /// So many of the task are done for good.
    pub fn settle(&self, count: u64) {
        let mut guard = self.lock();
        if let Some(task) = guard.as_mut() {
            task.settled += count;
            task.done = task.settled;
            task.tokens_settled += std::mem::take(&mut task.tokens);
            self.show(task);
        }
    }

    /// The task ends.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Some(task) = self.lock().take() {
            let took = duration(task.begun.elapsed());
            let sampled = match task.tokens_settled + task.tokens {
                0 => String::new(),
                tokens => {
                    let rate = tokens as f64 / task.begun.elapsed().as_secs_f64().max(1e-3);
                    format!(", {rate:.0} sampled tokens/s")
                }
            };
            self.line(&format!("{}: {} done in {took}{sampled}", task.label, task.done));
        }
    }

    /// Says a line above the bar.
    pub fn line(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) if !bar.is_hidden() => bar.println(text),
            _ => eprintln!("{text}"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Task>> {
        // A task is plain numbers: whatever a panicking thread left is good enough to show.
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, task: &mut Task) {
        let left = task.estimate().map_or_else(String::new, |left| format!("about {} left", duration(left)));
        if let Some(bar) = &self.bar {
            bar.set_position(task.done);
            bar.set_message(left);
        } else if task.said.elapsed() >= LINE_EVERY {
            task.said = Instant::now();
            let left = if left.is_empty() { left } else { format!(", {left}") };
            self.line(&format!("{}: {} of {}{left}", task.label, task.done, task.total));
        }
    }
}

impl Task {
    /// Time left at the pace so far; `None` until there is one.
    fn estimate(&self) -> Option<Duration> {
        let (since, before) = self.working?;
        let done = self.done.checked_sub(before)?;
        let left = self.total.saturating_sub(self.done);
        let seconds = since.elapsed().as_secs_f64();
        (done > 0 && left > 0 && seconds > 1.0).then(|| Duration::from_secs_f64(seconds / done as f64 * left as f64))
    }
}

/// A duration as a person says it.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

impl Progress for Display {
    fn event(&self, event: ProgressEvent<'_>) {
        match event {
            ProgressEvent::Advanced { done, sampled_tokens, .. } => {
                let mut guard = self.lock();
                let Some(task) = guard.as_mut() else { return };
                if task.working.is_none() {
                    task.working = Some((Instant::now(), task.settled));
                }
                task.done = (task.settled + done).min(task.total.max(task.settled));
                task.tokens = sampled_tokens;
                self.show(task);
            }
            ProgressEvent::Noted { message } => self.line(message),
            ProgressEvent::Begun { .. } | ProgressEvent::Ended { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_within_a_unit_adds_to_what_is_settled() {
        let display = Display::silent();
        display.begin("rollouts", 100);
        display.event(ProgressEvent::Advanced { unit: "a", done: 30, sampled_tokens: 10 });
        display.settle(40);
        display.event(ProgressEvent::Advanced { unit: "b", done: 5, sampled_tokens: 10 });
        let done = display.lock().as_ref().map(|task| (task.settled, task.done));
        assert_eq!(done, Some((40, 45)));
    }

    #[test]
    fn what_was_read_back_counts_for_no_estimate() {
        let display = Display::silent();
        display.begin("rollouts", 100);
        display.settle(50);
        assert_eq!(display.lock().as_ref().and_then(Task::estimate), None);
        display.event(ProgressEvent::Advanced { unit: "b", done: 25, sampled_tokens: 10 });
        let left = display.lock().as_mut().and_then(|task| {
            task.working = task.working.map(|(since, before)| (since - Duration::from_secs(10), before));
            task.estimate()
        });
        assert_eq!(left.unwrap().as_secs(), 10, "25 took 10 s, so 25 more take as long");
    }

    #[test]
    fn durations_are_said_in_one_unit() {
        let said = |seconds: f64| duration(Duration::from_secs_f64(seconds));
        assert_eq!([said(0.25), said(42.0), said(600.0), said(9000.0)], ["0.2 s", "42 s", "10 min", "2.5 h"]);
    }
}
