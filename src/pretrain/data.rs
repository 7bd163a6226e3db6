//! Training examples of the base policy: demonstrations of the helpdesk's scripted agent, packed behind a shared
//! system prompt, and strings to copy.

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt};
use serde_json::{Value, json};
use trace_envs::helpdesk::{Capability, Demo, DemoWorld, Habits, Listed, listing};
use trace_envs::{Action, Call, Message, ToolSpec};
use trace_policy::chat::{Chat, Extension};
use trace_policy::packed::Packed;
use trace_policy::pretrain::PackedExample;

use super::PretrainError;

/// What a batch is drawn from at one moment of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// How large worlds and demands are, 0 = one record and one part, 1 = the target's.
    pub growth: f64,
    /// Share of packs that hold strings to copy.
    pub copy: f64,
    /// Tokens of the longest string to copy.
    pub copy_longest: u32,
    /// Share of packs, of those that are left, that hold lists to look records up in.
    pub lookup: f64,
    /// Share of demonstration packs whose system prompt gets a hint, beside those of random worlds that have one.
    pub hinted: f64,
    /// Share of demonstration packs in the target world itself.
    pub target: f64,
}

/// Draws examples.
pub struct ExampleSource {
    /// The tokenizer of the base policy and its template.
    pub chat: Chat,
    /// How often the agent is capable.
    pub habits: Habits,
    /// Tokens of a pack, about.
    pub pack_tokens: usize,
}

/// A demonstration as ids: the opening, then the rest with a mask that is true on what the agent wrote.
pub struct DemoIds {
    /// Ids up to the agent's first turn.
    pub opening: Vec<i32>,
    /// Ids from the agent's first turn on.
    pub rest: Vec<i32>,
    /// True on the agent's tokens, of `rest`'s length.
    pub mask: Vec<bool>,
}

/// A message as the chat template reads it.
fn message_json(message: &Message) -> Value {
    json!({"role": message.role, "content": message.content})
}

/// A turn of the agent as the chat template reads it.
fn action_json(action: &Action) -> Value {
    let calls: Vec<Value> = action
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Tool(call) => Some(json!({"type": "function", "function": call})),
            Call::Malformed { .. } => None,
        })
        .collect();
    if calls.is_empty() {
        json!({"role": "assistant", "content": action.text})
    } else {
        json!({"role": "assistant", "content": action.text, "tool_calls": calls})
    }
}

/// Tools as the chat template reads them.
fn tools_json(tools: &[ToolSpec]) -> Vec<Value> {
    tools.iter().map(|t| json!({"type": "function", "function": t})).collect()
}

impl ExampleSource {
    /// One pack.
    ///
    /// # Errors
    /// Where a demonstration cannot be tokenised.
    pub fn draw<R: Rng>(&self, rng: &mut R, mixture: Mixture) -> Result<PackedExample, PretrainError> {
        if rng.random_bool(mixture.copy) {
            return Ok(self.copy_pack(rng, mixture.copy_longest as usize));
        }
        // A rate of 0 draws nothing, so that the stages without it keep their examples.
        if mixture.lookup > 0.0 && rng.random_bool(mixture.lookup) {
            return self.lookup_pack(rng);
        }
        let world =
            if rng.random_bool(mixture.target) { DemoWorld::target() } else { DemoWorld::random(rng, mixture.growth) };
        let world = if mixture.hinted > 0.0 && rng.random_bool(mixture.hinted) {
            world.hinted(*Capability::ALL.choose(rng).expect("four"))
        } else {
            world
        };
        let mut demos = Vec::new();
        let mut tokens = 0;
        while tokens < self.pack_tokens {
            let demo = world.demo(rng, mixture.growth, &self.habits);
            let ids = self.ids(&demo)?;
            // The first counts its prompt, which the others share.
            tokens += ids.rest.len() + if demos.is_empty() { ids.opening.len() } else { 40 };
            demos.push(ids);
        }
        Ok(pack(demos))
    }

    /// A demonstration as token ids; what the agent wrote is tokenised apart from what surrounds it, as in sampling.
    ///
    /// # Errors
    /// Where the template or the tokenizer refuses it.
    pub fn ids(&self, demo: &Demo) -> Result<DemoIds, PretrainError> {
        let messages: Vec<Value> = demo.opening.messages.iter().map(message_json).collect();
        let mut conversation =
            self.chat.open(messages, tools_json(&demo.opening.tools), demo.opening.hint.as_deref())?;
        let opening = conversation.tokens().to_vec();
        let (mut rest, mut mask) = (Vec::new(), Vec::new());
        for turn in &demo.turns {
            rest.extend(conversation.demonstrate(action_json(&turn.action))?);
            mask.resize(rest.len(), true);
            if !turn.reply.is_empty() {
                match conversation.observe(turn.reply.iter().map(message_json).collect())? {
                    Extension::Appended(ids) => rest.extend(ids),
                    Extension::Rewritten { .. } => return Err(PretrainError::Rewritten),
                }
                mask.resize(rest.len(), false);
            }
        }
        Ok(DemoIds { opening, rest, mask })
    }

