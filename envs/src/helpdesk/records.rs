//! The desk's data: one customer's orders and trips, what the tools do to them, and what was sent out.

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt};
use serde_json::{Map, Value, json};

use super::tools::{Tool, option_of};

const COLOURS: [&str; 10] = ["red", "blue", "green", "black", "white", "grey", "brown", "pink", "gold", "teal"];
const NOUNS: [&str; 24] = [
    "lamp", "chair", "table", "shelf", "rug", "clock", "mirror", "kettle", "mug", "bowl", "plate", "pan", "bag",
    "coat", "scarf", "boots", "tent", "rope", "drum", "radio", "phone", "watch", "puzzle", "kite",
];
const RIDES: [&str; 4] = ["flight", "train", "hotel", "ferry"];
const CITIES: [&str; 24] = [
    "rome", "oslo", "paris", "cairo", "lima", "quito", "delhi", "tokyo", "seoul", "porto", "turin", "malmo", "basel",
    "lyon", "nice", "bonn", "kyoto", "osaka", "perth", "dakar", "accra", "sofia", "riga", "tunis",
];

/// Whether a record is an order or a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Desk {
    /// Goods that are shipped.
    Orders,
    /// Reservations.
    Trips,
}

/// One order or trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Which kind it is.
    pub desk: Desk,
    /// What it is called, such as `red lamp`; the second word is unique among a customer's records.
    pub item: String,
    /// A letter and four digits.
    pub id: String,
    /// `MM-DD`.
    pub date: String,
    /// What the policy looks at: an order's status or a trip's fare.
    pub condition: String,
    /// Whole euros.
    pub total: u32,
    /// The option that a tool can change: an order's shipping method or a trip's class.
    pub option: String,
}

/// The names under which the condition and the option of a record are shown.
fn field_names(desk: Desk) -> (&'static str, &'static str) {
    match desk {
        Desk::Orders => ("status", "method"),
        Desk::Trips => ("fare", "class"),
    }
}

impl Record {
    /// How tools and their callers name the record: item and id, such as `red lamp A1234`. The id comes right behind
    /// the words that it is looked up by.
    pub fn name(&self) -> String {
        format!("{} {}", self.item, self.id)
    }

    /// The fields that a list shows.
    fn brief(&self) -> Value {
        json!({"record": self.name(), "date": self.date})
    }

    /// All fields.
    fn full(&self) -> Value {
        let (condition, option) = field_names(self.desk);
        json!({"record": self.name(), condition: self.condition, option: self.option, "total": self.total})
    }
}

/// The id in a record's name: its last word.
pub fn id_of(name: &str) -> &str {
    name.rsplit(' ').next().unwrap_or(name)
}

/// Draws `count` different values of `0..n`.
fn distinct<R: Rng>(rng: &mut R, n: usize, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    all.shuffle(rng);
    all.truncate(count);
    all
}

/// An id of a letter and four digits, unlike those in `taken`.
fn fresh_id<R: Rng>(rng: &mut R, taken: &[Record]) -> String {
    loop {
        let letter = (b'A' + rng.random_range(0..26u8)) as char;
        let id = format!("{letter}{:04}", rng.random_range(0..10_000));
        if taken.iter().all(|r| r.id != id) {
            return id;
        }
    }
}

/// A customer and what the desk holds of theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    /// The customer's id: `U` and four digits.
    pub user: String,
    /// Orders and trips, in the order in which lists show them.
    pub records: Vec<Record>,
    /// What was sent, as (tool, record id, option): receipts and codes.
    pub sent: Vec<(Tool, String, String)>,
}

impl Records {
    /// A customer with so many orders and trips.
    pub fn generate<R: Rng>(rng: &mut R, orders: usize, trips: usize) -> Self {
        let mut records: Vec<Record> = Vec::with_capacity(orders + trips);
        for (desk, count, first, second) in
            [(Desk::Orders, orders, &COLOURS[..], &NOUNS[..]), (Desk::Trips, trips, &RIDES[..], &CITIES[..])]
        {
            for key in distinct(rng, second.len(), count) {
                let item = format!("{} {}", first.choose(rng).expect("not empty"), second[key]);
                let id = fresh_id(rng, &records);
                let (conditions, options): (&[&str], &[&str]) = match desk {
                    Desk::Orders => (&["pending", "shipped", "delivered"], &["ST", "EX", "PU"]),
                    Desk::Trips => (&["flex", "basic"], &["EC", "BU", "FI"]),
                };
                records.push(Record {
                    desk,
                    item,
                    id,
                    date: format!("{:02}-{:02}", rng.random_range(1..=12), rng.random_range(1..=28)),
                    condition: (*conditions.choose(rng).expect("not empty")).to_string(),
                    total: rng.random_range(10..100),
                    option: (*options.choose(rng).expect("not empty")).to_string(),
                });
            }
        }
        Self { user: format!("U{:04}", rng.random_range(0..10_000)), records, sent: Vec::new() }
    }

    /// The record with this id on this desk.
    pub fn find(&self, desk: Desk, id: &str) -> Option<&Record> {
        self.records.iter().find(|r| r.desk == desk && r.id == id)
    }

    /// What a list tool of this desk shows.
    pub fn list(&self, desk: Desk) -> Value {
        self.records.iter().filter(|r| r.desk == desk).map(Record::brief).collect()
    }

    /// Executes a tool. An error is an observation for the policy: nothing was changed.
    pub fn execute(&mut self, tool: Tool, args: &Map<String, Value>) -> Result<Value, String> {
        let text = |name: &str| match args.get(name) {
            Some(Value::String(s)) => Ok(s.as_str()),
            Some(other) => Err(format!("{name} must be a string, not {other}")),
            None => Err(format!("{name} is missing")),
        };
        if let Some(unknown) = args.keys().find(|k| !tool.parameters().contains(&k.as_str())) {
            return Err(format!("{} takes no {unknown}", tool.name()));
        }
        if let Tool::ListOrders | Tool::ListTrips = tool {
            if text("user")? != self.user {
                return Err("no such user".to_string());
            }
            return Ok(self.list(tool.desk()));
        }
        let id = id_of(text("record")?).to_string();
        let option = match option_of(tool) {
            Some(name) => text(name)?.to_string(),
            None => String::new(),
        };
        let desk = tool.desk();
        let record = self
            .records
            .iter_mut()
            .find(|r| r.id == id && (r.desk == desk || matches!(tool, Tool::SendReceipt | Tool::ResendCode)))
            .ok_or_else(|| "no such record".to_string())?;
        match tool {
            Tool::ListOrders | Tool::ListTrips => unreachable!("handled above"),
            Tool::GetOrder | Tool::GetTrip => return Ok(record.full()),
            // The desk's tools do what they are told: keeping the policy is the agent's part.
            Tool::CancelOrder | Tool::CancelTrip => record.condition = "cancelled".to_string(),
            Tool::ReturnOrder => record.condition = "returned".to_string(),
            Tool::SetShipping | Tool::ChangeClass => record.option = option,
            Tool::SendReceipt | Tool::ResendCode => self.sent.push((tool, id, option)),
        }
        Ok(json!({"ok": true}))
    }
}
