//! What happens when a worker fails: it alone is replaced, and its episodes go on as if nothing had been.

mod support;

use std::time::{Duration, Instant};

use support::{COUNTER, add, counter_with, load, one_process, tight};
use trace_envs::process::ProcessLimits;
use trace_envs::sandbox::{Limits, PythonEnvironment};
use trace_envs::{Action, EnvError, Environment};

fn kill(pid: u32) {
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// The state letter of a process, `Z` for a zombie; `None` where it is gone altogether.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn only_worker(env: &PythonEnvironment) -> u32 {
    let ids = env.process_ids();
    assert_eq!(ids.len(), 1);
    ids[0]
}

#[test]
fn episodes_are_rebuilt_after_their_worker_was_killed() {
    let env = load(COUNTER).unwrap();
    let mut episodes: Vec<_> = (0..10).map(|seed| env.reset(seed, 1).unwrap()).collect();
    for (i, episode) in episodes.iter_mut().enumerate() {
        episode.step(0, &add(i as i64)).unwrap();
        episode.step(1, &add(1)).unwrap();
    }
    let worker = only_worker(&env);
    kill(worker);
    for (i, episode) in episodes.iter_mut().enumerate() {
        let reply = episode.step(2, &add(10)).unwrap();
        assert_eq!(reply.messages[0].content, format!("{{\"count\":{}}}", i + 11));
        assert_eq!(episode.verdict().unwrap().reward, 0.0);
    }
    assert_ne!(only_worker(&env), worker);
    assert_eq!(state(worker), None, "the killed worker was not collected");
}

