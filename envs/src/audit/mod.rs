//! The audit that every environment must pass before a policy is trained in it.
//!
//! It knows nothing of the environment but its contract: it plays the oracle, policies that deserve nothing, and the
//! oracle disturbed, on train seeds, and compares. Each finding is an [`AuditItem`] with the numbers behind it.

mod play;
mod players;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::seq::IndexedRandom;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::{Action, Call, EnvSpec, Environment, Role, StepReply, ToolCall};
use crate::failure::EnvError;
use crate::seeds::{SeedStream, Split};
use play::{Game, play, play_oracle, replay};
use players::Seen;

/// One property that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditItem {
    /// The property, such as `oracle_scores_1`.
    pub name: String,
    /// Whether it holds.
    pub passed: bool,
    /// What was found, with numbers; where it does not hold, the first counterexample.
    pub detail: String,
}

/// What an audit compares with and how much it plays.
#[derive(Clone, Debug)]
pub struct Audit<'a> {
    /// The world for which the environment trains a policy: its tools must be a superset. `None` skips the comparison.
    pub target: Option<&'a EnvSpec>,
    /// The target's tools that change or send something: an extra call of one must cost. Empty skips that.
    pub writing_tools: Vec<String>,
    /// Train seeds that are played, at least one.
    pub seeds: u64,
    /// The highest mean reward of a policy that deserves nothing.
    pub undeserved: f64,
    /// The longest that one call may take.
    pub call_limit: Duration,
    /// Bytes of an opening's messages.
    pub opening_bytes: usize,
    /// Bytes of one observation.
    pub observation_bytes: usize,
}

impl Default for Audit<'_> {
    fn default() -> Self {
        Self {
            target: None,
            writing_tools: Vec::new(),
            seeds: 100,
            undeserved: 0.1,
            call_limit: Duration::from_secs(2),
            opening_bytes: 16 << 10,
            observation_bytes: 4 << 10,
        }
    }
}

/// The share of seeds whose conversations with the oracle must differ.
const DISTINCT: f64 = 0.9;

/// The highest mean reward of the oracle with one change that it should not have made.
const DISTURBED: f64 = 0.5;

/// The random stream of the policies.
const STREAM: u64 = 0x0061_7564_6974;

type Finding = Result<String, String>;