    /// Random strings, each followed by itself; only the repetition is learned.
    fn copy_pack<R: Rng>(&self, rng: &mut R, longest: usize) -> PackedExample {
        let vocabulary = self.chat.tokenizer().vocab_size() as i32;
        let mut branches = Vec::new();
        let mut masks = Vec::new();
        let mut tokens = 0;
        while tokens < self.pack_tokens / 2 {
            let length = rng.random_range(6..=longest);
            let half: Vec<i32> = (0..length).map(|_| rng.random_range(0..vocabulary)).collect();
            let branch: Vec<i32> = half.iter().chain(&half).copied().collect();
            // The first repeated token cannot be foreseen.
            masks.push((0..2 * length).map(|i| i > length).collect());
            tokens += branch.len();
            branches.push(branch);
        }
        self.strings(branches, masks)
    }

    /// Lists as the desk shows them, each followed by look-ups of its records in the words of a call; only ids are
    /// learned. A demonstration has one look-up in 150 tokens, a list here has twelve in 400.
    fn lookup_pack<R: Rng>(&self, rng: &mut R) -> Result<PackedExample, PretrainError> {
        let tokenizer = self.chat.tokenizer();
        let (mut branches, mut masks) = (Vec::new(), Vec::new());
        let mut tokens = 0;
        while tokens < self.pack_tokens / 2 {
            let (list, mut records) = listing(rng);
            let mut branch = tokenizer.encode(&list)?;
            let mut mask = vec![false; branch.len()];
            for _ in 0..2 {
                records.shuffle(rng);
                for Listed { item, id } in &records {
                    branch.extend(tokenizer.encode(&format!("\n{{\"record\": \"{item}"))?);
                    mask.resize(branch.len(), false);
                    branch.extend(tokenizer.encode(&format!(" {id}"))?);
                    mask.resize(branch.len(), true);
                }
            }
            tokens += branch.len();
            branches.push(branch);
            masks.push(mask);
        }
        Ok(self.strings(branches, masks))
    }

    /// Strings that share nothing but the token before their first.
    fn strings(&self, branches: Vec<Vec<i32>>, masks: Vec<Vec<bool>>) -> PackedExample {
        let packed = Packed { prefix: vec![self.chat.tokenizer().stop_ids()[0]], branches };
        PackedExample { packed, prefix_loss: Vec::new(), branch_loss: masks }
    }
}

/// Packs demonstrations behind what all of them begin with.
fn pack(demos: Vec<DemoIds>) -> PackedExample {
    let first = &demos[0].opening;
    let shared = demos
        .iter()
        .map(|d| first.iter().zip(&d.opening).take_while(|(a, b)| a == b).count())
        .min()
        .unwrap_or(0)
        .min(demos.iter().map(|d| d.opening.len() - 1).min().unwrap_or(0));
    let prefix = first[..shared].to_vec();
    let (branches, masks) = demos
        .into_iter()
        .map(|d| {
            let own = d.opening.len() - shared;
            let mask: Vec<bool> = std::iter::repeat_n(false, own).chain(d.mask).collect();
            let branch: Vec<i32> = d.opening[shared..].iter().copied().chain(d.rest).collect();
            (branch, mask)
        })
        .unzip();
    PackedExample { packed: Packed { prefix, branches }, prefix_loss: Vec::new(), branch_loss: masks }
}

/// The text of a demonstration in pieces, as the tokenizer meets it: what the template writes around it apart.
pub fn demo_text(demo: &Demo) -> Vec<String> {
    let mut out: Vec<String> = demo.opening.messages.iter().map(|m| format!("\n{}", m.content)).collect();
    out.extend(demo.opening.tools.iter().map(|tool| format!("\n{}\n", python_json(&json!(tool)))));
    for turn in &demo.turns {
        out.push(turn.action.text.clone());
        for call in &turn.action.calls {
            if let Call::Tool(call) = call {
                out.push(format!("\n{}\n", python_json(&json!(call))));
            }
        }
        out.extend(turn.reply.iter().map(|m| format!("\n{}\n", m.content)));
    }
    out.extend(["\nsystem", "\nuser", "user\n", "assistant\n", "\n<tools>\n", "\n</tools>\n"].map(String::from));
    out
}

/// JSON with a space after `:` and `,`, as templates write it.
fn python_json(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let inner: Vec<String> = map.iter().map(|(k, v)| format!("{}: {}", json!(k), python_json(v))).collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(python_json).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
