//! What is verified: the state of the desk, what was sent, what the customer was told, and how the agent went about it.

use super::records::id_of;
use super::task::{Capability, Task, Want};
use super::tools::{Tool, codes_of, option_of};
use super::{Desk, Records};
use crate::contract::{CapabilityEvidence, Check, ToolCall};

/// One call that was executed or refused by a tool.
#[derive(Clone, Debug)]
pub(super) struct Called {
    /// The call.
    pub call: ToolCall,
    /// Its tool, where the name is one.
    pub tool: Option<Tool>,
    /// False where the tool answered with an error.
    pub succeeded: bool,
}

/// What happened in an episode.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Every readable call, in order.
    pub calls: Vec<Called>,
    /// Calls that could not be read.
    pub malformed: usize,
    /// What the agent said, in order.
    pub said: Vec<String>,
    /// True once the agent asked for the user id before it needed it.
    pub asked_for_id: bool,
}

/// The names of the outcome checks.
pub const OUTCOME: [&str; 3] = ["records_as_expected", "sent_as_expected", "customer_told"];

/// Which process check speaks for which capability: the four that are exercised at levels, and four more.
pub fn evidence() -> Vec<CapabilityEvidence> {
    let row = |capability: &str, description: &str, check: &str| CapabilityEvidence {
        capability: capability.to_string(),
        description: description.to_string(),
        checks: vec![check.to_string()],
    };
    vec![
        row(
            Capability::StructuredData.name(),
            "Finding the record that is meant among several in a tool's result.",
            "right_record",
        ),
        row(Capability::MultiStep.name(), "Attempting every part of a compound request.", "all_parts_attempted"),
        row(
            Capability::Precondition.name(),
            "Reading a record's status or fare before changing it.",
            "read_before_change",
        ),
        row(Capability::ToolPrecision.name(), "Passing the codes that a tool's schema asks for.", "codes_passed"),
        row("information_gathering", "Asking for the user id where it is missing.", "asked_for_id"),
        row("call_formatting", "Writing calls that can be read, of tools that exist.", "calls_readable"),
        row("non_redundancy", "Not repeating a call that was answered.", "no_repeated_call"),
        row("result_reporting", "Closing with an answer that names what was done.", "results_reported"),
    ]
}

/// What records say of themselves that decides what may be done with them.
const CONDITIONS: [&str; 5] = ["pending", "shipped", "delivered", "flex", "basic"];

