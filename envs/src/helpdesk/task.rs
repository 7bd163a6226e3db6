//! Tasks: what the customer wants, which capabilities that exercises and how hard, and in which words it is asked.

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt};

use super::records::{Desk, Record, Records};
use super::tools::{Code, Tool, codes_of};

/// The capabilities that tasks exercise at levels of difficulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Finding the right record among several; harder with more of them.
    StructuredData,
    /// Doing every part of a request; harder where the second part is easily overlooked.
    MultiStep,
    /// Reading a record's condition before changing it; harder where the customer waves the check away.
    Precondition,
    /// Passing the codes that a tool wants; harder the further the customer's words are from them.
    ToolPrecision,
}

impl Capability {
    /// All four.
    pub const ALL: [Capability; 4] =
        [Capability::StructuredData, Capability::MultiStep, Capability::Precondition, Capability::ToolPrecision];

    /// The name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Capability::StructuredData => "structured_data_reasoning",
            Capability::MultiStep => "multi_step_completion",
            Capability::Precondition => "precondition_verification",
            Capability::ToolPrecision => "tool_calling_precision",
        }
    }

    /// What a policy that lacks it should be told.
    pub fn hint(self) -> &'static str {
        match self {
            Capability::StructuredData => "Hint: find the item in the list and take the id from its own record.",
            Capability::MultiStep => "Hint: finish every part of the request before you answer.",
            Capability::Precondition => "Hint: read the record before you change it.",
            Capability::ToolPrecision => "Hint: pass the codes of the tool, not the words of the customer.",
        }
    }
}

/// The difficulty at which a task exercises each capability: 0 = not at all, 1 = easy, 3 = hard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    levels: [u8; 4],
}

impl Demands {
    /// The level of one capability.
    pub fn level(&self, capability: Capability) -> u8 {
        self.levels[capability as usize]
    }

    /// These demands with one level set.
    pub fn with(mut self, capability: Capability, level: u8) -> Self {
        self.levels[capability as usize] = level;
        self
    }

    /// How many capabilities are exercised.
    pub fn count(&self) -> usize {
        self.levels.iter().filter(|&&l| l > 0).count()
    }

    /// Draws demands: `count` capabilities, each at a level drawn by `level`.
    pub fn draw<R: Rng>(rng: &mut R, count: usize, mut level: impl FnMut(&mut R) -> u8) -> Self {
        let mut order = Capability::ALL;
        order.shuffle(rng);
        order[..count.min(4)].iter().fold(Self::default(), |d, &c| {
            let l = level(rng);
            d.with(c, l)
        })
    }
}

/// What one part of a request wants done with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// To be told an order's status or a trip's fare.
    Condition,
    /// To be told the total.
    Total,
    /// A change or a message, by this tool.
    Act(Tool),
}

impl Want {
    /// The condition under which the policy allows it.
    pub fn precondition(self) -> Option<&'static str> {
        match self {
            Want::Act(tool) => tool.precondition(),
            Want::Condition | Want::Total => None,
        }
    }
}

/// One part of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What is wanted.
    pub want: Want,
    /// The index of the record in [`Records::records`].
    pub record: usize,
    /// The code that the customer means, where the tool takes one.
    pub code: Option<&'static Code>,
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Part {
    /// True where the policy allows this part, given the record as it stands.
    pub fn allowed(&self, record: &Record) -> bool {
        self.want.precondition().is_none_or(|needed| record.condition == needed)
    }
}

/// A task: the customer's data and request.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The data at the start.
    pub records: Records,
    /// The parts of the request, in the order asked.
    pub parts: Vec<Part>,
    /// What it exercises.
    pub demands: Demands,
    /// True where the customer leaves out the user id, so that it must be asked for.
    pub id_missing: bool,
    /// The customer's first message.
    pub request: String,
}

/// The share of checked requests that the policy forbids. So large that acting unread seldom passes: else analysis,
/// which compares passes with failures, could not see that the check was lacking.
const FORBIDDEN: f64 = 0.85;

/// The same where the request also needs a code, which a refusal would never come to.
const FORBIDDEN_CODED: f64 = 0.6;

/// The number of records by the level of [`Capability::StructuredData`].
const RECORDS: [usize; 4] = [1, 2, 4, 6];

