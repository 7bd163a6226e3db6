//! What a Python file may not use up. Each attack is an error of its own call, and the worker and its other episodes
//! live on.

mod support;

use std::time::{Duration, Instant};

use support::{add, counter_with, load};
use trace_envs::{EnvError, Environment};

/// Runs `attack` within the counter's tool when it adds 13, beside another episode of the same worker.
fn attack(body: &str) -> String {
    let guarded = format!("if args['n'] == 13:\n    {}", body.replace('\n', "\n    "));
    let env = load(&counter_with("def call(state, tool, args):", &guarded)).unwrap();
    let mut victim = env.reset(1, 1).unwrap();
    let mut neighbour = env.reset(2, 1).unwrap();
    neighbour.step(0, &add(1)).unwrap();
    let workers = env.process_ids();

    let started = Instant::now();
    let error = victim.step(0, &add(13)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(4), "{body}: took {:?}", started.elapsed());
    let EnvError::Step { step_id: 0, reason } = error else { panic!("{body}: {error}") };

    assert_eq!(env.process_ids(), workers, "{body}: the worker was replaced");
    assert_eq!(neighbour.step(1, &add(1)).unwrap().messages[0].content, "{\"count\":2}");
    assert_eq!(victim.step(0, &add(1)).unwrap().messages[0].content, "{\"count\":1}");
    reason
}

#[test]
fn an_endless_loop_ends_at_the_time_limit() {
    for body in [
        "while True:\n    pass",
        "n = 0\nwhile True:\n    try:\n        n = n + 1\n    except Exception:\n        pass",
    ] {
        let reason = attack(body);
        assert!(reason.contains("time limit exceeded"), "{reason}");
    }
}

#[test]
fn endless_work_inside_the_interpreter_ends_at_the_time_limit() {
    for body in ["sum(range(10 ** 12))", "import re\nre.match(r'(a*)*\\1b', 'a' * 60)"] {
        let reason = attack(body);
        assert!(reason.contains("limit") || reason.contains("Error"), "{reason}");
    }
}

#[test]
fn a_large_list_or_text_ends_at_the_memory_limit() {
    for body in [
        "x = [0] * 10 ** 8",
        "x = 'a' * 2 ** 31",
        "x = list(range(10 ** 8))",
        "x = []\nwhile True:\n    x.append('y' * 1000)",
    ] {
        let reason = attack(body);
        assert!(reason.contains("MemoryError") || reason.contains("memory limit"), "{body}: {reason}");
    }
}

#[test]
fn a_huge_power_is_refused_before_it_is_computed() {
    let reason = attack("x = 10 ** 10 ** 8");
    assert!(reason.contains("Error"), "{reason}");
}

#[test]
fn endless_recursion_ends_at_the_depth_limit() {
    let reason = attack("def f(n):\n    return f(n + 1)\nf(0)");
    assert!(reason.contains("RecursionError"), "{reason}");
}

#[test]
fn a_value_nested_without_end_is_refused() {
    let reason = attack("x = []\nfor i in range(100000):\n    x = [x]\nstate['x'] = x");
    assert!(reason.contains("nested deeper") || reason.contains("Recursion"), "{reason}");
}

#[test]
fn a_state_that_grows_without_end_is_refused() {
    let reason = attack("state['x'] = 'a' * (2 * 1024 * 1024)");
    assert!(reason.contains("a state of") && reason.contains("above the limit"), "{reason}");
}

#[test]
fn a_huge_reply_is_refused() {
    let reason = attack("return 'a' * 300000");
    assert!(reason.contains("limit"), "{reason}");
}

#[test]
fn endless_printing_ends_at_the_output_limit() {
    let reason = attack("while True:\n    print('x' * 1000)");
    assert!(reason.contains("MemoryError") || reason.contains("limit"), "{reason}");
}

#[test]
fn files_network_variables_and_clock_are_out_of_reach() {
    for body in [
        "open('/etc/passwd').read()",
        "import os\nos.getenv('PATH')",
        "import os\nos.environ['PATH']",
        "import datetime\ndatetime.datetime.now()",
        "from pathlib import Path\nPath('/').exists()",
    ] {
        let reason = attack(body);
        assert!(reason.contains("Error"), "{body}: {reason}");
    }
}

#[test]
fn a_reset_that_draws_without_end_or_reaches_outside_is_refused() {
    for (body, expected) in [
        ("while True:\n    rng.random()", "drew more than"),
        ("open('/etc/passwd').read()", "PermissionError"),
        ("rng.randint(3, 2)", "ValueError"),
        ("rng.randint(0, 0.5)", "TypeError"),
        ("rng.choice([])", "ValueError"),
    ] {
        let env = load(&counter_with("def reset(rng, level):", body)).unwrap();
        let error = env.reset(1, 1).map(drop).unwrap_err();
        let EnvError::Reset { seed: 1, reason } = error else { panic!("{error}") };
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn an_attack_at_the_top_of_the_file_is_an_error_of_loading() {
    for body in ["while True:\n    pass", "x = [0] * 10 ** 8"] {
        let Err(EnvError::Load { reason, .. }) = load(&format!("{body}\n{}", support::COUNTER)) else {
            panic!("loaded")
        };
        assert!(reason.contains("limit"), "{reason}");
    }
}
