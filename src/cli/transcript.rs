//! A conversation as readable text in the terminal.

use console::{Style, style};
use serde_json::Value;
use trace_envs::{Call, Check, Message, Role};

/// The role's name in its colour; colours are left out where standard output is no terminal or NO_COLOR is set.
fn heading(role: Role) -> String {
    let (name, colour) = match role {
        Role::System => ("system", Style::new().dim()),
        Role::User => ("user", Style::new().green().bold()),
        Role::Assistant => ("assistant", Style::new().blue().bold()),
        Role::Tool => ("tool", Style::new().yellow()),
    };
    format!("{:>9}  ", colour.apply_to(name))
}

/// Text with its further lines indented to the first one's place.
fn indented(text: &str) -> String {
    text.replace('\n', "\n           ")
}

/// A message as lines.
pub(super) fn message(message: &Message) -> String {
    let calls: Vec<Call> = message.tool_calls.iter().cloned().map(Call::Tool).collect();
    turn(message.role, &message.content, &calls)
}

/// A turn as lines: its text, and each call on a line of its own.
pub(super) fn turn(role: Role, text: &str, calls: &[Call]) -> String {
    let mut lines = Vec::new();
    if !text.is_empty() || calls.is_empty() {
        lines.push(indented(text));
    }
    for call in calls {
        lines.push(match call {
            Call::Tool(call) => {
                let arguments = Value::Object(call.arguments.clone());
                format!("{} {arguments}", style(&call.name).magenta().bold())
            }
            Call::Malformed { raw, error } => format!("{} {} ({error})", style("unreadable call").red(), indented(raw)),
        });
    }
    format!("{}{}\n", heading(role), lines.join("\n           "))
}

/// The verdict: reward, then each check.
pub(super) fn verdict(reward: Option<f64>, checks: &[Check]) -> String {
    let mut out = match reward {
        Some(reward) => format!("reward {}\n", style(reward).bold()),
        None => format!("{}\n", style("no reward").bold()),
    };
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let met = check.score >= 1.0 - 1e-6;
        let mark = if met { style("met").green() } else { style("not met").red() };
        let kind = if check.weight == 0.0 { "process".to_owned() } else { format!("weight {}", check.weight) };
        let score = if met || check.score == 0.0 { String::new() } else { format!(" ({:.2})", check.score) };
        out += &format!("  {:width$}  {mark:>7}{score}  {}  {}\n", check.name, style(kind).dim(), check.detail);
    }
    out
}