impl Task {
    /// A task with these demands.
    pub fn generate<R: Rng>(rng: &mut R, demands: Demands) -> Self {
        let desk = if rng.random_bool(0.6) { Desk::Orders } else { Desk::Trips };
        let count = RECORDS[usize::from(demands.level(Capability::StructuredData))];
        let (orders, trips) = if desk == Desk::Orders { (count, 0) } else { (0, count) };
        let mut records = Records::generate(rng, orders, trips);
        // Where a record must be found, the first of the list is never the right one.
        let record = if count > 1 { rng.random_range(1..count) } else { 0 };

        let checked = demands.level(Capability::Precondition) > 0;
        let coded = demands.level(Capability::ToolPrecision) > 0;
        let two = demands.level(Capability::MultiStep) > 0;
        // A status that is told must not be one that another part changes.
        let free = |rng: &mut R| {
            let from = if checked { 1 } else { 0 };
            *[Want::Condition, Want::Total, Want::Act(Tool::ResendCode)][from..].choose(rng).expect("two at least")
        };
        let checked_only = |rng: &mut R| match desk {
            Desk::Orders => *[Want::Act(Tool::CancelOrder), Want::Act(Tool::ReturnOrder)].choose(rng).expect("two"),
            Desk::Trips => Want::Act(Tool::CancelTrip),
        };
        let checked_and_coded = match desk {
            Desk::Orders => Want::Act(Tool::SetShipping),
            Desk::Trips => Want::Act(Tool::ChangeClass),
        };
        let receipt = Want::Act(Tool::SendReceipt);
        let mut wants = match (checked, coded) {
            (false, false) => vec![free(rng)],
            (true, false) => vec![checked_only(rng)],
            (false, true) => vec![receipt],
            // With two parts, one can be checked and the other coded.
            (true, true) if two && rng.random_bool(0.5) => vec![checked_only(rng), receipt],
            (true, true) => vec![checked_and_coded],
        };
        if two && wants.len() == 1 {
            let first = wants[0];
            let second = std::iter::repeat_with(|| free(rng)).find(|w| *w != first).expect("two to draw from");
            wants.push(second);
        }
        // Telling the total reads the record: asked first, it would be a check that nobody made on purpose.
        if !(checked && wants.contains(&Want::Total)) && rng.random_bool(0.3) {
            wants.reverse();
        }
        for want in &wants {
            if let Some(needed) = want.precondition() {
                let share = if *want == checked_and_coded { FORBIDDEN_CODED } else { FORBIDDEN };
                let forbidden = rng.random_bool(share);
                let all: &[&str] = match desk {
                    Desk::Orders => &["pending", "shipped", "delivered"],
                    Desk::Trips => &["flex", "basic"],
                };
                let fitting: Vec<&str> = all.iter().copied().filter(|c| (*c == needed) != forbidden).collect();
                records.records[record].condition = (*fitting.choose(rng).expect("one at least")).to_string();
            }
        }
        let parts: Vec<Part> = wants
            .into_iter()
            .map(|want| {
                let codes = match want {
                    Want::Act(tool) => codes_of(tool),
                    Want::Condition | Want::Total => &[],
                };
                let held = &records.records[record].option;
                let new: Vec<&Code> = codes.iter().filter(|c| c.code != held.as_str()).collect();
                Part { want, record, code: new.choose(rng).copied() }
            })
            .collect();
        let id_missing = rng.random_bool(0.25);
        let request = super::words::request(rng, &records, &parts, demands, id_missing);
        Self { records, parts, demands, id_missing, request }
    }

    /// The data as it should be at the end: every allowed part done, nothing else.
    pub fn expected(&self) -> Records {
        let mut after = self.records.clone();
        for part in &self.parts {
            let record = &self.records.records[part.record];
            if let Want::Act(tool) = part.want
                && part.allowed(record)
            {
                let mut args = serde_json::Map::new();
                args.insert("record".into(), record.name().into());
                if let (Some(name), Some(code)) = (super::tools::option_of(tool), part.code) {
                    args.insert(name.into(), code.code.into());
                }
                after.execute(tool, &args).expect("a part's own call is valid");
            }
        }
        after
    }

    /// A task of the target: 25 % exercise no capability, 35 % one, 25 % two, 15 % three, each mostly at level 3
    /// (10 % level 1, 15 % level 2, 75 % level 3).
    pub fn target<R: Rng>(rng: &mut R) -> Self {
        Self::mixed(rng, |rng| {
            let x: f64 = rng.random();
            1 + u8::from(x >= 0.10) + u8::from(x >= 0.25)
        })
    }

    /// A task of the same mix with each capability at level 1.
    pub fn easy<R: Rng>(rng: &mut R) -> Self {
        Self::mixed(rng, |_| 1)
    }

    fn mixed<R: Rng>(rng: &mut R, level: impl FnMut(&mut R) -> u8) -> Self {
        let x: f64 = rng.random();
        let count = [0.25, 0.60, 0.85].iter().filter(|&&edge| x >= edge).count();
        let demands = Demands::draw(rng, count, level);
        Self::generate(rng, demands)
    }
}