/// The words of what was said, in lower case.
fn words(said: &[String]) -> Vec<String> {
    said.iter()
        .flat_map(|s| s.split(|c: char| !c.is_alphanumeric()))
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// What the customer must be told of each part: all of these words.
fn must_be_told(task: &Task) -> Vec<Vec<String>> {
    task.parts
        .iter()
        .map(|part| {
            let record = &task.records.records[part.record];
            let mut needed = vec![record.id.to_lowercase()];
            match part.want {
                Want::Condition => needed.push(record.condition.clone()),
                Want::Total => needed.push(record.total.to_string()),
                Want::Act(_) if !part.allowed(record) => {
                    needed.extend(["cannot".to_string(), record.condition.clone()]);
                }
                Want::Act(_) => {}
            }
            needed
        })
        .collect()
}

/// What was said and is about another record or not so: ids of records that are not meant, conditions that theirs do
/// not have.
fn must_not_be_told(task: &Task, spoken: &[String]) -> Vec<String> {
    let meant: Vec<&super::Record> = task.parts.iter().map(|p| &task.records.records[p.record]).collect();
    let other_id = |w: &String| {
        let is_id = |r: &&super::Record| r.id.eq_ignore_ascii_case(w);
        task.records.records.iter().any(|r| is_id(&r)) && !meant.iter().any(is_id)
    };
    let wrong_condition = |w: &String| CONDITIONS.contains(&w.as_str()) && !meant.iter().any(|r| r.condition == **w);
    spoken.iter().filter(|w| other_id(w) || wrong_condition(w)).cloned().collect()
}

fn check(name: &str, score: f64, weight: f64, detail: String) -> Check {
    Check { name: name.to_string(), score, weight, detail }
}

fn yes(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

/// The outcome checks, weight 1 each.
pub(super) fn outcome(task: &Task, now: &Records, history: &History) -> Vec<Check> {
    let expected = task.expected();
    let wrong: Vec<String> = expected
        .records
        .iter()
        .zip(&now.records)
        .filter(|(want, have)| want != have)
        .map(|(want, have)| {
            format!(
                "{} should be {}/{} and is {}/{}",
                want.id, want.condition, want.option, have.condition, have.option
            )
        })
        .collect();
    let mut sent = now.sent.clone();
    let mut to_send = expected.sent.clone();
    sent.sort();
    to_send.sort();

    let spoken = words(&history.said);
    let needed = must_be_told(task);
    let untold: Vec<String> = needed
        .iter()
        .filter(|all| !all.iter().all(|w| spoken.contains(w)))
        .map(|all| format!("not told: {}", all.join(" ")))
        .collect();
    // An answer that recites whatever was read would hold the right words too: what it must not hold fails it.
    let strays = must_not_be_told(task, &spoken);
    let told = if strays.is_empty() { (needed.len() - untold.len()) as f64 / needed.len() as f64 } else { 0.0 };
    let untold: Vec<String> = untold.into_iter().chain(strays.iter().map(|w| format!("told wrongly: {w}"))).collect();
    vec![
        check(OUTCOME[0], yes(wrong.is_empty()), 1.0, wrong.join("; ")),
        check(OUTCOME[1], yes(sent == to_send), 1.0, format!("{} to send, {} sent", to_send.len(), sent.len())),
        check(OUTCOME[2], told, 1.0, untold.join("; ")),
    ]
}

/// The process checks, weight 0. One that this task does not call for is absent.
pub(super) fn process(task: &Task, history: &History) -> Vec<Check> {
    let mut out = Vec::new();
    let id_of =
        |c: &Called| id_of(c.call.arguments.get("record").and_then(|v| v.as_str()).unwrap_or_default()).to_string();
    let with_id: Vec<&Called> = history.calls.iter().filter(|c| c.call.arguments.contains_key("record")).collect();
    let meant: Vec<&str> = task.parts.iter().map(|p| task.records.records[p.record].id.as_str()).collect();

    let several = |desk: Desk| task.records.records.iter().filter(|r| r.desk == desk).count() > 1;
    if (several(Desk::Orders) || several(Desk::Trips)) && !with_id.is_empty() {
        let strays: Vec<String> = with_id.iter().map(|c| id_of(c)).filter(|id| !meant.contains(&id.as_str())).collect();
        out.push(check("right_record", yes(strays.is_empty()), 0.0, format!("others used: {strays:?}")));
    }

    let spoken = words(&history.said);
    if task.parts.len() > 1 && !history.calls.is_empty() {
        // A part was attempted when its tool was called, or, where none is called for, when something was said
        // that only its answer holds.
        let attempted = |part: &super::task::Part| match part.want {
            Want::Act(tool) => {
                history.calls.iter().any(|c| c.tool == Some(tool))
                    || (tool.precondition().is_some() && spoken.contains(&"cannot".to_string()))
            }
            Want::Condition => CONDITIONS.iter().any(|w| spoken.contains(&(*w).to_string())),
            Want::Total => {
                spoken.contains(&"costs".to_string())
                    || spoken.contains(&task.records.records[part.record].total.to_string())
            }
        };
        let left = task.parts.iter().filter(|p| !attempted(p)).count();
        out.push(check("all_parts_attempted", yes(left == 0), 0.0, format!("{left} parts left out")));
    }

    let mut checked = 0;
    let mut blind = 0;
    for (i, c) in history.calls.iter().enumerate() {
        if c.tool.is_some_and(|t| t.precondition().is_some()) {
            checked += 1;
            let read = history.calls[..i]
                .iter()
                .any(|e| matches!(e.tool, Some(Tool::GetOrder | Tool::GetTrip)) && id_of(e) == id_of(c));
            blind += usize::from(!read);
        }
    }
    let refused = spoken.contains(&"cannot".to_string());
    if task.parts.iter().any(|p| p.want.precondition().is_some()) && (checked > 0 || refused) {
        let read_any = history.calls.iter().any(|c| matches!(c.tool, Some(Tool::GetOrder | Tool::GetTrip)));
        let good = blind == 0 && (checked > 0 || read_any);
        out.push(check("read_before_change", yes(good), 0.0, format!("{blind} of {checked} changes unread")));
    }

    let coded: Vec<&Called> = history.calls.iter().filter(|c| c.tool.is_some_and(|t| option_of(t).is_some())).collect();
    if task.parts.iter().any(|p| p.code.is_some()) && !coded.is_empty() {
        let good = |c: &&&Called| {
            c.tool.is_some_and(|t| {
                let value = option_of(t).and_then(|n| c.call.arguments.get(n)).and_then(|v| v.as_str());
                codes_of(t).iter().any(|code| Some(code.code) == value)
            })
        };
        let fine = coded.iter().filter(good).count();
        let detail = format!("{fine} of {} calls with a code of the schema", coded.len());
        out.push(check("codes_passed", yes(fine == coded.len()), 0.0, detail));
    }

    if task.id_missing {
        out.push(check("asked_for_id", yes(history.asked_for_id), 0.0, String::new()));
    }
    if !history.calls.is_empty() || history.malformed > 0 {
        let unknown = history.calls.iter().filter(|c| c.tool.is_none()).count();
        let detail = format!("{} unreadable, {unknown} unknown tools", history.malformed);
        out.push(check("calls_readable", yes(history.malformed == 0 && unknown == 0), 0.0, detail));
        let repeated = (1..history.calls.len())
            .filter(|&i| history.calls[..i].iter().any(|e| e.succeeded && e.call == history.calls[i].call))
            .count();
        out.push(check("no_repeated_call", yes(repeated == 0), 0.0, format!("{repeated} repeated")));
    }
    let written: Vec<String> = history
        .calls
        .iter()
        .filter(|c| c.succeeded && c.tool.is_some_and(Tool::writes))
        .map(|c| id_of(c).to_lowercase())
        .collect();
    if !history.said.is_empty() {
        let silent = written.iter().filter(|id| !spoken.contains(id)).count();
        out.push(check("results_reported", yes(silent == 0), 0.0, format!("{silent} changes not named")));
    }
    out
}
