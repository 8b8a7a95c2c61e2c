"""Training batches for the retrieval model: torch, any device, vectorised.

Vocabulary (2,048): 0-255 hex bytes, 256-265 digits, 266-276 punctuation and
marks, 300-399 template words, 400-2047 free words. clients/evaluate/ spells the
same tasks in the same words, one sample at a time.

Every generator returns (tokens [B, T] int64, weights [B, T] fp32, borders
[B, T] bool). weights[t] weighs the loss of predicting tokens[t] from what is
before it; at least 1 marks answers: value tokens and the token that ends them.
borders marks places where a position gap may go.
"""

import torch

HEX, DIGIT = 0, 256
BOS, NEWLINE, COMMA, QUESTION, COLON, SEMICOLON, DOT = range(266, 273)
EOS, PAD = 275, 276
TEMPLATE_WORDS = (
    "the grass is green sky blue sun yellow here we go there and back again "
    "pass key of remember it what number sequence digits one special magic "
    "numbers for value a words code").split()
TEMPLATE_ID = {word: 300 + i for i, word in enumerate(TEMPLATE_WORDS)}
FREE, NUM_FREE, VOCAB = 400, 1648, 2048
PUNCTUATION = {"\\n": NEWLINE, ",": COMMA, "?": QUESTION, ":": COLON,
               ";": SEMICOLON, ".": DOT}


