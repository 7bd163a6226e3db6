//! The audit finds each defect, and finds none where there is none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use serde_json::json;
use trace_envs::audit::Audit;
use trace_envs::screening::screen;
use trace_envs::{
    Action, Call, CapabilityEvidence, Check, EnvError, EnvSpec, Environment, Episode, Message, Opening, Role,
    SeedStream, StepReply, ToolSpec, Verdict,
};

/// What is wrong with the ticket desk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    OracleErrs,
    NoOracle,
    SameTask,
    DrawsFromOutside,
    ActsTwice,
    BadCallEnds,
    BadCallFails,
    SilencePays,
    NoisePays,
    DestructionPays,
    RefusalPays,
    ExtraChangesAreFree,
    AllOrNothing,
    TwoChecksOfOneName,
    EvidenceNeverOccurs,
    RewardAboveOne,
    LongOpening,
    LongObservation,
    Slow,
}

/// A desk where one of four tickets is to be closed.
struct Tickets {
    spec: EnvSpec,
    fault: Fault,
    resets: AtomicU64,
}

fn tool(name: &str, parameters: serde_json::Value) -> ToolSpec {
    ToolSpec { name: name.into(), description: String::new(), parameters }
}

impl Tickets {
    fn new(fault: Fault) -> Self {
        let id = json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
        let checks = vec![if fault == Fault::EvidenceNeverOccurs { "read" } else { "right_ticket" }.to_string()];
        let spec = EnvSpec {
            name: "tickets".into(),
            description: String::new(),
            capability: Some("closing".into()),
            levels: 1,
            max_turns: 8,
            tools: vec![tool("list", json!({"type": "object", "properties": {}})), tool("close", id)],
            evidence: vec![CapabilityEvidence { capability: "closing".into(), description: String::new(), checks }],
        };
        Self { spec, fault, resets: AtomicU64::new(0) }
    }
}

struct Desk {
    fault: Fault,
    opening: Opening,
    tickets: Vec<String>,
    wanted: String,
    closed: Vec<String>,
    said: String,
    steps: Vec<(u64, StepReply)>,
}

impl Environment for Tickets {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&self, seed: u64, _level: u32) -> Result<Box<dyn Episode>, EnvError> {
        let key = match self.fault {
            Fault::SameTask => 0,
            Fault::DrawsFromOutside => self.resets.fetch_add(1, Ordering::Relaxed),
            _ => seed,
        };
        if self.fault == Fault::Slow {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut rng = SeedStream::keyed(&[key]);
        let tickets: Vec<String> = (0..4).map(|_| format!("T{:05}", rng.random_range(0..100_000))).collect();
        let wanted = tickets.choose(&mut rng).unwrap().clone();
        let mut policy = "Close the ticket that is asked for.".to_string();
        if self.fault == Fault::LongOpening {
            policy = policy.repeat(1000);
        }
        let subject = tickets.iter().position(|t| *t == wanted).unwrap();
        let messages = vec![
            Message::new(Role::System, policy),
            Message::new(Role::User, format!("Close the ticket about matter {}.", ["a", "b", "c", "d"][subject])),
        ];
        Ok(Box::new(Desk {
            fault: self.fault,
            opening: Opening { messages, tools: self.spec.tools.clone(), hint: None, level: 1 },
            tickets,
            wanted,
            closed: Vec::new(),
            said: String::new(),
            steps: Vec::new(),
        }))
    }
}

impl Episode for Desk {
    fn opening(&self) -> &Opening {
        &self.opening
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if self.fault != Fault::ActsTwice
            && let Some((_, reply)) = self.steps.iter().find(|(id, _)| *id == step_id)
        {
            return Ok(reply.clone());
        }
        self.said.push_str(&action.text);
        let screened = screen(&self.opening.tools, action);
        let bad = screened.refusals.iter().any(Option::is_some);
        if bad && self.fault == Fault::BadCallFails {
            return Err(EnvError::Step { step_id, reason: "what is this?".into() });
        }
        let mut replies = Vec::new();
        for call in &screened.executable.calls {
            let Call::Tool(call) = call else { continue };
            let text = match call.arguments.get("id").and_then(|id| id.as_str()) {
                Some(id) if self.tickets.iter().any(|t| t == id) => {
                    self.closed.push(id.to_string());
                    json!({"ok": true})
                }
                Some(_) => json!({"error": "no such ticket"}),
                None if self.fault == Fault::LongObservation => json!([{"text": "x".repeat(5000)}]),
                None => self
                    .tickets
                    .iter()
                    .zip(["a", "b", "c", "d"])
                    .map(|(id, m)| json!({"matter": m, "id": id}))
                    .collect(),
            };
            replies.push(Message::new(Role::Tool, text.to_string()));
        }
        let done = action.calls.is_empty() || (bad && self.fault == Fault::BadCallEnds);
        let reply = StepReply { messages: screened.merge(replies).map_err(EnvError::Garbage)?, done };
        self.steps.push((step_id, reply.clone()));
        Ok(reply)
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        let right = self.closed == [self.wanted.clone()];
        let told = self.said.contains(&self.wanted);
        let any = self.closed.contains(&self.wanted);
        let mut reward = match (right, told) {
            (true, true) => 1.0,
            (true, false) if self.fault != Fault::AllOrNothing => 0.5,
            _ => 0.0,
        };
        let pays = match self.fault {
            Fault::SilencePays => self.said.is_empty() && self.closed.is_empty(),
            Fault::NoisePays => self.said.contains("Close") && !self.said.contains("cannot"),
            Fault::DestructionPays => any,
            Fault::RefusalPays => self.said.contains("cannot"),
            Fault::ExtraChangesAreFree => any && told,
            _ => false,
        };
        if pays {
            reward = 1.0;
        }
        if self.fault == Fault::RewardAboveOne {
            reward *= 2.0;
        }
        let check = |name: &str, yes: bool| Check {
            name: name.into(),
            score: f64::from(u8::from(yes)),
            weight: 0.0,
            detail: String::new(),
        };
        let mut checks = vec![check("right_ticket", right)];
        if self.fault == Fault::TwoChecksOfOneName {
            checks.push(check("right_ticket", told));
        }
        Ok(Verdict { reward, checks })
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        let wanted = || [("id".to_string(), json!(self.wanted))].into_iter().collect();
        Ok(match (self.fault, self.steps.len()) {
            (Fault::NoOracle, _) => None,
            (Fault::OracleErrs, 1) => Some(Action::say("done")),
            (_, 0) => Some(Action::call("list", serde_json::Map::new())),
            (_, _) if self.closed.is_empty() => Some(Action::call("close", wanted())),
            _ => Some(Action::say(format!("{} is closed.", self.wanted))),
        })
    }
}

