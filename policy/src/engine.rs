//! Continuous batched sampling from one model.
//!
//! Requests wait in a queue, in order, and are admitted into a fixed number of slots; each step then feeds one token of
//! every admitted request and samples its next. A slot is a row of the key-value cache: it stays with its session
//! between requests, so that the next turn computes only what is new, until the session is released, or its slot is
//! needed, or the adapter's version changes. What sessions share at their beginning is computed once.
//!
//! The same requests, admitted at the same steps, give the same bits: rows are given out lowest first, shapes follow
//! from the requests alone, and random numbers depend on the request's stream and the token's index alone.
//!
//! An engine does not own the model: it belongs to the thread that does, and is handed model and adapter at each step.

use std::collections::{BTreeMap, VecDeque};

use tch::{Device, Kind};

use crate::active::Active;
use crate::gates::Capture;
use crate::kv::{Feed, KvCache, KvShape, Prefix, feed};
use crate::model::Model;
use crate::sampling::{Sampling, draw, to_vec, uniform};

/// New tokens that are computed in one pass before sampling: enough for the matrix products to be efficient, few enough
/// for the scores to stay in the processor's cache.
const TOKENS_PER_PASS: usize = 512;

/// How much an engine may hold.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Requests that are sampled at once.
    pub max_slots: usize,
    /// Bytes for keys and values, shared beginnings included.
    pub kv_budget_bytes: u64,
}

/// One turn to sample.
#[derive(Clone, Debug)]
pub struct GenRequest {
    /// The caller's name for the request; it comes back with the result.
    pub id: u64,
    /// The conversation that the request continues: at most one request of a session is under way.
    pub session: u64,
    /// All ids before the turn.
    pub context: Vec<i32>,
    /// So many of the context's first ids are shared with other sessions and worth computing once; less than all.
    pub shared_prefix: usize,
    /// The turn is cut after so many tokens; at least 1.
    pub max_tokens: usize,
    /// What to sample from.
    pub sampling: Sampling,
    /// Ids that end the turn; the one that did is part of the result.
    pub stop_ids: Vec<i32>,
    /// Decides the random numbers: distinct for every request of a run.
    pub stream: [u64; 4],
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was sampled.
    Stop,
    /// `max_tokens` were sampled.
    Length,
    /// The session was cancelled.
    Cancelled,
}

/// A sampled turn.
#[derive(Clone, Debug, PartialEq)]
pub struct GenResult {
    /// The request's.
    pub id: u64,
    /// What was sampled, the stop id included, `[T]`.
    pub tokens: Vec<i32>,
    /// The log-prob of each token under the distribution that it was drawn from (greedy: at temperature 1), `[T]`.
    pub logprobs: Vec<f32>,
    /// The slot that most layers chose where the token was predicted, `[T]`; None without gates.
    pub slots: Option<Vec<u8>>,
    /// Why it ended.
    pub finish: Finish,
}

/// Why an engine refused a request or a step.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A request that contradicts itself or the model.
    #[error("request {id} is refused: {reason}")]
    Request {
        /// The request.
        id: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A request that could not be served if it were alone.
    #[error(
        "request {id} needs {needed} bytes of keys and values and the engine may hold {budget}: raise the budget or \
         shorten the context"
    )]
    Budget {
        /// The request.
        id: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the engine may hold.
        budget: u64,
    },
    /// A turn is sampled wholly by one version.
    #[error("{running} turns are being sampled under version {was}: finish or cancel them before version {now} steps")]
    Version {
        /// Turns under way.
        running: usize,
        /// Their version.
        was: u64,
        /// The version of the refused step.
        now: u64,
    },
    /// The model gave something that is no number.
    #[error("request {id}: the model's log-probs are not finite at token {token}; its weights are not usable")]
    NotFinite {
        /// The request.
        id: u64,
        /// Index of the token in its turn.
        token: usize,
    },
    /// The step was given another model than the engine was made for.
    #[error("the engine was made for a model of other shapes")]
    Model,
}

