"""What a training batch is drawn from, and what a model is scored on.

`retrieve`: dictionaries, pass keys, number strings, needles. `multi`: these,
and several values, several questions, chains, counted words, people.
"""

import torch

from tasks import PROSE, REPEATED, WORDS

TYPES = ["kv_hex", "kv_word", "hay_named", "hay_single", "several",
         "variables", "common", "frequent", "people"]


def draw_kv(rng, length, easy, word_share):
    """(type, generator, arguments); easy: share of short keys."""
    if rng.random() < word_share:
        value_type, value_size = rng.choice(
            [("hex", 8), ("hex", 4), ("digits", 5), ("digits", 7),
             ("word", 2), ("word", 1)])
        kind = 1
        arguments = {"key_type": "word", "key_size": rng.choice([2, 2, 3, 4]),
                     "value_type": value_type, "value_size": value_size}
    else:
        kind = 0
        sizes = [(16, 16), (16, 16), (16, 16), (8, 16), (16, 8), (8, 8),
                 (4, 16), (4, 4)]
        if rng.random() < easy and length <= 2048:
            sizes = [(2, 2), (2, 4), (4, 4), (4, 2), (8, 8), (3, 8)]
        key_size, value_size = rng.choice(sizes)
        arguments = {"key_size": key_size, "value_size": value_size}
    if rng.random() < 0.6:
        arguments |= {"mode": "inter", "p": rng.choice([0.2, 0.4, 0.6])}
    else:
        arguments |= {"mode": "end", "p": rng.choice([0.1, 0.25, 0.5])}
    return kind, "kv", arguments


