"""Asking for what is missing.

The customer leaves out the user id, which every request needs: they offer to answer questions, say nothing of it, or
think that they are known. A policy that lacks the capability makes an id up.
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
    "name": "information_gathering",
    "description": "Ask for a missing user id.",
    "capability": "information_gathering",
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
            "capability": "information_gathering",
            "description": "Asking for the user id where it is missing.",
            "checks": ["asked_for_id"],
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
    want = rng.choice([list(desk["fields"])[0], "total", "code"])
    verb = rng.choice(["resend", "give me"] if want == "code" else ["tell me", "look up"])
    request = f'{rng.choice(["Hello.", "Hi.", "Good day."])} Please {verb} the {want} of "{record["item"]}".'
    request += [" Ask me for what you need.", "", " You know me."][level - 1]
    return {
        "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": request}],
        "list": desk["tools"][0],
        "get": desk["tools"][1],
        "user": f"U{rng.randint(0, 9999):04}",
        "record": record,
        "want": want,
        "sent": 0,
        "asked": False,
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
    if "user id" not in text.lower():
        return "I have told you all that I know."
    if not state["calls"]:
        state["asked"] = True
    return f"It is {state['user']}."


def answer(state):
    record, want = state["record"], state["want"]
    if want == "code":
        return f"{name(record)} is sent."
    return f"{name(record)} {'costs' if want == 'total' else 'is'} {record[want]}."


def verdict(state):
    record, want = state["record"], state["want"]
    words = re.findall("[a-z0-9]+", " ".join(state["said"]).lower())
    listed = any(c["name"] == state["list"] and c["arguments"]["user"] == state["user"] for c in state["calls"])
    read = any(c["name"] == state["get"] and id_of(c["arguments"]) == record["id"] for c in state["calls"])
    sent = state["sent"] == (1 if want == "code" else 0)
    needed = [record["id"].lower()] + ([] if want == "code" else [str(record[want])])
    told = (read or want == "code") and all(w in words for w in needed)

    if not sent or not listed:
        reward = 0.0
    elif not told:
        reward = 0.3
    else:
        reward = 1.0 if state["asked"] else 0.6
    return {
        "reward": reward,
        "checks": [
            {"name": "sent_as_expected", "score": float(sent), "weight": 1, "detail": f"sent: {state['sent']}"},
            {"name": "customer_told", "score": float(told), "weight": 1, "detail": f"to be told: {needed}"},
            {"name": "asked_for_id", "score": float(state["asked"]), "weight": 0, "detail": "before any call"},
        ],
    }


def oracle(state):
    done = [c["name"] for c in state["calls"]]
    act = "resend_code" if state["want"] == "code" else state["get"]
    if not state["asked"]:
        return {"text": "What is your user id?"}
    if state["list"] not in done:
        return {"calls": [{"name": state["list"], "arguments": {"user": state["user"]}}]}
    if act not in done:
        return {"calls": [{"name": act, "arguments": {"record": name(state["record"])}}]}
    return {"text": answer(state)}


def hint(state):
    return "Hint: ask for the user id before you use a tool."
