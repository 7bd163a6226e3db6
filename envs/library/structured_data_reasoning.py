"""Finding the record that is meant among several.

The customer asks about one of 2, 4 or 6 orders (or trips), which is never the first of the list. A policy that lacks
the capability takes the id of the first record, whatever its item is.
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
    "name": "structured_data_reasoning",
    "description": "Answer about one of several records.",
    "capability": "structured_data_reasoning",
    "levels": 3,
    "max_turns": 8,
    "tools": [
        tool("list_orders", "List the orders of a user.", ["user"]),
        tool("list_trips", "List the trips of a user.", ["user"]),
        tool("get_order", "Read an order.", ["record"]),
        tool("get_trip", "Read a trip.", ["record"]),
        tool("resend_code", "Send the pickup code again.", ["record"]),
    ],
    "evidence": [
        {
            "capability": "structured_data_reasoning",
            "description": "Finding the record that is meant among several in a tool's result.",
            "checks": ["right_record"],
        }
    ],
}

ORDERS = {
    "tools": ["list_orders", "get_order", "resend_code"],
    "first": ["red", "blue", "green", "black", "white", "grey", "brown", "pink", "gold", "teal"],
    "second": ["lamp", "chair", "table", "shelf", "rug", "clock", "mirror", "kettle", "mug", "bowl", "plate", "pan",
               "bag", "coat", "scarf", "boots", "tent", "rope", "drum", "radio", "phone", "watch", "puzzle", "kite"],
    "fields": {"status": ["pending", "shipped", "delivered"], "method": ["ST", "EX", "PU"]},
}
TRIPS = {
    "tools": ["list_trips", "get_trip", "resend_code"],
    "first": ["flight", "train", "hotel", "ferry"],
    "second": ["rome", "oslo", "paris", "cairo", "lima", "quito", "delhi", "tokyo", "seoul", "porto", "turin", "malmo",
               "basel", "lyon", "nice", "bonn", "kyoto", "osaka", "perth", "dakar", "accra", "sofia", "riga", "tunis"],
    "fields": {"fare": ["flex", "basic"], "class": ["EC", "BU", "FI"]},
}


def reset(rng, level):
    desk = ORDERS if rng.chance(0.6) else TRIPS
    records = []
    for second in rng.sample(desk["second"], [2, 4, 6][level - 1]):
        record = {"item": rng.choice(desk["first"]) + " " + second, "id": new_id(rng, records)}
        for field, values in desk["fields"].items():
            record[field] = rng.choice(values)
        record["total"] = rng.randint(10, 99)
        record["date"] = f"{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        records.append(record)
    wanted = records[rng.randint(1, len(records) - 1)]
    want = rng.choice([list(desk["fields"])[0], "total", "code"])
    user = f"U{rng.randint(0, 9999):04}"
    verb = rng.choice(["resend", "give me"] if want == "code" else ["tell me", "look up"])
    hello = rng.choice(["Hello.", "Hi.", "Good day."])
    request = f'{hello} {rng.choice(["I am", "My user id is"])} {user}. Please {verb} the {want} of "{wanted["item"]}".'
    return {
        "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": request}],
        "list": desk["tools"][0],
        "get": desk["tools"][1],
        "user": user,
        "records": records,
        "wanted": wanted,
        "want": want,
        "sent": [],
    }


def new_id(rng, records):
    while True:
        new = f"{rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}{rng.randint(0, 9999):04}"
        if new not in [r["id"] for r in records]:
            return new


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
    if "user" in args:
        if args["user"] != state["user"]:
            return {"error": "no such user"}
        shown = state["records"] if tool == state["list"] else []
        return [{"record": name(r), "date": r["date"]} for r in shown]
    found = [r for r in state["records"] if r["id"] == id_of(args) and tool in [state["get"], "resend_code"]]
    if not found:
        return {"error": "no such id"}
    if tool == "resend_code":
        state["sent"].append(id_of(args))
        return {"ok": True}
    return full(found[0])


def reply(state, text):
    if "?" not in text:
        return None
    return f"It is {state['user']}." if "user id" in text.lower() else "I have told you all that I know."


def answer(state):
    wanted, want = state["wanted"], state["want"]
    if want == "code":
        return f"{name(wanted)} is sent."
    return f"{name(wanted)} {'costs' if want == 'total' else 'is'} {wanted[want]}."


def verdict(state):
    wanted, want = state["wanted"]["id"], state["want"]
    used = [id_of(c["arguments"]) for c in state["calls"] if "record" in c["arguments"]]
    others = [r["id"].lower() for r in state["records"] if r["id"] != wanted]
    words = re.findall("[a-z0-9]+", " ".join(state["said"]).lower())

    only_wanted = used != [] and all(id == wanted for id in used)
    sent = state["sent"] == ([wanted] if want == "code" else [])
    needed = [wanted.lower()] + ([] if want == "code" else [str(state["wanted"][want])])
    told = all(w in words for w in needed) and not any(w in words for w in others)

    if not sent or wanted not in used:
        reward = 0.0
    elif not told:
        reward = 0.3
    else:
        reward = 1.0 if only_wanted else 0.6
    checks = [
        {"name": "sent_as_expected", "score": float(sent), "weight": 1, "detail": f"sent: {state['sent']}"},
        {"name": "customer_told", "score": float(told), "weight": 1, "detail": f"to be told: {needed}"},
    ]
    if used:
        checks.append({"name": "right_record", "score": float(only_wanted), "weight": 0, "detail": f"used: {used}"})
    return {"reward": reward, "checks": checks}


def oracle(state):
    done = [c["name"] for c in state["calls"]]
    wanted = {"record": name(state["wanted"])}
    act = "resend_code" if state["want"] == "code" else state["get"]
    if state["list"] not in done:
        return {"calls": [{"name": state["list"], "arguments": {"user": state["user"]}}]}
    if act not in done:
        return {"calls": [{"name": act, "arguments": wanted}]}
    return {"text": answer(state)}


def hint(state):
    return "Hint: find the item in the list and take the id from its own record."