impl Audit<'_> {
    /// Plays and judges; `each` hears of every item as it is found.
    pub fn run(&self, env: &dyn Environment, mut each: impl FnMut(&AuditItem)) -> Vec<AuditItem> {
        let mut items = Vec::new();
        let mut note = |name: &str, finding: Finding| {
            let passed = finding.is_ok();
            let item = AuditItem { name: name.to_string(), passed, detail: finding.unwrap_or_else(|d| d) };
            each(&item);
            items.push(item);
        };
        note("tools_are_the_targets", self.tools(env.spec()));
        let oracle = match self.oracle_games(env) {
            Ok(games) => games,
            Err(failure) => {
                note("oracle_scores_1", Err(failure));
                return items;
            }
        };
        note("oracle_scores_1", oracle_scores(&oracle));
        note("seeds_differ", self.seeds_differ(&oracle));
        note("same_seed_same_episode", self.same_seed(env, &oracle));
        note("a_repeated_step_acts_once", self.repeated_step(env, &oracle));
        note("mistakes_are_observations", self.mistakes(env));
        let mut games: Vec<Game> = oracle.into_values().collect();
        for (name, kind) in [
            ("silence_scores_nothing", Unworthy::Silence),
            ("noise_scores_nothing", Unworthy::Noise),
            ("destruction_scores_nothing", Unworthy::Destruction),
            ("blind_refusal_scores_nothing", Unworthy::BlindRefusal),
        ] {
            note(name, self.unworthy(env, kind, &mut games));
        }
        if !self.writing_tools.is_empty() {
            note("an_extra_change_costs", self.extra_change(env, &mut games));
        }
        if env.spec().capability.is_some() {
            note("several_reward_levels", self.reward_levels(env, &mut games));
        }
        note("verdicts_are_sound", verdicts(env.spec(), &games));
        note("budgets_are_kept", self.budgets(&games));
        items
    }

    fn seed(index: u64) -> u64 {
        Split::Train.seed(index)
    }

    fn tools(&self, spec: &EnvSpec) -> Finding {
        let Some(target) = self.target else { return Ok("no target to compare with".to_string()) };
        for tool in &spec.tools {
            match target.tools.iter().find(|t| t.name == tool.name) {
                None => return Err(format!("{} has no tool {:?}", target.name, tool.name)),
                Some(wanted) if wanted != tool => {
                    return Err(format!("{:?} differs from {}'s: {} there", tool.name, target.name, json!(wanted)));
                }
                Some(_) => {}
            }
        }
        Ok(format!("{} of {}'s {} tools", spec.tools.len(), target.name, target.tools.len()))
    }

    /// The oracle's games by seed index and level, level 0 included.
    fn oracle_games(&self, env: &dyn Environment) -> Result<BTreeMap<(u64, u32), Game>, String> {
        let mut games = BTreeMap::new();
        for level in 0..=env.spec().levels {
            for index in 0..self.seeds {
                let seed = Self::seed(index);
                let game = play_oracle(env, seed, level).map_err(|e| format!("seed {seed} at level {level}: {e}"))?;
                if game.actions.is_empty() {
                    return Err(format!("seed {seed} at level {level}: the environment has no oracle"));
                }
                games.insert((index, level), game);
            }
        }
        Ok(games)
    }

    fn seeds_differ(&self, oracle: &BTreeMap<(u64, u32), Game>) -> Finding {
        let mut worst = (1.0, 0);
        for level in oracle.keys().map(|(_, level)| *level).collect::<BTreeSet<_>>() {
            let texts: BTreeSet<String> = oracle
                .iter()
                .filter(|((_, l), _)| *l == level)
                .map(|(_, game)| game.messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n"))
                .collect();
            let share = texts.len() as f64 / self.seeds as f64;
            if share < worst.0 {
                worst = (share, level);
            }
        }
        let detail = format!("at least {:.0} % of conversations differ (level {})", 100.0 * worst.0, worst.1);
        if worst.0 >= DISTINCT { Ok(detail) } else { Err(detail) }
    }

    fn same_seed(&self, env: &dyn Environment, oracle: &BTreeMap<(u64, u32), Game>) -> Finding {
        for ((index, level), game) in oracle {
            let seed = Self::seed(*index);
            let again = replay(env, seed, *level, &game.actions).map_err(|e| format!("seed {seed}: {e}"))?;
            if again.outcome() != game.outcome() {
                return Err(format!("seed {seed} at level {level} went another way when it was played again"));
            }
        }
        Ok(format!("{} games played twice", oracle.len()))
    }

    fn repeated_step(&self, env: &dyn Environment, oracle: &BTreeMap<(u64, u32), Game>) -> Finding {
        for index in 0..self.seeds.min(20) {
            let seed = Self::seed(index);
            let Some(game) = oracle.get(&(index, 0)) else { continue };
            let doubled = || -> Result<bool, EnvError> {
                let mut episode = env.reset(seed, 0)?;
                for (i, action) in game.actions.iter().enumerate() {
                    let first: StepReply = episode.step(i as u64, action)?;
                    if episode.step(i as u64, action)? != first {
                        return Ok(false);
                    }
                }
                Ok(episode.verdict()?.validated()? == game.verdict)
            };
            match doubled() {
                Ok(true) => {}
                Ok(false) => return Err(format!("seed {seed}: a step that was asked for twice acted twice")),
                Err(e) => return Err(format!("seed {seed}: {e}")),
            }
        }
        Ok("each step asked for twice".to_string())
    }

    fn mistakes(&self, env: &dyn Environment) -> Finding {
        let tool = env.spec().tools.first();
        for index in 0..self.seeds.min(20) {
            let seed = Self::seed(index);
            let listed = tool.map(|t| ToolCall {
                name: t.name.clone(),
                arguments: [("no_such_argument".to_string(), json!([1, 2]))].into_iter().collect(),
            });
            let mut calls = vec![
                Call::Malformed { raw: "{\"name\":".to_string(), error: "it ends early".to_string() },
                Call::Tool(ToolCall { name: "no_such_tool".to_string(), arguments: Default::default() }),
            ];
            calls.extend(listed.map(Call::Tool));
            let count = calls.len();
            let reply = env
                .reset(seed, 0)
                .and_then(|mut episode| episode.step(0, &Action { text: String::new(), calls }))
                .map_err(|e| format!("seed {seed}: {e}"))?;
            let errors = reply
                .messages
                .iter()
                .filter(|m| m.role == Role::Tool)
                .filter(|m| {
                    serde_json::from_str::<serde_json::Value>(&m.content).is_ok_and(|v| v.get("error").is_some())
                })
                .count();
            if errors != count || reply.messages.len() != count || reply.done {
                return Err(format!("seed {seed}: {count} bad calls were answered by {:?}", reply.messages));
            }
        }
        Ok("broken JSON, an unknown tool and an unknown argument are answered with errors".to_string())
    }

    fn unworthy(&self, env: &dyn Environment, kind: Unworthy, games: &mut Vec<Game>) -> Finding {
        let mut worst = (0.0, 0);
        for level in 0..=env.spec().levels {
            let mut total = 0.0;
            for index in 0..self.seeds {
                let seed = Self::seed(index);
                let mut rng = SeedStream::keyed(&[STREAM, kind as u64, seed, u64::from(level)]);
                let last_turn = (env.spec().max_turns - 1).min(5);
                let game = play(env, seed, level, |seen: &Seen<'_>, _| {
                    Ok(Some(match kind {
                        Unworthy::Silence => players::silence(),
                        Unworthy::Noise => players::noise(seen, &mut rng),
                        Unworthy::Destruction => players::destruction(seen, seen.turn >= last_turn, &mut rng),
                        Unworthy::BlindRefusal => players::blind_refusal(seen),
                    }))
                })
                .map_err(|e| format!("seed {seed} at level {level}: {e}"))?;
                total += game.verdict.reward;
                games.push(game);
            }
            let mean = total / self.seeds as f64;
            if mean >= worst.0 {
                worst = (mean, level);
            }
        }
        let detail = format!("mean reward at most {:.3} (level {})", worst.0, worst.1);
        if worst.0 <= self.undeserved { Ok(detail) } else { Err(detail) }
    }

    /// The oracle, with one change more than it makes before its last turn.
    fn extra_change(&self, env: &dyn Environment, games: &mut Vec<Game>) -> Finding {
        let writes: Vec<_> =
            env.spec().tools.iter().filter(|t| self.writing_tools.contains(&t.name)).cloned().collect();
        if writes.is_empty() {
            return Ok("no tool changes anything".to_string());
        }
        let (mut total, mut count) = (0.0, 0u32);
        for index in 0..self.seeds {
            let seed = Self::seed(index);
            let mut rng = SeedStream::keyed(&[STREAM, 0x65, seed]);
            let mut changed = false;
            let result = play(env, seed, 0, |seen, episode| {
                let Some(mut action) = episode.oracle()? else { return Ok(None) };
                if action.calls.is_empty() && seen.turn > 0 && !changed {
                    let offered: Vec<_> =
                        writes.iter().filter(|w| seen.tools.iter().any(|t| t.name == w.name)).cloned().collect();
                    // Ids of tool results: those of records, unlike a customer's.
                    let ids: Vec<_> =
                        players::ids_in(seen.messages).into_iter().filter(|f| !f.beside.is_empty()).collect();
                    let calls = players::plausible_calls(&offered, &ids, &mut rng);
                    if let Some(call) = calls.choose(&mut rng) {
                        changed = true;
                        action = Action::call(call.name.clone(), call.arguments.clone());
                    }
                }
                Ok(Some(action))
            });
            let game = result.map_err(|e| format!("seed {seed}: {e}"))?;
            if changed {
                total += game.verdict.reward;
                count += 1;
            }
            games.push(game);
        }
        if count == 0 {
            return Ok("no change could be made".to_string());
        }
        let mean = total / f64::from(count);
        let detail = format!("mean reward {mean:.3} over {count} games of the oracle with one change too many");
        if mean <= DISTURBED { Ok(detail) } else { Err(detail) }
    }

    /// The oracle with each of its actions left out in turn.
    fn reward_levels(&self, env: &dyn Environment, games: &mut Vec<Game>) -> Finding {
        for index in 0..self.seeds.min(30) {
            let seed = Self::seed(index);
            let whole = play_oracle(env, seed, 0).map_err(|e| format!("seed {seed}: {e}"))?;
            for left_out in 0..whole.actions.len() {
                let mut actions = whole.actions.clone();
                actions.remove(left_out);
                games.push(replay(env, seed, 0, &actions).map_err(|e| format!("seed {seed}: {e}"))?);
            }
        }
        let rewards: BTreeSet<String> = games.iter().map(|g| format!("{:.3}", g.verdict.reward)).collect();
        let detail = format!("rewards seen: {}", rewards.iter().cloned().collect::<Vec<_>>().join(", "));
        if rewards.len() >= 3 { Ok(detail) } else { Err(detail) }
    }

    fn budgets(&self, games: &[Game]) -> Finding {
        let (mut opening, mut observation) = (0, 0);
        let mut slowest = Duration::ZERO;
        for game in games {
            let asked = game.messages.iter().take_while(|m| m.role != Role::Assistant);
            opening = opening.max(asked.map(|m| m.content.len()).sum());
            let told = game.messages.iter().filter(|m| m.role == Role::Tool).map(|m| m.content.len());
            observation = observation.max(told.max().unwrap_or(0));
            slowest = slowest.max(game.slowest);
        }
        let detail = format!(
            "opening up to {opening} of {} bytes, observation up to {observation} of {}, a call up to {} of {} ms",
            self.opening_bytes,
            self.observation_bytes,
            slowest.as_millis(),
            self.call_limit.as_millis()
        );
        let kept = opening <= self.opening_bytes && observation <= self.observation_bytes && slowest <= self.call_limit;
        if kept { Ok(detail) } else { Err(detail) }
    }
}

