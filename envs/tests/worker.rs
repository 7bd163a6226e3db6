//! The worker's own side of the protocol, spoken to by hand.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::{COUNTER, tight};

struct Worker {
    child: Child,
    replies: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trace-env-worker"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        Self { child, replies }
    }

    fn send(&mut self, line: &[u8]) -> Value {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(line).unwrap();
        input.write_all(b"\n").unwrap();
        let mut reply = String::new();
        self.replies.read_line(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap()
    }

    fn ask(&mut self, request: Value) -> Value {
        self.send(request.to_string().as_bytes())
    }

    fn load(&mut self) {
        let request = json!({"id": 1, "op": "load", "name": "counter.py", "source": COUNTER, "limits": tight()});
        assert_eq!(self.ask(request), json!({"id": 1, "ok": null}));
    }
}

#[test]
fn what_is_no_request_is_answered_with_an_error_and_the_worker_goes_on() {
    let mut worker = Worker::start();
    for line in
        ["", "hello", "{}", "[1]", "{\"id\": 1}", "{\"id\": 1, \"op\": \"fly\"}", "{\"id\": -1, \"op\": \"spec\"}"]
    {
        let reply = worker.send(line.as_bytes());
        assert_eq!(reply["id"], 0, "{line}");
        assert!(reply["error"].as_str().unwrap().starts_with("the request cannot be read"), "{line}: {reply}");
    }
    assert_eq!(worker.ask(json!({"id": 2, "op": "spec"})), json!({"id": 2, "error": "no file was loaded"}));
    worker.load();
    assert_eq!(worker.ask(json!({"id": 3, "op": "spec"}))["ok"]["name"], "counter");
    assert_eq!(
        worker.ask(json!({"id": 4, "op": "verdict", "episode": 9})),
        json!({"id": 4, "error": "no episode 9 is open"})
    );
}

#[test]
fn a_line_that_is_not_text_ends_the_worker_with_a_failure() {
    let mut worker = Worker::start();
    worker.child.stdin.as_mut().unwrap().write_all(b"\xff\xfe\n").unwrap();
    assert!(!worker.child.wait().unwrap().success());
}

#[test]
fn the_worker_ends_with_its_input() {
    let mut worker = Worker::start();
    worker.load();
    drop(worker.child.stdin.take());
    assert!(worker.child.wait().unwrap().success());
}

#[test]
fn a_closed_episode_is_forgotten() {
    let mut worker = Worker::start();
    worker.load();
    worker.ask(json!({"id": 2, "op": "reset", "episode": 7, "seed": 1, "level": 1}));
    assert!(worker.ask(json!({"id": 3, "op": "verdict", "episode": 7})).get("ok").is_some());
    worker.ask(json!({"id": 4, "op": "close", "episodes": [7, 8]}));
    assert!(worker.ask(json!({"id": 5, "op": "verdict", "episode": 7})).get("error").is_some());
}

#[test]
fn the_kernel_confines_the_worker() {
    let mut worker = Worker::start();
    worker.load();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.child.id())).unwrap();
    let soft = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().next().unwrap().to_string()
    };
    assert_eq!(soft("Max address space"), (4u64 << 30).to_string());
    assert_eq!(soft("Max core file size"), "0");
    assert_eq!(soft("Max file size"), "0");
    assert!(soft("Max cpu time").parse::<u64>().unwrap() < 10);
}
