"""Passing the codes that a tool asks for.

The customer wants a receipt by some channel, an order shipped by some method, or a trip in some class. The tool takes
a two-letter code. The customer says the code, the word that the schema explains, or a phrase of their own. A policy
that lacks the capability passes the customer's words.
"""

import re

POLICY = """You are the agent of a help desk and serve one customer.
- Ask for the user id if it is missing.
- Name a record as the list does, with its id.
- Read a record before you change it.
- Cancel or ship an order otherwise only while it is pending.
- Return an order only when it is delivered.
- Cancel or change a trip only if its fare is flex.
- If the policy forbids a request, refuse and name the status or fare.
- Answer once, after all is done, and name the id."""


def tool(name, description, parameters, codes=None):
    properties = {p: {"type": "string"} for p in parameters}
    if codes:
        described = ", ".join(f"{code} {word}" for code, word, phrase in codes)
        properties[parameters[-1]] = {"type": "string", "description": described, "enum": [c[0] for c in codes]}
    schema = {"type": "object", "properties": properties, "required": parameters}
    return {"name": name, "description": description, "parameters": schema}


# Code, word, and how a customer says it without that word.
METHODS = [
    ("ST", "standard", "the cheapest way"),
    ("EX", "express", "the fastest way"),
    ("PU", "pickup", "to a shop near me"),
]
CLASSES = [
    ("EC", "economy", "the cheapest seat"),
    ("BU", "business", "a seat for work"),
    ("FI", "first", "the best seat"),
]
CHANNELS = [
    ("EM", "email", "to my inbox"),
    ("SM", "message", "to my phone"),
    ("PO", "post", "on paper"),
]

SPEC = {
    "name": "tool_calling_precision",
    "description": "Pass a tool the code that the customer means.",
    "capability": "tool_calling_precision",
    "levels": 3,
    "max_turns": 8,
    "tools": [
        tool("list_orders", "List the orders of a user.", ["user"]),
        tool("list_trips", "List the trips of a user.", ["user"]),
        tool("get_order", "Read an order.", ["record"]),
        tool("get_trip", "Read a trip.", ["record"]),
        tool("set_shipping", "Set how an order is shipped.", ["record", "method"], METHODS),
        tool("change_class", "Change the class of a trip.", ["record", "class"], CLASSES),
        tool("send_receipt", "Send a receipt.", ["record", "channel"], CHANNELS),
    ],
    "evidence": [
        {
            "capability": "tool_calling_precision",
            "description": "Passing the codes that a tool's schema asks for.",
            "checks": ["codes_passed"],
        }
    ],
}

# What takes a code: the argument's name, its codes, and what is said when it is done.
CODED = {
    "set_shipping": {"option": "method", "codes": METHODS, "done": "changed"},
    "change_class": {"option": "class", "codes": CLASSES, "done": "changed"},
    "send_receipt": {"option": "channel", "codes": CHANNELS, "done": "receipted"},
}

ORDERS = {
    "tools": ["list_orders", "get_order", "set_shipping", "send_receipt"],
    "first": ["red", "blue", "green", "black", "white", "grey", "brown", "pink", "gold", "teal"],
    "second": ["lamp", "chair", "table", "shelf", "rug", "clock", "mirror", "kettle", "mug", "bowl", "plate", "pan",
               "bag", "coat", "scarf", "boots", "tent", "rope", "drum", "radio", "phone", "watch", "puzzle", "kite"],
    "fields": {"status": ["pending"], "method": ["ST", "EX", "PU"]},
}
TRIPS = {
    "tools": ["list_trips", "get_trip", "change_class", "send_receipt"],
    "first": ["flight", "train", "hotel", "ferry"],
    "second": ["rome", "oslo", "paris", "cairo", "lima", "quito", "delhi", "tokyo", "seoul", "porto", "turin", "malmo",
               "basel", "lyon", "nice", "bonn", "kyoto", "osaka", "perth", "dakar", "accra", "sofia", "riga", "tunis"],
    "fields": {"fare": ["flex"], "class": ["EC", "BU", "FI"]},
}


