

# The sandbox's own part, appended to the environment's file: it calls the file's functions.
class trace__Rng:
    def __init__(self, below, unit):
        self._below = below
        self._unit = unit

    def randint(self, a, b):
        if b < a:
            raise ValueError(f"randint({a}, {b}) has nothing to draw from")
        return a + self._below(b - a + 1)

    def random(self):
        return self._unit()

    def chance(self, p):
        return self._unit() < p

    def choice(self, items):
        items = list(items)
        if not items:
            raise ValueError("choice() of an empty sequence")
        return items[self._below(len(items))]

    def sample(self, items, k):
        items = list(items)
        if k < 0 or k > len(items):
            raise ValueError(f"sample() of {k} from {len(items)} items")
        for i in range(k):
            j = i + self._below(len(items) - i)
            swapped = items[i]
            items[i] = items[j]
            items[j] = swapped
        return items[:k]

    def shuffle(self, items):
        for i in range(len(items) - 1):
            j = i + self._below(len(items) - i)
            swapped = items[i]
            items[i] = items[j]
            items[j] = swapped


def trace__optional(find):
    try:
        return find()
    except NameError:
        return None


def trace__main(op, state, argument, below, unit):
    if op == "spec":
        # A name that the file lacks raises here, before any episode.
        needed = [reset, call, reply, verdict]
        return SPEC
    if op == "reset":
        state = reset(trace__Rng(below, unit), argument)
        state["said"] = []
        state["calls"] = []
        give_hint = trace__optional(lambda: hint)
        return [state, None if give_hint is None else give_hint(state)]
    if op == "step":
        if argument["text"]:
            state["said"].append(argument["text"])
        observations = []
        for c in argument["calls"]:
            result = call(state, c["name"], c["arguments"])
            state["calls"].append({"name": c["name"], "arguments": c["arguments"], "result": result})
            observations.append(result)
        answer = None if argument["calls"] else reply(state, argument["text"])
        return [state, observations, answer]
    if op == "verdict":
        return verdict(state)
    find_oracle = trace__optional(lambda: oracle)
    return None if find_oracle is None else find_oracle(state)


trace__main(trace__op, trace__state, trace__argument, trace__below, trace__unit)