/// A request under way.
#[derive(Debug)]
struct Turn {
    request: GenRequest,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    slots: Vec<u8>,
}

impl Turn {
    fn result(self, finish: Finish) -> GenResult {
        // Gates choose at every token or at none.
        let slots = (!self.slots.is_empty()).then_some(self.slots);
        GenResult { id: self.request.id, tokens: self.tokens, logprobs: self.logprobs, slots, finish }
    }
}

/// A conversation that has a row.
#[derive(Debug)]
struct Session {
    row: usize,
    /// Index into the engine's prefixes.
    prefix: Option<usize>,
    /// Ids of which the row holds keys and values.
    cached: Vec<i32>,
    /// Ids that follow them: of the context before sampling begins, then the last sampled one.
    pending: Vec<i32>,
    turn: Option<Turn>,
    last_used: u64,
}

/// Samples turns for many sessions at once.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    shape: KvShape,
    kind: Kind,
    device: Device,
    vocab_size: i64,
    max_positions: usize,
    cache: KvCache,
    queue: VecDeque<GenRequest>,
    /// In a fixed order, by id.
    sessions: BTreeMap<u64, Session>,
    /// By index; None where one was dropped.
    prefixes: Vec<Option<Prefix>>,
    version: Option<u64>,
    steps: u64,
}

impl Engine {
    /// An engine for models of this one's shapes.
    pub fn new(config: EngineConfig, model: &Model) -> Self {
        let shape = KvShape::of(model.config());
        Self {
            config: EngineConfig { max_slots: config.max_slots.max(1), ..config },
            shape,
            kind: model.kind(),
            device: model.device(),
            vocab_size: model.config().vocab_size,
            max_positions: model.config().max_position_embeddings as usize,
            cache: KvCache::new(shape, model.kind(), model.device()),
            queue: VecDeque::new(),
            sessions: BTreeMap::new(),
            prefixes: Vec::new(),
            version: None,
            steps: 0,
        }
    }

    /// Queues a request; it is taken up by the next step that has a slot for it, in the order of admission.
    ///
    /// # Errors
    /// Where the request contradicts itself or the model, its session has a request already, or it would not fit even
    /// alone.
    pub fn admit(&mut self, request: GenRequest) -> Result<(), EngineError> {
        let refuse = |reason: String| Err(EngineError::Request { id: request.id, reason });
        let length = request.context.len();
        if length == 0 {
            return refuse("its context is empty".to_string());
        }
        if request.shared_prefix >= length {
            return refuse(format!("its shared prefix of {} leaves nothing of {length}", request.shared_prefix));
        }
        if request.max_tokens == 0 {
            return refuse("max_tokens is 0".to_string());
        }
        if length + request.max_tokens > self.max_positions {
            let (tokens, limit) = (request.max_tokens, self.max_positions);
            return refuse(format!("{length} ids and {tokens} to sample are more than the model's {limit} positions"));
        }
        if let Some(id) = request.context.iter().find(|id| !(0..self.vocab_size).contains(&i64::from(**id))) {
            return refuse(format!("id {id} is not of the vocabulary of {}", self.vocab_size));
        }
        if let Some(fault) = request.sampling.fault() {
            return refuse(fault);
        }
        if self.has_request(request.session) {
            return refuse(format!("session {} has a request already", request.session));
        }
        let tokens = request.shared_prefix + KvCache::rounded(own_tokens(&request));
        let needed = tokens as u64 * self.shape.token_bytes(self.kind);
        if needed > self.config.kv_budget_bytes {
            return Err(EngineError::Budget { id: request.id, needed, budget: self.config.kv_budget_bytes });
        }
        self.queue.push_back(request);
        Ok(())
    }

    fn has_request(&self, session: u64) -> bool {
        let running = self.sessions.get(&session).is_some_and(|session| session.turn.is_some());
        running || self.queue.iter().any(|request| request.session == session)
    }