def reset(rng, level):
    desk = ORDERS if rng.chance(0.6) else TRIPS
    record = {
        "item": rng.choice(desk["first"]) + " " + rng.choice(desk["second"]),
        "id": f"{rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}{rng.randint(0, 9999):04}",
    }
    for field, values in desk["fields"].items():
        record[field] = rng.choice(values)
    record["total"] = rng.randint(10, 99)
    record["date"] = f"{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    # Two thirds are receipts; the others are changes that the policy allows.
    act = rng.choice(["send_receipt", "send_receipt", desk["tools"][2]])
    option = CODED[act]["option"]
    code, word, phrase = rng.choice([c for c in CODED[act]["codes"] if c[0] != record.get(option)])
    meant = [f"{word} ({code})", word, phrase][level - 1]
    if act == "set_shipping":
        part = f'{rng.choice(["ship", "send"])} "{record["item"]}" {meant}'
    elif act == "change_class":
        part = f'{rng.choice(["change", "move"])} "{record["item"]}" to {meant}'
    else:
        part = f'give me the receipt of "{record["item"]}" {"" if level == 3 else "by "}{meant}'
    user = f"U{rng.randint(0, 9999):04}"
    hello = rng.choice(["Hello.", "Hi.", "Good day."])
    request = f'{hello} {rng.choice(["I am", "My user id is"])} {user}. Please {part}.'
    return {
        "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": request}],
        "tools": desk["tools"],
        "user": user,
        "record": record,
        "act": act,
        "code": code,
    }


def name(record):
    return record["item"] + " " + record["id"]


def full(record):
    shown = {"record": name(record)}
    for field in record:
        if field not in ["item", "id", "date"]:
            shown[field] = record[field]
    return shown


def id_of(args):
    return args.get("record", "").split(" ")[-1]


def call(state, tool, args):
    record = state["record"]
    if "user" in args:
        if args["user"] != state["user"]:
            return {"error": "no such user"}
        return [{"record": name(record), "date": record["date"]}]
    if id_of(args) != record["id"]:
        return {"error": "no such id"}
    if tool in CODED:
        # The tool does what it is told: a wrong code is found by the verdict only.
        if tool != "send_receipt":
            record[CODED[tool]["option"]] = args[CODED[tool]["option"]]
        return {"ok": True}
    return full(record)


def reply(state, text):
    if "?" not in text:
        return None
    return f"It is {state['user']}." if "user id" in text.lower() else "I have told you all that I know."


def verdict(state):
    id = state["record"]["id"]
    words = re.findall("[a-z0-9]+", " ".join(state["said"]).lower())
    changes = [c for c in state["calls"] if c["name"] in CODED and id_of(c["arguments"]) == id]
    passed = [c["arguments"][CODED[c["name"]]["option"]] for c in changes]
    are_codes = [p in [code[0] for code in CODED[c["name"]]["codes"]] for p, c in zip(passed, changes)]
    meant = [c["name"] for c in changes] == [state["act"]]
    as_expected = meant and passed == [state["code"]]
    told = id.lower() in words

    if as_expected:
        reward = 1.0 if told else 0.6
    else:
        reward = 0.3 if meant and all(are_codes) else 0.0
    checks = [
        {"name": "sent_as_expected", "score": float(as_expected), "weight": 1, "detail": f"{state['code']}: {passed}"},
        {"name": "customer_told", "score": float(told), "weight": 1, "detail": "the id must be named"},
    ]
    if changes:
        checks.append({"name": "codes_passed", "score": float(all(are_codes)), "weight": 0, "detail": f"{passed}"})
    return {"reward": reward, "checks": checks}


def oracle(state):
    done = [c["name"] for c in state["calls"]]
    record, act = state["record"], state["act"]
    named = {"record": name(record)}
    list_tool, get_tool = state["tools"][0], state["tools"][1]
    if list_tool not in done:
        return {"calls": [{"name": list_tool, "arguments": {"user": state["user"]}}]}
    if act != "send_receipt" and get_tool not in done:
        return {"calls": [{"name": get_tool, "arguments": named}]}
    if act not in done:
        named[CODED[act]["option"]] = state["code"]
        return {"calls": [{"name": act, "arguments": named}]}
    return {"text": f"{name(record)} is {CODED[act]['done']}."}


def hint(state):
    return "Hint: pass the codes of the tool, not the words of the customer."
