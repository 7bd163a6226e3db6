#!/usr/bin/env python3
"""Renders cases.json as transformers renders chat templates (jinja2 3.1) and writes expected.json beside it.

Run it after a change of a template or a case: `python3 policy/tests/golden/render.py` (needs only jinja2).
"""

import json
from datetime import datetime, timezone
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
# The moment that the Rust test gives to its templates.
NOW = datetime.fromtimestamp(1_709_210_096, timezone.utc)


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def main():
    env = environment()
    expected = {}
    for case in json.loads((HERE / "cases.json").read_text()):
        template = env.from_string((HERE / case["template"]).read_text())
        expected[case["name"]] = template.render(
            messages=case["messages"],
            tools=case.get("tools") or None,
            documents=None,
            add_generation_prompt=case["add_generation_prompt"],
            bos_token="<s>",
            **case.get("variables", {}),
        )
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (HERE / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