#[test]
fn an_untouched_run_and_one_with_a_kill_before_every_call_give_the_same_replies() {
    let run = |disturbed: bool| {
        let env = load(COUNTER).unwrap();
        let mut episode = env.reset(4, 2).unwrap();
        let mut replies = Vec::new();
        for step in 0..5 {
            if disturbed {
                kill(only_worker(&env));
            }
            let action = episode.oracle().unwrap().unwrap();
            if disturbed {
                kill(only_worker(&env));
            }
            replies.push(episode.step(step, &if step == 0 { Action::say("What?") } else { action }).unwrap());
            if replies.last().unwrap().done {
                break;
            }
        }
        (replies, episode.verdict().unwrap())
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn a_call_that_kills_its_worker_each_time_is_given_up_and_the_other_episodes_live() {
    // The memory of a worker is above the interpreter's limit here, so that the kernel's is what ends it.
    let body = "if args['n'] == 13:\n    x = 'a' * (6 * 1024 * 1024 * 1024)";
    let limits = Limits { memory_bytes: 1 << 40, seconds: 2.0, ..Limits::default() };
    let env = PythonEnvironment::from_source(
        "test.py",
        &counter_with("def call(state, tool, args):", body),
        limits,
        one_process(),
    )
    .unwrap();
    let mut victim = env.reset(1, 1).unwrap();
    let mut neighbour = env.reset(2, 1).unwrap();
    neighbour.step(0, &add(1)).unwrap();
    let error = victim.step(0, &add(13)).unwrap_err();
    assert!(matches!(&error, EnvError::Gone(reason) if reason.contains("65")), "{error}");
    assert_eq!(neighbour.step(1, &add(1)).unwrap().messages[0].content, "{\"count\":2}");
    assert_eq!(victim.step(0, &add(2)).unwrap().messages[0].content, "{\"count\":2}");
}

#[test]
fn a_worker_that_hangs_is_ended_at_the_deadline() {
    let env = load(COUNTER).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    episode.step(0, &add(1)).unwrap();
    let worker = only_worker(&env);
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(worker as libc::pid_t, libc::SIGSTOP) };
    let started = Instant::now();
    assert_eq!(episode.step(1, &add(1)).unwrap().messages[0].content, "{\"count\":2}");
    assert!(started.elapsed() >= Duration::from_secs(4), "one_process() waits 5 s");
    assert_eq!(state(worker), None);
}

#[test]
fn a_call_past_the_deadline_is_ended_by_the_client_whatever_the_interpreter_allows() {
    // A limit of the interpreter far above the deadline stands for one that does not hold.
    let limits = Limits { seconds: 3600.0, ..tight() };
    let process = ProcessLimits { call_deadline: Duration::from_millis(300), ..one_process() };
    let source = counter_with("def call(state, tool, args):", "while True:\n    pass");
    let env = PythonEnvironment::from_source("test.py", &source, limits, process).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    let started = Instant::now();
    assert_eq!(episode.step(0, &add(1)), Err(EnvError::Deadline { seconds: 1 }));
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(env.process_ids().is_empty());
}

#[test]
fn a_death_while_judging_is_a_failure_of_the_environment_and_no_reward() {
    let body = "x = 'a' * (6 * 1024 * 1024 * 1024)";
    let limits = Limits { memory_bytes: 1 << 40, ..Limits::default() };
    let source = counter_with("def verdict(state):", body);
    let env = PythonEnvironment::from_source("test.py", &source, limits, one_process()).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    assert!(matches!(episode.verdict(), Err(EnvError::Gone(_))));
}

#[test]
fn a_worker_that_leaks_is_replaced_and_its_episodes_live_on() {
    // Any worker is above a limit of one byte: it is replaced at every look at its memory.
    let process = ProcessLimits { max_resident_bytes: 1, ..one_process() };
    let env = PythonEnvironment::from_source("test.py", COUNTER, tight(), process).unwrap();
    let mut episodes: Vec<_> = (0..10).map(|seed| env.reset(seed, 1).unwrap()).collect();
    let mut workers = std::collections::HashSet::new();
    for step in 0..7u64 {
        for episode in &mut episodes {
            workers.extend(env.process_ids());
            assert_eq!(episode.step(step, &add(1)).unwrap().messages[0].content, format!("{{\"count\":{}}}", step + 1));
        }
    }
    assert!(workers.len() >= 3, "{workers:?}");
}

#[test]
fn finished_episodes_are_forgotten_by_the_worker() {
    let env = load(COUNTER).unwrap();
    // Above the number that a worker holds at a time.
    for seed in 0..3000 {
        env.reset(seed, 1).unwrap();
    }
    let open: Result<Vec<_>, _> = (0..1100).map(|seed| env.reset(seed, 1)).collect();
    assert!(matches!(open.map(drop), Err(EnvError::Reset { reason, .. }) if reason.contains("are open already")));
    assert!(env.reset(1, 1).is_ok());
}

#[test]
fn a_dropped_environment_leaves_no_process_and_no_zombie() {
    let process = ProcessLimits { processes: 3, ..one_process() };
    let env = PythonEnvironment::from_source("test.py", COUNTER, tight(), process).unwrap();
    let episodes: Vec<_> = (0..6).map(|seed| env.reset(seed, 1).unwrap()).collect();
    let workers = env.process_ids();
    assert_eq!(workers.len(), 3);
    drop(episodes);
    drop(env);
    for worker in workers {
        assert_eq!(state(worker), None);
    }
}

#[test]
fn a_worker_ends_with_the_program_that_started_it() {
    // This test starts itself as the program, which loads an environment, says which worker it has, and is killed.
    if std::env::var_os("TRACE_TEST_PARENT").is_some() {
        let env = load(COUNTER).unwrap();
        println!("worker {}", only_worker(&env));
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    use std::io::BufRead;
    let mut program = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_worker_ends_with_the_program_that_started_it", "--nocapture"])
        .env("TRACE_TEST_PARENT", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(program.stdout.take().unwrap());
    let worker: u32 =
        output.lines().find_map(|line| line.unwrap().split_once("worker ").map(|(_, id)| id.parse().unwrap())).unwrap();
    assert!(state(worker).is_some());
    program.kill().unwrap();
    program.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    // Whoever inherits the orphan collects it; a zombie there is dead all the same.
    while !matches!(state(worker), None | Some('Z')) {
        assert!(Instant::now() < until, "the worker outlived its program");
        std::thread::sleep(Duration::from_millis(10));
    }
}
