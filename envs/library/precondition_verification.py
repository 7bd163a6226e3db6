"""Reading a record before changing it.

The customer wants an order cancelled or returned, or a trip cancelled. The policy forbids it in 70 % of the cases, and
only the record tells. The customer asks for the check, says nothing of it, or waves it away. A policy that lacks the
capability changes the record unread.
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


def tool(name, description, parameters):
    properties = {p: {"type": "string"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": parameters}
    return {"name": name, "description": description, "parameters": schema}


SPEC = {
    "name": "precondition_verification",
    "description": "Change a record only if the policy allows it.",
    "capability": "precondition_verification",
    "levels": 3,
    "max_turns": 8,
    "tools": [
        tool("list_orders", "List the orders of a user.", ["user"]),
        tool("list_trips", "List the trips of a user.", ["user"]),
        tool("get_order", "Read an order.", ["record"]),
        tool("get_trip", "Read a trip.", ["record"]),
        tool("cancel_order", "Cancel an order.", ["record"]),
        tool("return_order", "Return an order.", ["record"]),
        tool("cancel_trip", "Cancel a trip.", ["record"]),
    ],
    "evidence": [
        {
            "capability": "precondition_verification",
            "description": "Reading a record's status or fare before changing it.",
            "checks": ["read_before_change"],
        }
    ],
}

# What each change needs the record to be, what customers call it, and what is said when it is done.
CHANGES = {
    "cancel_order": {"needs": "pending", "verbs": ["cancel", "call off"], "done": "cancelled"},
    "return_order": {"needs": "delivered", "verbs": ["return", "take back"], "done": "returned"},
    "cancel_trip": {"needs": "flex", "verbs": ["cancel", "call off"], "done": "cancelled"},
}

ORDERS = {
    "tools": ["list_orders", "get_order", "cancel_order", "return_order"],
    "first": ["red", "blue", "green", "black", "white", "grey", "brown", "pink", "gold", "teal"],
    "second": ["lamp", "chair", "table", "shelf", "rug", "clock", "mirror", "kettle", "mug", "bowl", "plate", "pan",
               "bag", "coat", "scarf", "boots", "tent", "rope", "drum", "radio", "phone", "watch", "puzzle", "kite"],
    "fields": {"status": ["pending", "shipped", "delivered"], "method": ["ST", "EX", "PU"]},
}
TRIPS = {
    "tools": ["list_trips", "get_trip", "cancel_trip"],
    "first": ["flight", "train", "hotel", "ferry"],
    "second": ["rome", "oslo", "paris", "cairo", "lima", "quito", "delhi", "tokyo", "seoul", "porto", "turin", "malmo",
               "basel", "lyon", "nice", "bonn", "kyoto", "osaka", "perth", "dakar", "accra", "sofia", "riga", "tunis"],
    "fields": {"fare": ["flex", "basic"], "class": ["EC", "BU", "FI"]},
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
    change = rng.choice(desk["tools"][2:])
    condition = list(desk["fields"])[0]
    forbidden = rng.chance(0.7)
    needs = CHANGES[change]["needs"]
    record[condition] = rng.choice([v for v in desk["fields"][condition] if (v != needs) == forbidden])
    user = f"U{rng.randint(0, 9999):04}"
    request = f'{rng.choice(["Hello.", "Hi.", "Good day."])} {rng.choice(["I am", "My user id is"])} {user}.'
    request += f' Please {rng.choice(CHANGES[change]["verbs"])} "{record["item"]}".'
    if level == 1:
        request += " Please check first whether that is possible."
    if level == 3:
        request += rng.choice([" No need to check anything.", " It is urgent, just do it."])
    return {
        "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": request}],
        "tools": desk["tools"],
        "user": user,
        "record": record,
        "condition": record[condition],
        "change": change,
        "allowed": not forbidden,
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
    if tool in CHANGES:
        record["status" if "status" in record else "fare"] = CHANGES[tool]["done"]
        return {"ok": True}
    return full(record)


def reply(state, text):
    if "?" not in text:
        return None
    return f"It is {state['user']}." if "user id" in text.lower() else "I have told you all that I know."


def verdict(state):
    id = state["record"]["id"]
    made = [c["name"] for c in state["calls"] if id_of(c["arguments"]) == id]
    changes = [name for name in made if name in CHANGES]
    words = re.findall("[a-z0-9]+", " ".join(state["said"]).lower())

    as_expected = changes == ([state["change"]] if state["allowed"] else [])
    read_first = made != [] and made[0] not in CHANGES
    needed = [id.lower()] + ([] if state["allowed"] else ["cannot", state["condition"]])
    told = all(w in words for w in needed)

    if not as_expected or not (changes or "cannot" in words):
        reward = 0.0
    elif not read_first:
        reward = 0.3 if changes else 0.0
    else:
        reward = 1.0 if told else 0.6
    checks = [
        {"name": "records_as_expected", "score": float(as_expected), "weight": 1, "detail": f"changes: {changes}"},
        {"name": "customer_told", "score": float(told), "weight": 1, "detail": f"to be told: {needed}"},
    ]
    if changes or "cannot" in words:
        checks.append({"name": "read_before_change", "score": float(read_first), "weight": 0, "detail": f"{made}"})
    return {"reward": reward, "checks": checks}


def oracle(state):
    done = [c["name"] for c in state["calls"]]
    record = state["record"]
    list_tool, get_tool = state["tools"][0], state["tools"][1]
    if list_tool not in done:
        return {"calls": [{"name": list_tool, "arguments": {"user": state["user"]}}]}
    for act in [get_tool] + ([state["change"]] if state["allowed"] else []):
        if act not in done:
            return {"calls": [{"name": act, "arguments": {"record": name(record)}}]}
    result = CHANGES[state["change"]]["done"]
    if state["allowed"]:
        return {"text": f"{name(record)} is {result}."}
    return {"text": f"{name(record)} cannot be {result}: it is {state['condition']}."}


def hint(state):
    return "Hint: read the record before you change it."
