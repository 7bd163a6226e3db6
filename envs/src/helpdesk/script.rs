//! The scripted agent: the oracle of the desk and, with lapses, the author of demonstrations.

use serde_json::{Map, Value};

use super::records::{Desk, Record};
use super::task::{Capability, Task, Want};
use super::tools::{Tool, option_of};
use super::words;
use crate::contract::Action;

/// Which capabilities the agent lacks in one episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lapses {
    lapsed: [bool; 4],
}

impl Lapses {
    /// No lapse.
    pub const NONE: Lapses = Lapses { lapsed: [false; 4] };

    /// True where this capability is lacking.
    pub fn has(&self, capability: Capability) -> bool {
        self.lapsed[capability as usize]
    }

    /// These lapses and one more.
    pub fn with(mut self, capability: Capability) -> Self {
        self.lapsed[capability as usize] = true;
        self
    }
}

fn arguments(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(k, v)| ((*k).to_string(), Value::String((*v).to_string()))).collect()
}

fn list_tool(desk: Desk) -> Tool {
    match desk {
        Desk::Orders => Tool::ListOrders,
        Desk::Trips => Tool::ListTrips,
    }
}

fn get_tool(desk: Desk) -> Tool {
    match desk {
        Desk::Orders => Tool::GetOrder,
        Desk::Trips => Tool::GetTrip,
    }
}

/// All turns of an agent that serves `task` with these lapses, from the first to its closing answer.
///
/// - structured data: takes the id of the list's first record instead of the right one;
/// - multi step: answers after the first part;
/// - precondition: changes the record without reading it;
/// - tool precision: passes the customer's words instead of the code.
pub fn script(task: &Task, lapses: Lapses) -> Vec<Action> {
    let mut turns = Vec::new();
    let call = |tool: Tool, args: Map<String, Value>| Action::call(tool.name(), args);
    if task.id_missing {
        turns.push(Action::say(words::ASK_ID));
    }
    let mut listed: Vec<Desk> = Vec::new();
    let mut read: Vec<&str> = Vec::new();
    let mut answers: Vec<String> = Vec::new();
    let done = if lapses.has(Capability::MultiStep) { &task.parts[..1] } else { &task.parts[..] };
    for part in done {
        let wanted = &task.records.records[part.record];
        let desk = wanted.desk;
        if !listed.contains(&desk) {
            turns.push(call(list_tool(desk), arguments(&[("user", &task.records.user)])));
            listed.push(desk);
        }
        let taken: &Record = if lapses.has(Capability::StructuredData) {
            task.records.records.iter().find(|r| r.desk == desk).expect("the wanted record is on this desk")
        } else {
            wanted
        };
        let name = format!("{} {}", wanted.item, taken.id);
        let named = [("record", name.as_str())];
        let checks = part.want.precondition().is_some() && !lapses.has(Capability::Precondition);
        if (checks || !matches!(part.want, Want::Act(_))) && !read.contains(&taken.id.as_str()) {
            turns.push(call(get_tool(desk), arguments(&named)));
            read.push(&taken.id);
        }
        if checks && !part.allowed(taken) {
            answers.push(words::refusal(part, taken, &name));
            continue;
        }
        if let Want::Act(tool) = part.want {
            let mut args = arguments(&named);
            if let (Some(name), Some(code)) = (option_of(tool), part.code) {
                let literal = match task.demands.level(Capability::ToolPrecision) {
                    3 => code.phrase,
                    _ => code.word,
                };
                let value = if lapses.has(Capability::ToolPrecision) { literal } else { code.code };
                args.insert(name.to_string(), value.into());
            }
            turns.push(call(tool, args));
        }
        answers.push(words::done(part, taken, &name));
    }
    turns.push(Action::say(answers.join(" ")));
    turns
}
