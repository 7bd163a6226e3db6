//! What `PYTHON.md` says is so.

mod support;

use support::{COUNTER, load};
use trace_envs::audit::Audit;
use trace_envs::sandbox::Limits;
use trace_envs::{EnvError, Environment};

const DOCUMENT: &str = include_str!("../PYTHON.md");

/// The code of a table's cell, span by span.
fn spans(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|code| code.replace("\\|", "|")).collect()
}

/// Runs a line of code within a function, with some names to use.
fn run(code: &str) -> Result<(), EnvError> {
    let given = "n, xs, d = 3, [1, 2, 3], {\"a\": 1}";
    let body = code.replace("; ", "\n    ");
    load(&format!("import json\ndef line():\n    {given}\n    {body}\nline()\n{COUNTER}")).map(drop)
}

#[test]
fn the_example_passes_the_audit() {
    let example = DOCUMENT.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(example.lines().filter(|l| !l.is_empty()).count() <= 26, "it is to be short");
    let env = load(example).unwrap();
    let audit = Audit { seeds: 50, ..Audit::default() };
    let failed: Vec<_> = audit.run(&env, |_| ()).into_iter().filter(|item| !item.passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(env.spec().name, "extensions");
}

#[test]
fn what_is_said_to_be_missing_is_and_what_is_offered_instead_works() {
    let table = DOCUMENT.split("| not there | instead |\n|---|---|\n").nth(1).unwrap();
    let (mut missing, mut offered) = (0, 0);
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        // A bar within code is written with a backslash before it.
        let cells: Vec<String> = row.replace("\\|", "\u{0}").split('|').map(|c| c.replace('\u{0}', "|")).collect();
        for code in spans(&cells[1]) {
            assert!(run(&code).is_err(), "there by now: {code}");
            missing += 1;
        }
        for code in spans(&cells[2]).into_iter().filter(|code| code != "rng") {
            assert_eq!(run(&code), Ok(()), "{code}");
            offered += 1;
        }
    }
    assert!(missing >= 20 && offered >= 12, "{missing} {offered}");
    assert!(load(&format!("match 1:\n    case _:\n        pass\n{COUNTER}")).is_err());
}

#[test]
fn the_limits_are_those_of_the_table() {
    let limits = Limits::default();
    assert_eq!((limits.seconds, limits.memory_bytes, limits.recursion), (2.0, 64 << 20, 200));
    assert_eq!((limits.draws, limits.state_bytes), (100_000, 1 << 20));
    assert_eq!((limits.reply_bytes, limits.print_bytes), (256 << 10, 64 << 10));
    for row in [
        "| time | 2 s |",
        "| memory | 64 MiB",
        "| depth of function calls | 200 |",
        "| random draws | 100,000 ",
        "| state | 1 MiB",
        "| reply | 256 KiB |",
        "| print | 64 KiB |",
    ] {
        assert!(DOCUMENT.contains(row), "{row}");
    }
}

#[test]
fn every_draw_of_rng_is_there_and_in_range() {
    let body = r#"
for _ in range(200):
    assert 2 <= rng.randint(2, 4) <= 4
    assert 0 <= rng.random() < 1
    assert rng.chance(1) and not rng.chance(0)
    assert rng.choice("abc") in "abc"
    drawn = rng.sample(range(10), 4)
    assert len(set(drawn)) == 4
    xs = [1, 2, 3, 4]
    rng.shuffle(xs)
    assert sorted(xs) == [1, 2, 3, 4]"#;
    let env = load(&support::counter_with("def reset(rng, level):", body)).unwrap();
    env.reset(1, 1).unwrap();
}
