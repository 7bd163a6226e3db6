//! The desk's tools: names, terse OpenAI schemas, and the codes of their options.

use serde_json::{Value, json};

use super::records::Desk;
use crate::contract::ToolSpec;

/// The tools of the desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    /// Lists a customer's orders.
    ListOrders,
    /// Lists a customer's trips.
    ListTrips,
    /// Reads an order.
    GetOrder,
    /// Reads a trip.
    GetTrip,
    /// Cancels an order.
    CancelOrder,
    /// Takes an order back.
    ReturnOrder,
    /// Changes an order's shipping method.
    SetShipping,
    /// Cancels a trip.
    CancelTrip,
    /// Changes a trip's class.
    ChangeClass,
    /// Sends a receipt.
    SendReceipt,
    /// Sends the pick-up code again.
    ResendCode,
}

/// One code of an option and the words customers use for it.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// What the tool wants.
    pub code: &'static str,
    /// The plain word, which the schema explains.
    pub word: &'static str,
    /// How a customer says it without that word.
    pub phrase: &'static str,
}

const METHODS: [Code; 3] = [
    Code { code: "ST", word: "standard", phrase: "the cheapest way" },
    Code { code: "EX", word: "express", phrase: "the fastest way" },
    Code { code: "PU", word: "pickup", phrase: "to a shop near me" },
];
const CLASSES: [Code; 3] = [
    Code { code: "EC", word: "economy", phrase: "the cheapest seat" },
    Code { code: "BU", word: "business", phrase: "a seat for work" },
    Code { code: "FI", word: "first", phrase: "the best seat" },
];
const CHANNELS: [Code; 3] = [
    Code { code: "EM", word: "email", phrase: "to my inbox" },
    Code { code: "SM", word: "message", phrase: "to my phone" },
    Code { code: "PO", word: "post", phrase: "on paper" },
];

/// The name of a tool's coded argument, if it has one.
pub fn option_of(tool: Tool) -> Option<&'static str> {
    match tool {
        Tool::SetShipping => Some("method"),
        Tool::ChangeClass => Some("class"),
        Tool::SendReceipt => Some("channel"),
        _ => None,
    }
}

/// The codes of a tool's coded argument; empty where it has none.
pub fn codes_of(tool: Tool) -> &'static [Code] {
    match tool {
        Tool::SetShipping => &METHODS,
        Tool::ChangeClass => &CLASSES,
        Tool::SendReceipt => &CHANNELS,
        _ => &[],
    }
}

impl Tool {
    /// All tools, in the order in which the desk shows them.
    pub const ALL: [Tool; 11] = [
        Tool::ListOrders,
        Tool::ListTrips,
        Tool::GetOrder,
        Tool::GetTrip,
        Tool::CancelOrder,
        Tool::ReturnOrder,
        Tool::SetShipping,
        Tool::CancelTrip,
        Tool::ChangeClass,
        Tool::SendReceipt,
        Tool::ResendCode,
    ];

    /// The tool of this name.
    pub fn named(name: &str) -> Option<Tool> {
        Tool::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The name that the policy writes.
    pub fn name(self) -> &'static str {
        match self {
            Tool::ListOrders => "list_orders",
            Tool::ListTrips => "list_trips",
            Tool::GetOrder => "get_order",
            Tool::GetTrip => "get_trip",
            Tool::CancelOrder => "cancel_order",
            Tool::ReturnOrder => "return_order",
            Tool::SetShipping => "set_shipping",
            Tool::CancelTrip => "cancel_trip",
            Tool::ChangeClass => "change_class",
            Tool::SendReceipt => "send_receipt",
            Tool::ResendCode => "resend_code",
        }
    }

    /// The desk that the tool works on (for receipts and codes, which take both, the orders').
    pub fn desk(self) -> Desk {
        match self {
            Tool::ListTrips | Tool::GetTrip | Tool::CancelTrip | Tool::ChangeClass => Desk::Trips,
            _ => Desk::Orders,
        }
    }

    /// True for tools that change or send something.
    pub fn writes(self) -> bool {
        !matches!(self, Tool::ListOrders | Tool::ListTrips | Tool::GetOrder | Tool::GetTrip)
    }

    /// The condition under which the policy allows the tool, if it sets one.
    pub fn precondition(self) -> Option<&'static str> {
        match self {
            Tool::CancelOrder | Tool::SetShipping => Some("pending"),
            Tool::ReturnOrder => Some("delivered"),
            Tool::CancelTrip | Tool::ChangeClass => Some("flex"),
            _ => None,
        }
    }

    /// The names of its arguments, all strings and all required.
    pub fn parameters(self) -> Vec<&'static str> {
        match self {
            Tool::ListOrders | Tool::ListTrips => vec!["user"],
            _ => ["record"].into_iter().chain(option_of(self)).collect(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Tool::ListOrders => "List the orders of a user.",
            Tool::ListTrips => "List the trips of a user.",
            Tool::GetOrder => "Read an order.",
            Tool::GetTrip => "Read a trip.",
            Tool::CancelOrder => "Cancel an order.",
            Tool::ReturnOrder => "Return an order.",
            Tool::SetShipping => "Set how an order is shipped.",
            Tool::CancelTrip => "Cancel a trip.",
            Tool::ChangeClass => "Change the class of a trip.",
            Tool::SendReceipt => "Send a receipt.",
            Tool::ResendCode => "Send the pickup code again.",
        }
    }

    /// Its OpenAI schema.
    pub fn spec(self) -> ToolSpec {
        let mut properties = serde_json::Map::new();
        for name in self.parameters() {
            let mut property = json!({"type": "string"});
            if Some(name) == option_of(self) {
                let meaning: Vec<String> = codes_of(self).iter().map(|c| format!("{} {}", c.code, c.word)).collect();
                property["description"] = Value::String(meaning.join(", "));
                property["enum"] = codes_of(self).iter().map(|c| c.code).collect();
            }
            properties.insert(name.to_string(), property);
        }
        ToolSpec {
            name: self.name().to_string(),
            description: self.description().to_string(),
            parameters: json!({"type": "object", "properties": properties, "required": self.parameters()}),
        }
    }
}
