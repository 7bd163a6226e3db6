"""An environment as a program of its own, with one fault of choice: `external_env.py FAULT FOLDER`.

Faults that happen once leave a file in FOLDER, so that the next process behaves.
"""
import json
import os
import subprocess
import sys
import time

fault, folder = sys.argv[1], sys.argv[2]
count = len(os.listdir(folder))
open(os.path.join(folder, f"start-{count}"), "w").close()
first = count == 0
episodes = {}
tool = {
    "name": "add",
    "description": "",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}


def send(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def misbehave():
    """What the fault does instead of the reply to a step."""
    if fault == "crash":
        sys.stderr.write("the disk is on fire\n")
        sys.exit(3)
    if fault == "hang":
        time.sleep(60)
    if fault == "trickle":
        while True:
            send(" ")
            time.sleep(0.05)
    if fault == "chatter":
        send("Loading the model...\n")
    if fault == "flood":
        while True:
            send("x" * 65536)
    if fault == "close":
        os.close(1)
        time.sleep(60)
    if fault == "stranger":
        send(json.dumps({"id": 10**6, "ok": None}) + "\n")
    if fault == "child":
        child = subprocess.Popen(["sleep", "60"])
        with open(os.path.join(folder, "..", "child"), "w") as f:
            f.write(str(child.pid))
        time.sleep(60)


for line in sys.stdin:
    request = json.loads(line)
    op, ok = request["op"], None
    if op == "spec":
        if fault == "badspec":
            ok = {"name": "external"}
        else:
            ok = {"name": "external", "description": "", "levels": 1, "max_turns": 6, "tools": [tool]}
    elif op == "reset":
        episodes[request["episode"]] = 0
        said = f"start {count}" if fault == "fickle" else "start"
        ok = {"messages": [{"role": "system", "content": said}], "tools": [tool], "level": 1}
        if fault == "badlevel":
            ok["level"] = 0
    elif op == "step":
        if fault == "noisy":
            sys.stderr.write("debug " * 100000)
        if fault == "always-crash" or (first and request["step_id"] == 1):
            if fault == "always-crash":
                sys.exit(4)
            misbehave()
        calls = request["action"]["calls"]
        for call in calls:
            episodes[request["episode"]] += call["arguments"]["n"]
        replies = [{"role": "tool", "content": str(episodes[request["episode"]])} for _ in calls]
        if fault == "mute":
            replies = []
        ok = {"messages": replies, "done": False}
    elif op == "verdict":
        if fault == "error":
            send(json.dumps({"id": request["id"], "error": "no judge today"}) + "\n")
            continue
        reward = float("nan") if fault == "nan" else 0.5
        ok = {"reward": reward, "checks": []}
    elif op == "close":
        for episode in request["episodes"]:
            del episodes[episode]
    send(json.dumps({"id": request["id"], "ok": ok}) + "\n")