    /// Turns that are being sampled: they hold the engine to their version.
    pub fn running(&self) -> usize {
        self.sessions.values().filter(|session| session.turn.is_some()).count()
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Sessions that hold a slot, sampling or not.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes that keys and values take now.
    pub fn kv_bytes(&self) -> u64 {
        self.bytes(self.cache.rows(), self.cache.capacity())
    }

    /// Ends a session's request, if it has one, and frees its slot. The result has what was sampled so far.
    pub fn cancel(&mut self, session: u64) -> Option<GenResult> {
        if let Some(at) = self.queue.iter().position(|request| request.session == session) {
            let request = self.queue.remove(at)?;
            self.release(session);
            let turn = Turn { request, tokens: Vec::new(), logprobs: Vec::new(), slots: Vec::new() };
            return Some(turn.result(Finish::Cancelled));
        }
        let session = self.sessions.remove(&session)?;
        session.turn.map(|turn| turn.result(Finish::Cancelled))
    }

    /// Frees the slot of a session that will not continue. A request that it still has is dropped.
    pub fn release(&mut self, session: u64) {
        self.queue.retain(|request| request.session != session);
        self.sessions.remove(&session);
    }

    /// Takes up what waits as far as slots allow, samples one token of every turn under way, and returns the turns that
    /// this ended, by session. Nothing to do is no error: then nothing is returned.
    ///
    /// `version` names what `active` is: keys and values computed under another version are never used.
    ///
    /// # Errors
    /// Where turns are under way that another version began, or the model gives no numbers.
    pub fn step(&mut self, model: &Model, active: &Active, version: u64) -> Result<Vec<GenResult>, EngineError> {
        if model.kind() != self.kind || model.device() != self.device || model.config().vocab_size != self.vocab_size {
            return Err(EngineError::Model);
        }
        tch::no_grad(|| {
            self.enter(version)?;
            self.take_up(model, active);
            self.catch_up(model, active);
            self.sample(model, active)
        })
    }

    /// Drops what other versions left.
    fn enter(&mut self, now: u64) -> Result<(), EngineError> {
        let running = self.running();
        match self.version {
            Some(was) if was != now && running > 0 => return Err(EngineError::Version { running, was, now }),
            Some(was) if was != now => {
                self.sessions.clear();
                self.prefixes.clear();
            }
            _ => {}
        }
        self.version = Some(now);
        self.steps += 1;
        Ok(())
    }

    /// Gives slots to waiting requests, in order, until one has to wait.
    fn take_up(&mut self, model: &Model, active: &Active) {
        while let Some(request) = self.queue.front() {
            let (session, shared) = (request.session, request.context[..request.shared_prefix].to_vec());
            // A row that follows another beginning is of no use.
            let prefix_ids =
                |held: Option<usize>| held.and_then(|at| self.prefixes[at].as_ref()).map_or(&[][..], |p| &p.ids);
            if self.sessions.get(&session).is_some_and(|known| prefix_ids(known.prefix) != shared) {
                self.sessions.remove(&session);
            }
            if !self.make_room(session) {
                return;
            }
            let Some(request) = self.queue.pop_front() else { return };
            let prefix = self.prefix(model, active, &shared);
            let row = self.sessions.get(&session).map_or_else(|| self.free_row(), |known| known.row);
            let (cached, pending) = (Vec::new(), Vec::new());
            let new = Session { row, prefix, cached, pending, turn: None, last_used: self.steps };
            let session = self.sessions.entry(session).or_insert(new);
            session.take(request, self.steps);
        }
    }

    /// Whether the first waiting request, of `session`, can have a row; evicts idle sessions for it, the longest idle
    /// first, and makes the cache as big as it must be.
    fn make_room(&mut self, session: u64) -> bool {
        let Some(request) = self.queue.front() else { return false };
        let (own, shared) = (KvCache::rounded(own_tokens(request)), request.context[..request.shared_prefix].to_vec());
        loop {
            let known = self.sessions.contains_key(&session);
            let rows = self.sessions.values().map(|held| held.row + 1).max().unwrap_or(0);
            let free = (0..rows).any(|row| self.sessions.values().all(|held| held.row != row));
            let rows = rows + usize::from(!known && !free);
            let capacity = own.max(if self.sessions.is_empty() { 0 } else { self.cache.capacity() });
            // Moving the cache copies it: it grows by half where that fits, and to all rows at once.
            let roomy = if own > self.cache.capacity() { KvCache::rounded(self.cache.capacity() * 3 / 2) } else { 0 };
            let roomy = roomy.max(own).max(self.cache.capacity());
            let shared_bytes = match self.find_prefix(&shared) {
                None => shared.len() as u64 * self.shape.token_bytes(self.kind),
                Some(_) => 0,
            };
            let slots = self.config.max_slots;
            for (rows, capacity) in [(rows.max(slots), roomy), (rows.max(slots), capacity), (rows, capacity)] {
                if rows <= slots && self.bytes(rows, capacity) + shared_bytes <= self.config.kv_budget_bytes {
                    self.cache.resize(rows, capacity);
                    return true;
                }
            }
            let used: Vec<usize> = self.sessions.values().filter_map(|held| held.prefix).collect();
            let idle = self.sessions.iter().filter(|(id, held)| held.turn.is_none() && **id != session);
            let idle = idle.min_by_key(|(_, held)| held.last_used).map(|(id, _)| *id);
            let unused = (0..self.prefixes.len()).find(|at| {
                self.prefixes[*at].as_ref().is_some_and(|prefix| prefix.ids != shared) && !used.contains(at)
            });
            match (unused, idle) {
                (Some(unused), _) if rows <= self.config.max_slots => self.prefixes[unused] = None,
                (_, Some(idle)) => drop(self.sessions.remove(&idle)),
                // Its own row is in the way of a smaller cache.
                (_, None) if known && self.running() == 0 => drop(self.sessions.remove(&session)),
                (_, None) => return false,
            }
        }
    }

    fn bytes(&self, rows: usize, capacity: usize) -> u64 {
        let shared: usize = self.prefixes.iter().flatten().map(|prefix| prefix.ids.len()).sum();
        (rows * capacity + shared) as u64 * self.shape.token_bytes(self.kind)
    }

    fn free_row(&self) -> usize {
        (0..).find(|row| self.sessions.values().all(|held| held.row != *row)).unwrap_or_default()
    }

    fn find_prefix(&self, ids: &[i32]) -> Option<usize> {
        self.prefixes.iter().position(|prefix| prefix.as_ref().is_some_and(|prefix| prefix.ids == ids))
    }

    /// The index of a shared beginning, computed if need be; None for an empty one.
    fn prefix(&mut self, model: &Model, active: &Active, ids: &[i32]) -> Option<usize> {
        if ids.is_empty() {
            return None;
        }
        let known = self.find_prefix(ids);
        known.or_else(|| {
            let computed = Some(Prefix::compute(model, active, ids));
            match self.prefixes.iter().position(Option::is_none) {
                Some(at) => {
                    self.prefixes[at] = computed;
                    Some(at)
                }
                None => {
                    self.prefixes.push(computed);
                    Some(self.prefixes.len() - 1)
                }
            }
        })
    }

    /// Computes all that is pending but the last token of each turn, in passes of bounded size.
    fn catch_up(&mut self, model: &Model, active: &Active) {
        loop {
            let mut feeds = Vec::new();
            let mut left = TOKENS_PER_PASS;
            for session in self.sessions.values().filter(|session| session.turn.is_some()) {
                let count = (session.pending.len() - 1).min(left);
                if count > 0 {
                    feeds.push(session.feed(count, &self.prefixes));
                    left -= count;
                }
            }
            if feeds.is_empty() {
                return;
            }
            feed(model, active, &self.cache, &feeds, false, None);
            let fed: Vec<(usize, usize)> = feeds.iter().map(|feed| (feed.row, feed.ids.len())).collect();
            for session in self.sessions.values_mut() {
                if let Some((_, count)) = fed.iter().find(|(row, _)| *row == session.row) {
                    session.advance(*count);
                }
            }
        }
    }

    /// Feeds the last token of each turn and samples the next.
    fn sample(&mut self, model: &Model, active: &Active) -> Result<Vec<GenResult>, EngineError> {
        // In the order of rows, so that rows are attended to in place.
        let mut turns: Vec<&mut Session> =
            self.sessions.values_mut().filter(|session| session.turn.is_some()).collect();
        turns.sort_by_key(|session| session.row);
        let feeds: Vec<Feed> = turns.iter().map(|session| session.feed(1, &self.prefixes)).collect();
        let mut capture = Capture::default();
        let Some(hidden) =
            (if feeds.is_empty() { None } else { feed(model, active, &self.cache, &feeds, true, Some(&mut capture)) })
        else {
            return Ok(Vec::new());
        };
        drop(feeds);
        let logits = model.logits(&model.final_norm(&hidden));
        let rows: Vec<(Sampling, f64)> = turns
            .iter()
            .filter_map(|session| session.turn.as_ref())
            .map(|turn| (turn.request.sampling, uniform(&turn.request.stream, turn.tokens.len() as u64)))
            .collect();
        let drawn = draw(&logits, &rows);
        let slots = match active {
            Active::Routed(composition) => capture.modal_slots(composition.router().slots()),
            Active::Base | Active::Adapter(_) => None,
        };
        let slots = slots.map(|slots| to_vec::<i64>(&slots, Kind::Int64));
        if let Some(at) = drawn.logprobs.iter().position(|logprob| !logprob.is_finite()) {
            let (id, token) = turns[at].turn.as_ref().map_or((0, 0), |turn| (turn.request.id, turn.tokens.len()));
            return Err(EngineError::NotFinite { id, token });
        }
        for (at, session) in turns.iter_mut().enumerate() {
            session.advance(1);
            let Some(turn) = &mut session.turn else { continue };
            turn.tokens.push(drawn.tokens[at]);
            turn.logprobs.push(drawn.logprobs[at]);
            turn.slots.extend(slots.as_ref().map(|slots| slots[at] as u8));
            session.pending.push(drawn.tokens[at]);
        }
        Ok(self.sessions.values_mut().filter_map(|session| session.ended(self.steps)).collect())
    }
}

/// Tokens of a request that its row may have to hold.
fn own_tokens(request: &GenRequest) -> usize {
    request.context.len() - request.shared_prefix + request.max_tokens
}

impl Session {
    /// Begins a turn: what the row holds of its context is kept, the rest is pending.
    fn take(&mut self, request: GenRequest, step: u64) {
        let own = &request.context[request.shared_prefix..];
        let known = self.cached.iter().zip(own).take_while(|(a, b)| a == b).count().min(own.len() - 1);
        self.cached.truncate(known);
        self.pending = own[known..].to_vec();
        self.last_used = step;
        self.turn = Some(Turn { request, tokens: Vec::new(), logprobs: Vec::new(), slots: Vec::new() });
    }

    fn feed<'a>(&'a self, count: usize, prefixes: &'a [Option<Prefix>]) -> Feed<'a> {
        let prefix = self.prefix.and_then(|at| prefixes[at].as_ref());
        Feed { row: self.row, start: self.cached.len(), ids: &self.pending[..count], prefix }
    }

    fn advance(&mut self, count: usize) {
        self.cached.extend(self.pending.drain(..count));
    }

    /// Takes the turn out if its last token ended it.
    fn ended(&mut self, step: u64) -> Option<GenResult> {
        let turn = self.turn.as_ref()?;
        let last = turn.tokens.last()?;
        let finish = if turn.request.stop_ids.contains(last) {
            Finish::Stop
        } else if turn.tokens.len() >= turn.request.max_tokens {
            Finish::Length
        } else {
            return None;
        };
        self.last_used = step;
        self.turn.take().map(|turn| turn.result(finish))
    }
}
