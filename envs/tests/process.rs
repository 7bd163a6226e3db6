//! Environments as programs of their own, and what they may do wrong.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::add;
use tempfile::TempDir;
use trace_envs::process::{Launch, ProcessEnvironment, ProcessLimits};
use trace_envs::{Action, EnvError, Environment, Episode};

fn launch(fault: &str, folder: &Path) -> Launch {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/external_env.py");
    let mut launch = Launch::new("python3");
    launch.arguments = [script.to_str().unwrap(), fault, folder.to_str().unwrap()].map(str::to_string).to_vec();
    launch
}

fn limits() -> ProcessLimits {
    ProcessLimits { processes: 1, call_deadline: Duration::from_secs(3), attempts: 2, ..ProcessLimits::default() }
}

/// The environment with this fault; its processes leave a file each in the folder.
fn start(fault: &str) -> (ProcessEnvironment, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("starts");
    std::fs::create_dir(&folder).unwrap();
    (ProcessEnvironment::start(launch(fault, &folder), limits()).unwrap(), dir)
}

fn starts(dir: &TempDir) -> usize {
    std::fs::read_dir(dir.path().join("starts")).unwrap().count()
}

fn say(episode: &mut Box<dyn Episode>, step: u64, n: i64) -> Result<String, EnvError> {
    episode.step(step, &add(n)).map(|reply| reply.messages[0].content.clone())
}

#[test]
fn a_program_that_speaks_the_protocol_is_an_environment() {
    let (env, dir) = start("none");
    assert_eq!(env.spec().name, "external");
    let mut episode = env.reset(1, 0).unwrap();
    assert_eq!(say(&mut episode, 0, 2), Ok("2".into()));
    assert_eq!(say(&mut episode, 1, 3), Ok("5".into()));
    assert_eq!(say(&mut episode, 0, 2), Ok("2".into()));
    assert_eq!(episode.verdict().unwrap().reward, 0.5);
    assert_eq!(episode.oracle(), Ok(None));
    drop(episode);
    assert!(env.reset(2, 1).is_ok());
    assert_eq!(starts(&dir), 1);
}

#[test]
fn a_failure_in_mid_episode_costs_a_process_and_nothing_else() {
    for fault in ["crash", "hang", "trickle", "chatter", "flood", "close", "stranger"] {
        let (env, dir) = start(fault);
        let mut faulty = env.reset(1, 1).unwrap();
        let mut neighbour = env.reset(2, 1).unwrap();
        say(&mut neighbour, 0, 7).unwrap();
        say(&mut faulty, 0, 2).unwrap();
        assert_eq!(say(&mut faulty, 1, 3), Ok("5".into()), "{fault}");
        assert_eq!(say(&mut neighbour, 1, 1), Ok("8".into()), "{fault}");
        assert_eq!(starts(&dir), 2, "{fault}");
    }
}

#[test]
fn a_step_that_fails_each_time_is_given_up_after_the_attempts_allowed() {
    let (env, dir) = start("always-crash");
    let mut episode = env.reset(1, 1).unwrap();
    let error = say(&mut episode, 0, 1).unwrap_err();
    assert_eq!(error, EnvError::Gone("exit status: 4".into()));
    assert_eq!(starts(&dir), 2);
}

#[test]
fn a_crash_is_reported_with_its_status_and_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let once = ProcessLimits { attempts: 1, ..limits() };
    let env = ProcessEnvironment::start(launch("crash", dir.path()), once).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    say(&mut episode, 0, 1).unwrap();
    let error = say(&mut episode, 1, 1).unwrap_err();
    assert_eq!(error, EnvError::Gone("exit status: 3; it wrote: the disk is on fire".into()));
}

#[test]
fn what_is_no_reply_is_reported_as_such() {
    let cases =
        [("chatter", "Loading the model"), ("flood", "above the limit"), ("stranger", "not the reply to request")];
    for (fault, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let env =
            ProcessEnvironment::start(launch(fault, dir.path()), ProcessLimits { attempts: 1, ..limits() }).unwrap();
        let mut episode = env.reset(1, 1).unwrap();
        say(&mut episode, 0, 1).unwrap();
        let error = say(&mut episode, 1, 1).unwrap_err();
        assert!(matches!(&error, EnvError::Garbage(reason) if reason.contains(expected)), "{fault}: {error}");
    }
}

