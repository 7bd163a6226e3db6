//! Demonstrations for a base policy: the scripted agent in randomised worlds, with habits.
//!
//! A [`DemoWorld`] is one system prompt (a choice of tools in any order, clauses of the policy text varied, sometimes
//! a hint) that several demonstrations share. [`Habits`] say how often the agent is capable by capability and level.

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt};

use super::records::{Desk, Records};
use super::script::{Lapses, script};
use super::task::{Capability, Demands, Task, Want};
use super::tools::Tool;
use super::words::{CLAUSES, policy};
use super::{DeskEpisode, Reward};
use crate::contract::{Action, Episode, Message, Opening};

/// How often the agent shows a capability, by level 1, 2 and 3; at level 0 it always does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Probabilities of success.
    pub success: [f64; 3],
}

impl Habits {
    /// An agent without lapses.
    pub const NONE: Habits = Habits { success: [1.0; 3] };

    fn draw<R: Rng>(&self, rng: &mut R, demands: Demands, hinted: Option<Capability>) -> Lapses {
        Capability::ALL.into_iter().fold(Lapses::NONE, |lapses, capability| {
            let level = usize::from(demands.level(capability));
            let capable = level == 0 || hinted == Some(capability) || rng.random_bool(self.success[level - 1]);
            if capable { lapses } else { lapses.with(capability) }
        })
    }
}

/// One system prompt.
#[derive(Clone, Debug)]
pub struct DemoWorld {
    policy: String,
    tools: Vec<Tool>,
    desk: Option<Desk>,
    hint: Option<Capability>,
    target: bool,
}

/// One turn of a demonstration.
#[derive(Clone, Debug)]
pub struct DemoTurn {
    /// What the agent does.
    pub action: Action,
    /// What it gets back; empty at the end.
    pub reply: Vec<Message>,
}

/// One demonstration.
#[derive(Clone, Debug)]
pub struct Demo {
    /// How the episode opened; `hint` is what the system prompt carried, if anything.
    pub opening: Opening,
    /// The agent's turns.
    pub turns: Vec<DemoTurn>,
    /// The reward on the target.
    pub reward: f64,
}

/// A record of a list, as one looks it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What it is called.
    pub item: String,
    /// Its id.
    pub id: String,
}

/// A list of four to six orders or trips as the desk's tools show it, and its records.
pub fn listing<R: Rng>(rng: &mut R) -> (String, Vec<Listed>) {
    let count = rng.random_range(4..=6);
    let (orders, trips) = if rng.random_bool(0.6) { (count, 0) } else { (0, count) };
    let records = Records::generate(rng, orders, trips);
    let listed = records.records.iter().map(|r| Listed { item: r.item.clone(), id: r.id.clone() }).collect();
    (records.list(if orders > 0 { Desk::Orders } else { Desk::Trips }).to_string(), listed)
}

/// The share of randomised worlds whose system prompt carries a hint.
const HINTED: f64 = 0.15;

impl DemoWorld {
    /// The target world itself.
    pub fn target() -> Self {
        Self { policy: policy(&CLAUSES), tools: Tool::ALL.to_vec(), desk: None, hint: None, target: true }
    }

    /// A randomised world. `growth` in `[0, 1]`: at 0 few tools and clauses, at 1 anything up to the target's.
    pub fn random<R: Rng>(rng: &mut R, growth: f64) -> Self {
        let desk = if rng.random_bool(0.6) { Desk::Orders } else { Desk::Trips };
        let mut optional: Vec<Tool> = Tool::ALL.to_vec();
        optional.shuffle(rng);
        let most = 3 + (growth * 8.0).round() as usize;
        let mut tools: Vec<Tool> = optional
            .iter()
            .copied()
            .filter(|t| {
                t.desk() == desk && matches!(t, Tool::ListOrders | Tool::ListTrips | Tool::GetOrder | Tool::GetTrip)
            })
            .collect();
        let count = rng.random_range(3..=most.max(3));
        for tool in optional {
            if tools.len() >= count {
                break;
            }
            if !tools.contains(&tool) {
                tools.push(tool);
            }
        }
        tools.shuffle(rng);
        let mut clauses: Vec<&str> = CLAUSES.to_vec();
        if rng.random_bool(0.7) {
            clauses.shuffle(rng);
        }
        clauses.truncate(rng.random_range(((growth * 5.0) as usize).min(7)..=8));
        let hint = rng.random_bool(HINTED).then(|| *Capability::ALL.choose(rng).expect("four"));
        Self { policy: policy(&clauses), tools, desk: Some(desk), hint, target: false }
    }

    /// The same world with a hint at a capability in its system prompt, which the agent follows.
    pub fn hinted(self, capability: Capability) -> Self {
        Self { hint: Some(capability), ..self }
    }

    fn fits(&self, task: &Task) -> bool {
        task.parts.iter().all(|part| {
            let desk = task.records.records[part.record].desk;
            self.desk.is_none_or(|d| d == desk)
                && match part.want {
                    Want::Act(tool) => self.tools.contains(&tool),
                    Want::Condition | Want::Total => true,
                }
        })
    }

    /// One demonstration in this world. `growth` in `[0, 1]` bounds how much the tasks demand: at 0 nothing.
    pub fn demo<R: Rng>(&self, rng: &mut R, growth: f64, habits: &Habits) -> Demo {
        let task = loop {
            let task = if self.target {
                Task::target(rng)
            } else {
                let most = (growth * 4.0).ceil() as usize;
                let count = rng.random_range(0..=most.min(3));
                let hardest = 1 + (growth * 2.0).round() as u8;
                let demands = Demands::draw(rng, count, |rng| rng.random_range(1..=hardest));
                Task::generate(rng, demands)
            };
            if self.fits(&task) {
                break task;
            }
        };
        let lapses = habits.draw(rng, task.demands, self.hint);
        let actions = script(&task, lapses);
        let tools = self.tools.iter().map(|t| t.spec()).collect();
        let mut episode = DeskEpisode::new(task, &self.policy, tools, Reward::AllOrNothing);
        let mut opening = episode.opening().clone();
        opening.hint = self.hint.map(|c| c.hint().to_string());
        let mut turns = Vec::with_capacity(actions.len());
        for (i, action) in actions.into_iter().enumerate() {
            let reply = episode.step(i as u64, &action).expect("the script stays within the contract");
            turns.push(DemoTurn { action, reply: reply.messages });
        }
        let reward = episode.verdict().expect("the desk's verdicts are valid").reward;
        Demo { opening, turns, reward }
    }
}