def free_word(i):
    """Pronounceable, CVCV; all distinct."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    n = i * 2654435761 % 4900
    return (consonants[n % 14] + vowels[n // 14 % 5] +
            consonants[n // 70 % 14] + vowels[n // 980 % 5])


def vocab():
    words = ["%02x" % i for i in range(256)] + ["<d%d>" % i for i in range(10)]
    words += ["<bos>", "<nl>", ",", "?", ":", ";", ".", "{", "}", "<eos>",
              "<pad>"]
    words += ["<p%d>" % i for i in range(len(words), 300)]
    words += TEMPLATE_WORDS
    words += ["<t%d>" % i for i in range(len(words), FREE)]
    words += [free_word(i) for i in range(NUM_FREE)]
    assert len(set(words)) == VOCAB
    return words


def parse(text):
    """Ids, and ("K", i) or ("V", i) where a key or value token goes."""
    out = []
    for word in text.split():
        if word[0] in "KV" and word[1:].isdigit():
            out.append((word[0], int(word[1:])))
        else:
            out.append(PUNCTUATION.get(word) or TEMPLATE_ID[word])
    return out


NOISE = parse("the grass is green . the sky is blue . the sun is yellow . "
              "here we go . there and back again . \\n")
SENTENCE = 16  # tokens of a sentence of prose, its full stop included
# Kinds of haystack, and after how many tokens a fact may stand.
REPEATED, PROSE, WORDS = 1, 2, 3
UNIT = {REPEATED: len(NOISE), PROSE: SENTENCE, WORDS: 1}


def templates(kind, named, num_value):
    """(fact, question with its answer), parsed."""
    value = " ".join(f"V{i}" for i in range(num_value))
    if kind == "needle":
        fact = f"one of the special magic numbers for K0 K1 is : {value} . \\n"
        asked = "the special magic number for K0 K1"
        return parse(fact), parse(f"what is {asked} ? {asked} is : {value} . "
                                  "\\n")
    name = {"passkey": "pass key", "number": "sequence of digits"}[kind]
    name += " of K0 K1" if named else ""
    fact = (f"the {name} is {value} . remember it . {value} is the {name} . "
            "\\n")
    return parse(fact), parse(f"what is the {name} ? the {name} is {value} . "
                              "\\n")


def num_value_tokens(kind, value_type):
    fixed = {"passkey": 5, "number": 10}.get(kind)
    return fixed or {"digits": 7, "hex": 16, "word": 3}[value_type]


class Template:
    """A parsed template as tensors."""

    def __init__(self, parsed, num_value, device):
        plain = [x if isinstance(x, int) else 0 for x in parsed]
        self.tokens = torch.tensor(plain, device=device)
        marks = [(x, i) for i, x in enumerate(parsed)
                 if not isinstance(x, int)]
        self.keys = [(x[1], i) for x, i in marks if x[0] == "K"]
        self.values = torch.tensor([i for x, i in marks if x[0] == "V"],
                                   device=device)
        self.num_value = num_value

    def __len__(self):
        return len(self.tokens)

    def fill(self, keys, values):
        """keys [B, M, 2], values [B, M, num_value] -> [B, M, len]."""
        out = self.tokens.expand(*keys.shape[:2], -1).clone()
        for j, i in self.keys:
            out[..., i] = keys[..., j]
        out[..., self.values] = values.repeat(
            1, 1, len(self.values) // self.num_value)
        return out


class Generator:
    def __init__(self, device, seed=1):
        self.device = device
        self.random = torch.Generator(device=device)
        self.random.manual_seed(seed)
        # Each free word has eight successors, by arithmetic that any language
        # can repeat.
        word = torch.arange(NUM_FREE).view(-1, 1)
        rank = torch.arange(8).view(1, -1)
        h = (word * 8 + rank + 1) * 2654435761 % 4294967296
        h = (h ^ (h >> 15)) * 2246822519 % 4294967296
        self.successors = ((h ^ (h >> 13)) % NUM_FREE).to(device)
        self.cumulative = torch.tensor(
            [.35, .55, .68, .78, .86, .92, .97, 1.0], device=device)
        self.noise = torch.tensor(NOISE, device=device)

    def uniform(self, *shape):
        return torch.rand(*shape, device=self.device, generator=self.random)

    def integers(self, high, *shape):
        return torch.randint(0, high, shape, device=self.device,
                             generator=self.random)

    def distinct(self, n, batch, count):
        return self.uniform(batch, n).topk(count, dim=1).indices

    # ---- Haystacks ----------------------------------------------------------

    def prose(self, batch, length):
        """Sentences of a Markov chain over the free words."""
        n = (length + SENTENCE - 1) // SENTENCE
        word = self.integers(NUM_FREE, batch, n)
        columns = [word]
        for _ in range(SENTENCE - 2):
            rank = torch.bucketize(self.uniform(batch, n), self.cumulative)
            follower = self.successors[word, rank.clamp_(max=7)]
            jump = self.uniform(batch, n) < 0.1
            word = torch.where(jump, self.integers(NUM_FREE, batch, n),
                               follower)
            columns.append(word)
        words = torch.stack(columns, -1) + FREE
        dot = torch.full((batch, n, 1), DOT, device=self.device,
                         dtype=words.dtype)
        return torch.cat([words, dot], -1).view(batch, -1)[:, :length]

    def haystack(self, batch, length, kind):
        if length == 0:
            return torch.zeros(batch, 0, device=self.device, dtype=torch.long)
        if kind == REPEATED:
            times = length // len(self.noise) + 1
            return self.noise.repeat(times)[:length].expand(batch, length)
        if kind == PROSE:
            return self.prose(batch, length)
        return self.integers(NUM_FREE, batch, length) + FREE

    def values(self, kind, value_type, batch, count, size):
        if kind == "number":  # five random digits, five neighbours doubled
            digits = self.integers(10, batch, count, 5)
            for n in range(5, 10):
                at = self.integers(n, batch, count, 1)
                digits = torch.cat([digits, digits[..., -1:]], -1)
                index = torch.arange(n + 1, device=self.device).view(1, 1, -1)
                digits = torch.where(index <= at, digits, digits.roll(1, -1))
            return digits + DIGIT
        return self.symbols(value_type, batch, count, size)

    def symbols(self, kind, *shape):
        high, base = {"hex": (256, HEX), "word": (NUM_FREE, FREE),
                      "digits": (10, DIGIT)}[kind]
        return self.integers(high, *shape) + base

    # ---- Key-value retrieval -------------------------------------------------

    def kv(self, batch, length, key_size=16, value_size=16, mode="end", p=0.3,
           num_questions=None, depth=None, key_type="hex", value_type="hex"):
        """A dictionary. `inter`: each slot asks for an earlier pair with
        probability p. `end`: the last slots ask; depth [B, num_questions] in
        [0, 1] fixes which pair each asks for."""
        device = self.device
        slot = key_size + value_size + 3
        n = (length - 1) // slot
        pad = length - 1 - n * slot
        if mode == "inter":
            asks = self.uniform(batch, n) < p
            asks[:, :2] = False
            seen = (~asks).cumsum(1)
            pick = (self.uniform(batch, n) * seen).long().clamp_(max=n - 1)
            pair = torch.where(asks, pick, seen - 1)
        else:
            count = max(1, min(num_questions or max(1, int(n * p)), n - 1))
            pairs = n - count
            if depth is not None:
                wanted = torch.as_tensor(depth, device=device,
                                         dtype=torch.float32)
                wanted = wanted.view(-1, count) * (pairs - 1)
                asked = wanted.round().long().expand(batch, count)
            elif count <= pairs:
                asked = self.distinct(pairs, batch, count)
            else:
                asked = self.integers(pairs, batch, count)
            stated = torch.arange(pairs, device=device).expand(batch, pairs)
            pair = torch.cat([stated, asked], 1)
            asks = (torch.arange(n, device=device) >= pairs).expand(batch, n)
        keys = self.symbols(key_type, batch, n, key_size)
        values = self.symbols(value_type, batch, n, value_size)

        def of_pair(x):
            return x.gather(1, pair.unsqueeze(-1).expand(-1, -1, x.shape[-1]))

        one = torch.ones(batch, n, 1, device=device, dtype=torch.long)
        mark = torch.where(asks, QUESTION, COMMA).unsqueeze(-1)
        slots = torch.cat([mark, of_pair(keys), one * COLON, of_pair(values),
                           one * SEMICOLON], -1)
        weights = torch.zeros(batch, n, slot, device=device)
        question = asks.unsqueeze(-1).float()
        weights[..., key_size + 2:] = question
        if key_size > 3:  # the rest of a repeated key follows from its start
            weights[..., 4:key_size + 2] = question * 0.2
        borders = torch.zeros(batch, n, slot, device=device, dtype=torch.bool)
        borders[..., 0] = True
        bos = torch.full((batch, 1), BOS, device=device)
        zeros = torch.zeros(batch, pad + 1, device=device)
        return (torch.cat([bos, self.haystack(batch, pad, WORDS),
                           slots.view(batch, -1)], 1),
                torch.cat([zeros, weights.view(batch, -1)], 1),
                torch.cat([zeros.bool(), borders.view(batch, -1)], 1))

    # ---- Pass key, number string, needles ------------------------------------

    def hay(self, batch, length, kind="passkey", noise=REPEATED, facts=1,
            num_questions=1, named=True, value_type="digits", depth=None):
        """Facts in a haystack. depth [B] in [0, 1] places the asked fact."""
        device = self.device
        named = named or facts > 1 or kind == "needle"
        size = num_value_tokens(kind, value_type)
        fact, question = (Template(t, size, device)
                          for t in templates(kind, named, size))
        count = max(1, min(num_questions,
                           (length - 1 - len(fact)) // len(question),
                           10**6 if named else 2))
        context = length - 1 - count * len(question)
        facts = max(1, min(facts, context // len(fact)))
        hay = context - facts * len(fact)
        picked = self.distinct(16384, batch, facts)
        keys = torch.stack([FREE + picked // 128, FREE + 128 + picked % 128],
                           -1)
        values = self.values(kind, value_type, batch, facts, size)
        if facts == 1:
            asked = torch.zeros(batch, count, device=device, dtype=torch.long)
        elif count <= facts:
            asked = self.distinct(facts, batch, count)
        else:
            asked = self.integers(facts, batch, count)

        def of_asked(x):
            return x.gather(
                1, asked[..., None].expand(batch, count, x.shape[-1]))

        stated = fact.fill(keys, values)
        questions = question.fill(of_asked(keys), of_asked(values))
        unit = UNIT[noise]
        place = self.integers(hay // unit + 1, batch, facts) * unit
        if depth is not None:
            wanted = torch.as_tensor(depth, device=device,
                                     dtype=torch.float32).view(-1, 1)
            wanted = (wanted * (hay // unit)).round().long() * unit
            place.scatter_(1, asked[:, :1], wanted.expand(batch, 1))
        place, order = torch.sort(place, dim=1, stable=True)
        if depth is not None:
            stated = stated.gather(1, order[..., None].expand_as(stated))
        start = place + torch.arange(facts, device=device) * len(fact)
        index = start.unsqueeze(-1) + torch.arange(len(fact), device=device)
        index = index.view(batch, -1)
        is_fact = torch.zeros(batch, context, device=device, dtype=torch.bool)
        is_fact.scatter_(1, index, True)
        hay_index = (~is_fact).cumsum(1) - 1
        if hay > 0:
            tokens = self.haystack(batch, hay, noise).gather(
                1, hay_index.clamp(0, hay - 1))
        else:
            tokens = torch.zeros(batch, context, device=device,
                                 dtype=torch.long)
        tokens = tokens.scatter(1, index, stated.view(batch, -1))

        fact_weights = torch.zeros(len(fact), device=device)
        fact_weights[fact.values[size:]] = 0.3  # the value's second statement
        question_weights = torch.zeros(len(question), device=device)
        question_weights[question.values] = 2.0
        question_weights[question.values[-1] + 1] = 2.0
        hay_weight = {REPEATED: 0.002, PROSE: 0.02, WORDS: 0.0}[noise]
        weights = (~is_fact).float() * hay_weight
        weights = weights.scatter(1, index,
                                  fact_weights.repeat(facts).expand(batch, -1))
        borders = (hay_index % unit == 0) & ~is_fact
        borders = borders.scatter(1, start, True)
        question_borders = torch.arange(len(question), device=device) == 0
        zero = torch.zeros(batch, 1, device=device)
        bos = torch.full((batch, 1), BOS, device=device)
        return (torch.cat([bos, tokens, questions.view(batch, -1)], 1),
                torch.cat([zero, weights, question_weights.repeat(
                    count).expand(batch, -1)], 1),
                torch.cat([zero.bool(), borders, question_borders.repeat(
                    count).expand(batch, -1)], 1))

    def gapped_positions(self, borders, span):
        """Positions [B, T] that jump at random borders, span in [T, span].

        A gap teaches distances beyond the sequence; an offset would teach
        nothing, RoPE being blind to it.
        """
        batch, length = borders.shape
        plain = torch.arange(length, device=self.device)
        if span <= length:
            return plain.expand(batch, length)
        share = torch.exp(-self.uniform(batch, 1) * 4.0)  # 1 to 2% of them
        jump = borders * (self.uniform(batch, length) < share)
        jump = jump * -torch.log(self.uniform(batch, length).clamp_min(1e-6))
        extra = (span - length) * self.uniform(batch, 1)
        total = jump.sum(1, keepdim=True).clamp_min(1e-6)
        return plain + (jump / total * extra).floor().long().cumsum(1)


# ---- Mixtures ---------------------------------------------------------------

TYPES = ["kv_hex", "kv_word", "hay_named", "hay_single"]


def draw(rng, length, easy, kv_share, word_share):
    """(type, generator, arguments); easy: share of short keys."""
    if rng.random() < kv_share:
        if rng.random() < word_share:
            value_type, value_size = rng.choice(
                [("hex", 8), ("hex", 4), ("digits", 5), ("digits", 7),
                 ("word", 2), ("word", 1)])
            kind = 1
            arguments = {"key_type": "word",
                         "key_size": rng.choice([2, 2, 3, 4]),
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


def batch(generator, rng, size, length, groups, easy, kv_share, word_share):
    """A batch of several kinds, and the type of each row."""
    groups = min(size, groups)
    cut = [size * i // groups for i in range(groups + 1)]
    parts, types = [], []
    for begin, end in zip(cut, cut[1:]):
        kind, name, arguments = draw(rng, length, easy, kv_share, word_share)
        parts.append(getattr(generator, name)(end - begin, length, **arguments))
        types += [kind] * (end - begin)
    return tuple(torch.cat(x, 0) for x in zip(*parts)) + (types,)


# The tasks of the model card: one question at the end, positions contiguous.
EVALUATIONS = {
    "passkey": ("hay", {"kind": "passkey", "named": False}),
    "number": ("hay", {"kind": "number", "named": False}),
    "kv": ("kv", {"num_questions": 1}),
    "needle": ("hay", {"kind": "needle", "noise": PROSE}),
    "multikey": ("hay", {"kind": "needle", "noise": PROSE, "facts": 16}),
    "uuid_needle": ("hay", {"kind": "needle", "noise": PROSE, "facts": 8,
                            "value_type": "hex"}),
}


def answer_tokens(name, arguments):
    """Tokens of an answer, the one that ends it included."""
    if name == "kv":
        return arguments.get("value_size", 16) + 1
    return num_value_tokens(arguments["kind"],
                            arguments.get("value_type", "digits")) + 1