def draw_hay(rng, length):
    kind, noise, value_type = rng.choice([
        ("passkey", REPEATED, "digits"), ("passkey", PROSE, "digits"),
        ("number", REPEATED, "digits"), ("number", REPEATED, "digits"),
        ("number", PROSE, "digits"), ("needle", PROSE, "digits"),
        ("needle", PROSE, "digits"), ("needle", REPEATED, "digits"),
        ("needle", PROSE, "hex"), ("needle", WORDS, "word"),
        ("needle", PROSE, "word")])
    arguments = {"kind": kind, "noise": noise, "value_type": value_type}
    if rng.random() < 0.15:
        return 3, "hay", arguments | {"facts": 1, "num_questions": 2,
                                      "named": False}
    facts = rng.randint(2, max(2, min(96, length // 64)))
    share = rng.choice([0.15, 0.3, 0.5])
    questions = max(2, min(128, int(length * share / 28)))
    return 2, "hay", arguments | {"facts": facts, "num_questions": questions}


def draw_several(rng, length):
    key_values, keys_asked = rng.choice(
        [(4, 1), (4, 1), (4, 1), (3, 1), (2, 1), (1, 4), (1, 4), (1, 4),
         (1, 3), (1, 2), (2, 2)])
    value_type = rng.choice(["digits"] * 5 + ["word", "word", "hex"])
    value = {"digits": 8, "word": 4, "hex": 17}[value_type]
    fact = value + 13
    question = 18 + 6 * keys_asked + value * key_values * keys_asked
    room = length - 1 - question
    most = max(keys_asked, min(32, room // 2 // (fact * key_values)))
    keys = rng.randint(keys_asked, most)
    if rng.random() < 0.25:  # as in the evaluation
        keys = keys_asked
    room -= keys * key_values * fact
    extra = min(int(max(0, room) * rng.choice([0.3, 0.6, 0.9])) // question,
                2 * keys // keys_asked - 1)
    return 4, "several", {
        "keys": keys, "key_values": key_values, "keys_asked": keys_asked,
        "num_questions": 1 + max(0, extra), "value_type": value_type,
        "noise": rng.choice([PROSE, PROSE, PROSE, REPEATED, WORDS])}


def draw_variables(rng, length):
    room = (length - 1) * rng.choice([0.5, 0.9])
    most = rng.randint(2, 24)
    hops, asked = [], []
    while len(hops) < most:
        n = rng.choice([1, 2, 3, 4, 4, 4])
        room -= 13 * (n + 1) + 26 + 3 * n
        if room < 0 and len(hops) >= 2:
            break
        if rng.random() < 0.8 or not asked:
            asked.append(len(hops))
        hops.append(n)
    rng.shuffle(asked)
    return 5, "variables", {
        "hops": tuple(hops), "asked": tuple(asked),
        "noise": rng.choice([REPEATED, REPEATED, REPEATED, PROSE])}


def draw_common(rng, length):
    choices = [(6, 1), (6, 1), (10, 1), (15, 1)]
    if length >= 1024:
        choices += [(20, 2), (30, 3), (30, 3)]
    if length >= 4096:  # of many words that stand once too few stand six times
        choices = [(15, 1), (20, 2), (30, 3), (30, 3), (30, 3)]
    often, rarely = rng.choice(choices)
    return 6, "common", {"often": often, "rarely": rarely}


def draw_frequent(rng, _):
    return 7, "frequent", {"exponent": rng.choice([2.0, 2.0, 2.0, 2.5])}


def draw_people(rng, length):
    questions = max(2, int(length * rng.choice([0.15, 0.3, 0.5])) // 20)
    if rng.random() < 0.6:
        return 8, "neighbours", {"num_questions": min(64, questions // 2)}
    return 8, "hay", {"kind": "people", "noise": PROSE, "value_type": "name",
                      "facts": rng.choice([16, 64, 10**6]),
                      "num_questions": min(128, questions)}


def draw(mixture, rng, length, easy, kv_share, word_share):
    if mixture == "retrieve":
        if rng.random() < kv_share:
            return draw_kv(rng, length, easy, word_share)
        return draw_hay(rng, length)
    which = rng.choices(range(7), (12, 16, 22, 17, 13, 13, 7))[0]
    if which == 0:
        return draw_kv(rng, length, easy, word_share)
    return [draw_hay, draw_several, draw_variables, draw_common,
            draw_frequent, draw_people][which - 1](rng, length)


def batch(generator, rng, size, length, groups, mixture, *drawing):
    """(tokens, weights, borders, answers, types [B]) of several kinds.

    In `multi` a row weighs the same whatever its kind: few words are asked of a
    list where a dictionary asks for thousands of bytes.
    """
    groups = min(size, groups)
    cut = [size * i // groups for i in range(groups + 1)]
    parts, types = [], []
    for begin, end in zip(cut, cut[1:]):
        kind, name, arguments = draw(mixture, rng, length, *drawing)
        tokens, weights, borders = getattr(generator, name)(
            end - begin, length, **arguments)
        answers = weights >= 1
        if mixture == "multi":
            total = weights.sum() / (end - begin)
            weights = weights * (0.2 * length / total).clamp(0.25, 16.0)
        parts.append((tokens, weights, borders, answers))
        types += [kind] * (end - begin)
    return tuple(torch.cat(x, 0) for x in zip(*parts)) + (types,)


# ---- Scores ------------------------------------------------------------------

# (generator, arguments). Positions are contiguous.
# Whether a stage is learnt: many questions, quick.
QUICK = {
    "retrieve": {
        "kv": ("kv", {"num_questions": 8}),
        "number": ("hay", {"kind": "number", "facts": 8, "num_questions": 8}),
        "passkey": ("hay", {"kind": "passkey", "named": False}),
        "needle": ("hay", {"kind": "needle", "noise": PROSE, "facts": 8,
                           "num_questions": 8}),
    },
}
QUICK["multi"] = {
    "kv": QUICK["retrieve"]["kv"],
    "needle": QUICK["retrieve"]["needle"],
    "multivalue": ("several", {}),
    "multiquery": ("several", {"keys": 4, "key_values": 1, "keys_asked": 4}),
    "vt": ("variables", {}),
    "cwe": ("common", {}),
    "fwe": ("frequent", {}),
    "qa_1": ("hay", {"kind": "people", "noise": PROSE, "value_type": "name",
                     "facts": 10**6}),
    "qa_2": ("neighbours", {}),
}

# The tables of the model card: one question at the end, depths 0 to 1.
FINAL = {
    "retrieve": {
        "passkey": ("hay", {"kind": "passkey", "named": False}),
        "number": ("hay", {"kind": "number", "named": False}),
        "kv": ("kv", {"num_questions": 1}),
        "kv_16": ("kv", {"num_questions": 16}),
        "needle": ("hay", {"kind": "needle", "noise": PROSE}),
        "multikey": ("hay", {"kind": "needle", "noise": PROSE, "facts": 16}),
        "uuid_needle": ("hay", {"kind": "needle", "noise": PROSE, "facts": 8,
                                "value_type": "hex"}),
    },
}
FINAL["multi"] = FINAL["retrieve"] | {
    "needle_list": ("hay", {"kind": "needle", "noise": PROSE,
                            "facts": 10**6}),
    "multivalue": ("several", {}),
    "multiquery": ("several", {"keys": 4, "key_values": 1, "keys_asked": 4}),
    **{f"vt_{n}": ("variables", {"hops": (n, n)}) for n in (1, 2, 3, 4)},
    "cwe": ("common", {}),
    "fwe": ("frequent", {}),
    "qa_1": QUICK["multi"]["qa_1"],
    "qa_2": QUICK["multi"]["qa_2"],
}


def arguments_at(name, arguments, length):
    """Ten common words stand less often in lists that hold few words."""
    if name == "common" and length < 4096:
        return arguments | {"often": 6, "rarely": 1}
    return arguments


def takes_depth(name, arguments):
    return (name not in ("common", "frequent") and
            arguments.get("num_questions", 1) == 1)


def hits(name, predicted, target):
    """Right per token of answers [B, N]. The ten common words come in any
    order: right is each that is still to come."""
    right = predicted == target
    if name == "common":
        words, given = target[:, 0::2], predicted[:, 0::2]
        later = torch.ones(10, 10, dtype=torch.bool,
                           device=target.device).triu()
        right[:, 0::2] = ((given[:, :, None] == words[:, None, :]) &
                          later).any(-1)
    return right
