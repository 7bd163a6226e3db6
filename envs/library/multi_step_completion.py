"""Doing every part of a request.

The customer asks for two things: as a numbered list, in one sentence, or with the second one as an afterthought. A
policy that lacks the capability answers after the first.
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
    "name": "multi_step_completion",
    "description": "Do both parts of a request.",
    "capability": "multi_step_completion",
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
            "capability": "multi_step_completion",
            "description": "Attempting every part of a compound request.",
            "checks": ["all_parts_attempted"],
        }
    ],
}

ORDERS = {
    "tools": ["list_orders", "get_order"],
    "first": ["red", "blue", "green", "black", "white", "grey", "brown", "pink", "gold", "teal"],
    "second": ["lamp", "chair", "table", "shelf", "rug", "clock", "mirror", "kettle", "mug", "bowl", "plate", "pan",
               "bag", "coat", "scarf", "boots", "tent", "rope", "drum", "radio", "phone", "watch", "puzzle", "kite"],
    "fields": {"status": ["pending", "shipped", "delivered"], "method": ["ST", "EX", "PU"]},
}
TRIPS = {
    "tools": ["list_trips", "get_trip"],
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
    wants = rng.sample([list(desk["fields"])[0], "total", "code"], 2)
    parts = []
    for want in wants:
        verb = rng.choice(["resend", "give me"] if want == "code" else ["tell me", "look up"])
        parts.append(f'{verb} the {want} of "{record["item"]}"')
    thanks = rng.choice(["You are very kind.", "I have been a customer for years.", "Thanks for your help."])
    asked = [
        f"Two things: 1) please {parts[0]}, 2) please {parts[1]}.",
        f"Please {parts[0]} and {parts[1]}.",
        f"Please {parts[0]}. {thanks} Oh, and {parts[1]}.",
    ][level - 1]
    user = f"U{rng.randint(0, 9999):04}"
    request = f'{rng.choice(["Hello.", "Hi.", "Good day."])} {rng.choice(["I am", "My user id is"])} {user}. {asked}'
    return {
        "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": request}],
        "list": desk["tools"][0],
        "get": desk["tools"][1],
        "user": user,
        "record": record,
        "wants": wants,
        "sent": 0,
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
        return [{"record": name(record), "date": record["date"]}] if tool == state["list"] else []
    if id_of(args) != record["id"] or tool not in [state["get"], "resend_code"]:
        return {"error": "no such id"}
    if tool == "resend_code":
        state["sent"] += 1
        return {"ok": True}
    return full(record)


def reply(state, text):
    if "?" not in text:
        return None
    return f"It is {state['user']}." if "user id" in text.lower() else "I have told you all that I know."


def part_answer(record, want):
    if want == "code":
        return f"{name(record)} is sent."
    return f"{name(record)} {'costs' if want == 'total' else 'is'} {record[want]}."


def verdict(state):
    record = state["record"]
    words = re.findall("[a-z0-9]+", " ".join(state["said"]).lower())
    read = any(c["name"] == state["get"] and id_of(c["arguments"]) == record["id"] for c in state["calls"])
    done = [state["sent"] == 1 if want == "code" else read and str(record[want]) in words for want in state["wants"]]
    sent_too_much = state["sent"] > state["wants"].count("code")
    told = record["id"].lower() in words

    if sent_too_much or not any(done):
        reward = 0.0
    elif not all(done):
        reward = 0.3
    else:
        reward = 1.0 if told else 0.6
    left = [want for want, is_done in zip(state["wants"], done) if not is_done]
    checks = [
        {"name": "sent_as_expected", "score": float(not sent_too_much), "weight": 1, "detail": f"{state['sent']} sent"},
        {"name": "parts_done", "score": done.count(True) / 2, "weight": 1, "detail": f"{left} left"},
        {"name": "customer_told", "score": float(told), "weight": 1, "detail": "the id must be named"},
    ]
    if state["calls"]:
        attempted = float(left == [])
        checks.append({"name": "all_parts_attempted", "score": attempted, "weight": 0, "detail": f"{left} left"})
    return {"reward": reward, "checks": checks}


def oracle(state):
    done = [c["name"] for c in state["calls"]]
    record = state["record"]
    if state["list"] not in done:
        return {"calls": [{"name": state["list"], "arguments": {"user": state["user"]}}]}
    for want in state["wants"]:
        act = "resend_code" if want == "code" else state["get"]
        if act not in done:
            return {"calls": [{"name": act, "arguments": {"record": name(record)}}]}
    return {"text": " ".join(part_answer(record, want) for want in state["wants"])}


def hint(state):
    return "Hint: finish every part of the request before you answer."