/// Policies that deserve nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unworthy {
    Silence = 1,
    Noise = 2,
    Destruction = 3,
    BlindRefusal = 4,
}

fn oracle_scores(oracle: &BTreeMap<(u64, u32), Game>) -> Finding {
    let mut turns = 0;
    for ((index, level), game) in oracle {
        let seed = Audit::seed(*index);
        if game.verdict.reward < 1.0 - 1e-6 {
            let short: Vec<String> = game
                .verdict
                .checks
                .iter()
                .filter(|c| c.score < 1.0)
                .map(|c| format!("{} {}: {}", c.name, c.score, c.detail))
                .collect();
            return Err(format!("seed {seed} at level {level} scores {}: {}", game.verdict.reward, short.join("; ")));
        }
        if !game.done {
            return Err(format!("seed {seed} at level {level}: the oracle did not end within the turn limit"));
        }
        turns = turns.max(game.actions.len());
    }
    Ok(format!("{} games of at most {turns} turns", oracle.len()))
}

fn verdicts(spec: &EnvSpec, games: &[Game]) -> Finding {
    let mut seen = BTreeSet::new();
    for game in games {
        let mut names = BTreeSet::new();
        for check in &game.verdict.checks {
            if !names.insert(check.name.as_str()) {
                return Err(format!("a verdict has two checks named {:?}", check.name));
            }
        }
        seen.extend(names.into_iter().map(str::to_string));
    }
    for evidence in &spec.evidence {
        if let Some(missing) = evidence.checks.iter().find(|c| !seen.contains(*c)) {
            return Err(format!("the check {missing:?}, evidence for {}, never occurred", evidence.capability));
        }
    }
    Ok(format!("{} verdicts with the checks {}", games.len(), seen.into_iter().collect::<Vec<_>>().join(", ")))
}
