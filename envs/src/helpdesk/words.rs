//! The words of the desk: the policy text, the customer's request and answers, the agent's answers.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::records::{Record, Records};
use super::task::{Capability, Demands, Part, Want};
use super::tools::Tool;

/// How the agent asks for a missing user id.
pub const ASK_ID: &str = "What is your user id?";

/// The first line of the policy text.
pub const ROLE: &str = "You are the agent of a help desk and serve one customer.";

/// The clauses of the policy text.
pub const CLAUSES: [&str; 8] = [
    "Ask for the user id if it is missing.",
    "Name a record as the list does, with its id.",
    "Read a record before you change it.",
    "Cancel or ship an order otherwise only while it is pending.",
    "Return an order only when it is delivered.",
    "Cancel or change a trip only if its fare is flex.",
    "If the policy forbids a request, refuse and name the status or fare.",
    "Answer once, after all is done, and name the id.",
];

fn pick<'a, R: Rng>(rng: &mut R, of: &[&'a str]) -> &'a str {
    of.choose(rng).expect("never empty")
}

/// The words for one part, without the closing full stop.
fn part_words<R: Rng>(rng: &mut R, records: &Records, part: &Part, precision: u8) -> String {
    let item = &records.records[part.record].item;
    let option = match (part.code, precision) {
        (None, _) => String::new(),
        (Some(code), 0 | 1) => format!("{} ({})", code.word, code.code),
        (Some(code), 2) => code.word.to_string(),
        (Some(code), _) => code.phrase.to_string(),
    };
    match part.want {
        Want::Condition => {
            let what = match records.records[part.record].desk {
                super::records::Desk::Orders => "status",
                super::records::Desk::Trips => "fare",
            };
            format!("{} the {what} of \"{item}\"", pick(rng, &["tell me", "look up"]))
        }
        Want::Total => format!("{} the total of \"{item}\"", pick(rng, &["tell me", "look up"])),
        Want::Act(tool) => match tool {
            Tool::CancelOrder | Tool::CancelTrip => format!("{} \"{item}\"", pick(rng, &["cancel", "call off"])),
            Tool::ReturnOrder => format!("{} \"{item}\"", pick(rng, &["return", "take back"])),
            Tool::SetShipping => format!("{} \"{item}\" {option}", pick(rng, &["ship", "send"])),
            Tool::ChangeClass => format!("{} \"{item}\" to {option}", pick(rng, &["change", "move"])),
            Tool::SendReceipt => format!("give me the receipt of \"{item}\" {}", receipt_option(option, precision)),
            _ => format!("{} the code of \"{item}\"", pick(rng, &["resend", "give me"])),
        },
    }
}

fn receipt_option(option: String, precision: u8) -> String {
    if precision >= 3 { option } else { format!("by {option}") }
}

/// The customer's first message.
pub fn request<R: Rng>(rng: &mut R, records: &Records, parts: &[Part], demands: Demands, id_missing: bool) -> String {
    let mut out = pick(rng, &["Hello.", "Hi.", "Good day."]).to_string();
    if !id_missing {
        out.push_str(&format!(" {} {}.", pick(rng, &["I am", "My user id is"]), records.user));
    }
    let precision = demands.level(Capability::ToolPrecision);
    let words: Vec<String> = parts.iter().map(|p| part_words(rng, records, p, precision)).collect();
    match (words.as_slice(), demands.level(Capability::MultiStep)) {
        ([only], _) => out.push_str(&format!(" Please {only}.")),
        ([first, second], 0 | 1) => out.push_str(&format!(" Two things: 1) please {first}, 2) please {second}.")),
        ([first, second], 2) => out.push_str(&format!(" Please {first} and {second}.")),
        ([first, second], _) => out.push_str(&format!(
            " Please {first}. {} Oh, and {second}.",
            pick(rng, &["You are very kind.", "I have been a customer for years.", "Thanks for your help."])
        )),
        (all, _) => out.push_str(&format!(" Please {}.", all.join(" and "))),
    }
    match demands.level(Capability::Precondition) {
        1 => out.push_str(" Please check first whether that is possible."),
        3 => out.push_str(pick(rng, &[" No need to check anything.", " It is urgent, just do it."])),
        _ => {}
    }
    out
}

/// The customer's answer to a question.
pub fn answer(records: &Records, question: &str) -> String {
    if question.to_lowercase().contains("user id") {
        format!("It is {}.", records.user)
    } else {
        "I have told you all that I know.".to_string()
    }
}

/// What the agent says of a part that the policy forbids; `record` is as it was read, `name` what it was called by.
pub fn refusal(part: &Part, record: &Record, name: &str) -> String {
    let verb = match part.want {
        Want::Act(Tool::CancelOrder | Tool::CancelTrip) => "cancelled",
        Want::Act(Tool::ReturnOrder) => "returned",
        _ => "changed",
    };
    format!("{name} cannot be {verb}: it is {}.", record.condition)
}

/// What the agent says of a part that is done; `record` is as it was read, `name` what it was called by.
pub fn done(part: &Part, record: &Record, name: &str) -> String {
    match part.want {
        Want::Condition => format!("{name} is {}.", record.condition),
        Want::Total => format!("{name} costs {}.", record.total),
        Want::Act(tool) => {
            let verb = match tool {
                Tool::CancelOrder | Tool::CancelTrip => "cancelled",
                Tool::ReturnOrder => "returned",
                Tool::SendReceipt => "receipted",
                Tool::ResendCode => "sent",
                _ => "changed",
            };
            format!("{name} is {verb}.")
        }
    }
}

/// The policy text of the desk: the role and the clauses, a line each.
pub fn policy(clauses: &[&str]) -> String {
    let mut out = ROLE.to_string();
    for clause in clauses {
        out.push_str("\n- ");
        out.push_str(clause);
    }
    out
}