/// The items that an audit of the desk with this fault fails.
fn failed(fault: Fault) -> Vec<String> {
    let healthy = Tickets::new(Fault::None);
    let audit = Audit {
        target: Some(healthy.spec()),
        writing_tools: vec!["close".into()],
        seeds: 30,
        call_limit: Duration::from_millis(if fault == Fault::Slow { 4 } else { 2000 }),
        ..Audit::default()
    };
    let mut heard = 0;
    let items = audit.run(&Tickets::new(fault), |_| heard += 1);
    assert_eq!(heard, items.len());
    items.into_iter().filter(|i| !i.passed).map(|i| i.name).collect()
}

#[test]
fn a_sound_environment_passes_every_item() {
    assert_eq!(failed(Fault::None), Vec::<String>::new());
}

#[test]
fn each_defect_fails_its_own_item_and_no_other() {
    for (fault, item) in [
        (Fault::OracleErrs, "oracle_scores_1"),
        (Fault::NoOracle, "oracle_scores_1"),
        (Fault::SameTask, "seeds_differ"),
        (Fault::DrawsFromOutside, "same_seed_same_episode"),
        (Fault::ActsTwice, "a_repeated_step_acts_once"),
        (Fault::BadCallEnds, "mistakes_are_observations"),
        (Fault::BadCallFails, "mistakes_are_observations"),
        (Fault::SilencePays, "silence_scores_nothing"),
        (Fault::NoisePays, "noise_scores_nothing"),
        (Fault::RefusalPays, "blind_refusal_scores_nothing"),
        (Fault::ExtraChangesAreFree, "an_extra_change_costs"),
        (Fault::AllOrNothing, "several_reward_levels"),
        (Fault::TwoChecksOfOneName, "verdicts_are_sound"),
        (Fault::EvidenceNeverOccurs, "verdicts_are_sound"),
        (Fault::LongOpening, "budgets_are_kept"),
        (Fault::LongObservation, "budgets_are_kept"),
        (Fault::Slow, "budgets_are_kept"),
    ] {
        assert!(failed(fault).contains(&item.to_string()), "{fault:?}: {:?}", failed(fault));
    }
    for fault in [
        Fault::SameTask,
        Fault::ActsTwice,
        Fault::BadCallEnds,
        Fault::AllOrNothing,
        Fault::EvidenceNeverOccurs,
        Fault::LongOpening,
        Fault::Slow,
    ] {
        assert_eq!(failed(fault).len(), 1, "{fault:?}: {:?}", failed(fault));
    }
}

#[test]
fn destruction_that_pays_is_found_as_such() {
    let failed = failed(Fault::DestructionPays);
    assert!(failed.contains(&"destruction_scores_nothing".to_string()), "{failed:?}");
}

#[test]
fn a_reward_outside_its_range_fails_the_audit_with_the_number() {
    let items = Audit { seeds: 3, ..Audit::default() }.run(&Tickets::new(Fault::RewardAboveOne), |_| ());
    let last = items.last().unwrap();
    assert!(!last.passed && last.detail.contains("reward 2"), "{last:?}");
}

#[test]
fn a_tool_that_the_target_lacks_or_has_otherwise_fails() {
    let env = Tickets::new(Fault::None);
    let first =
        |target: &EnvSpec| Audit { target: Some(target), seeds: 1, ..Audit::default() }.run(&env, |_| ())[0].clone();
    let mut target = env.spec().clone();
    target.tools.push(tool("more", json!({"type": "object"})));
    assert!(first(&target).passed);
    target.tools[1].description = "Closes.".into();
    assert!(first(&target).detail.contains("\"close\" differs"), "{:?}", first(&target));
    target.tools.remove(0);
    assert!(first(&target).detail.contains("no tool \"list\""), "{:?}", first(&target));
}