#[test]
fn calls_without_their_observations_are_garbage() {
    let (env, _dir) = start("mute");
    let mut episode = env.reset(1, 1).unwrap();
    assert!(matches!(say(&mut episode, 0, 1), Err(EnvError::Garbage(_))));
}

#[test]
fn an_episode_that_is_not_a_function_of_its_seed_is_found_when_it_is_rebuilt() {
    let (env, _dir) = start("fickle");
    let mut episode = env.reset(9, 1).unwrap();
    episode.step(0, &Action::say("hello")).unwrap();
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(env.process_ids()[0] as libc::pid_t, libc::SIGKILL) };
    let error = episode.step(1, &Action::say("hello")).unwrap_err();
    let EnvError::Reset { seed: 9, reason } = error else { panic!("{error}") };
    assert!(reason.contains("not a function of its seed"), "{reason}");
}

#[test]
fn a_verdict_that_is_none_is_a_failure_and_no_reward() {
    let (env, _dir) = start("error");
    assert_eq!(env.reset(1, 1).unwrap().verdict(), Err(EnvError::BadVerdict("no judge today".into())));
    // Python writes NaN, which is not JSON.
    let (env, _dir) = start("nan");
    assert!(matches!(env.reset(1, 1).unwrap().verdict(), Err(EnvError::Garbage(_))));
}

#[test]
fn standard_error_never_blocks_a_program() {
    let (env, _dir) = start("noisy");
    let mut episode = env.reset(1, 1).unwrap();
    for step in 0..5 {
        say(&mut episode, step, 1).unwrap();
    }
}

#[test]
fn a_long_request_to_a_program_that_does_not_read_ends_at_the_deadline() {
    let mut launch = Launch::new("sh");
    let spec = r#"{"id":1,"ok":{"name":"deaf","description":"","levels":1,"max_turns":6,"tools":[]}}"#;
    let opening = r#"{"id":2,"ok":{"messages":[{"role":"system","content":""}],"tools":[],"level":1}}"#;
    launch.arguments = vec!["-c".into(), format!("read a; echo '{spec}'; read b; echo '{opening}'; sleep 60")];
    let env = ProcessEnvironment::start(launch, ProcessLimits { attempts: 1, ..limits() }).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    let started = Instant::now();
    let error = episode.step(0, &Action::say("x".repeat(1 << 20))).unwrap_err();
    assert_eq!(error, EnvError::Deadline { seconds: 3 });
    assert!(started.elapsed() < Duration::from_secs(6));
}

#[test]
fn the_descendants_of_a_program_end_with_it() {
    let (env, dir) = start("child");
    let mut episode = env.reset(1, 1).unwrap();
    say(&mut episode, 0, 1).unwrap();
    say(&mut episode, 1, 1).unwrap();
    let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        // A zombie that nobody has collected yet is dead all the same.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            break;
        }
        assert!(Instant::now() < until, "{stat}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_an_environment_is_refused_at_the_start() {
    let refused = |launch: Launch| match ProcessEnvironment::start(launch, ProcessLimits { attempts: 1, ..limits() }) {
        Err(EnvError::Load { reason, .. }) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    assert!(refused(Launch::new("/nowhere/env")).contains("could not be started"));
    assert!(refused(Launch::new("true")).contains("exit status: 0"));
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(launch("badspec", dir.path())).contains("spec cannot be read"));
    let (env, _dir) = start("badlevel");
    assert!(matches!(env.reset(1, 1).map(drop), Err(EnvError::Reset { reason, .. }) if reason.contains("level 0")));
}

#[test]
fn a_failing_reset_is_an_error_with_its_cause_each_time() {
    let (env, dir) = start("none");
    std::fs::remove_dir_all(dir.path().join("starts")).unwrap();
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(env.process_ids()[0] as libc::pid_t, libc::SIGKILL) };
    // A new process cannot start without its folder.
    for seed in 0..3 {
        let error = env.reset(seed, 1).map(drop).unwrap_err();
        assert!(matches!(&error, EnvError::Gone(reason) if reason.contains("FileNotFoundError")), "{error}");
    }
}
