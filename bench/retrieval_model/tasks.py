"""Samples for the retrieval model: torch, any device, vectorised.

Vocabulary (2,048): 0-255 hex bytes, 256-265 digits, 266-276 punctuation and
marks, 300-399 template words, 400-2047 free words. clients/evaluate/ spells the
same tasks in the same words, one sample at a time.

Every generator returns (tokens [B, T] int64, weights [B, T] fp32, borders
[B, T] bool). weights[t] weighs the loss of predicting tokens[t] from what is
before it; at least 1 marks answers: value tokens and the token that ends them.
borders marks places where a position gap may go.

mixtures.py draws batches of these.
"""

import functools

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


@functools.lru_cache(maxsize=None)
def constant(values, device):
    """A tensor of a tuple. Copying it anew would wait for the GPU."""
    return torch.tensor(values, device=device)


@functools.lru_cache(maxsize=None)
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


def marks(letter, count):
    return [f"{letter}{i}" for i in range(count)]


def templates(kind, named, num_value):
    """(fact, question with its answer), parsed."""
    value = " ".join(marks("V", num_value))
    if kind == "needle":
        fact = f"one of the special magic numbers for K0 K1 is : {value} . \\n"
        asked = "the special magic number for K0 K1"
        return parse(fact), parse(f"what is {asked} ? {asked} is : {value} . "
                                  "\\n")
    if kind == "people":
        fact = f"the one of K0 K1 is {value} . \\n"
        return parse(fact), parse("what is the one of K0 K1 ? " + fact)
    name = {"passkey": "pass key", "number": "sequence of digits"}[kind]
    name += " of K0 K1" if named else ""
    fact = (f"the {name} is {value} . remember it . {value} is the {name} . "
            "\\n")
    return parse(fact), parse(f"what is the {name} ? the {name} is {value} . "
                              "\\n")


def listed(letter, count, size):
    """`count` things of `size` tokens each, with commas between them."""
    things = marks(letter, count * size)
    return " , ".join(" ".join(things[i:i + size])
                      for i in range(0, len(things), size))


def num_value_tokens(kind, value_type):
    fixed = {"passkey": 5, "number": 10}.get(kind)
    return fixed or {"digits": 7, "hex": 16, "word": 3, "name": 2}[value_type]


class Template:
    """A parsed template as tensors."""

    def __init__(self, parsed, num_value, device):
        plain = [x if isinstance(x, int) else 0 for x in parsed]
        self.tokens = constant(tuple(plain), device)
        places = [(x, i) for i, x in enumerate(parsed)
                  if not isinstance(x, int)]
        self.keys = [(x[1], i) for x, i in places if x[0] == "K"]
        values = [i for x, i in places if x[0] == "V"]
        self.values = constant(tuple(values), device)
        self.num_value = num_value
        # Of a question: values, what is between them, what ends the last.
        self.answer = slice(values[0], values[-1] + 2)

    def __len__(self):
        return len(self.tokens)

    def fill(self, keys, values):
        """keys [B, M, K], values [B, M, num_value] -> [B, M, len]."""
        out = self.tokens.expand(*keys.shape[:2], -1).clone()
        for j, i in self.keys:
            out[..., i] = keys[..., j]
        out[..., self.values] = values.repeat(
            1, 1, len(self.values) // self.num_value)
        return out


@functools.lru_cache(maxsize=None)
def zipf_items(room, num_words, exponent):
    """Ranks of the largest list of at most `room` words, each at least once."""
    def counts(top):
        return [max(1, int(top / rank**exponent))
                for rank in range(1, num_words + 1)]

    low, high = 1, room
    while low < high:
        middle = (low + high + 1) // 2
        if sum(counts(middle)) <= room:
            low = middle
        else:
            high = middle - 1
    out = counts(low)
    assert out[3] > out[4] and sum(out) <= room, (room, num_words, exponent)
    return tuple(rank for rank, count in enumerate(out) for _ in range(count))


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

    def names(self, batch, count):
        """Distinct pairs of the first 128 free words and the next 128."""
        picked = self.distinct(16384, batch, count)
        return torch.stack([FREE + picked // 128, FREE + 128 + picked % 128],
                           -1)

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

    def plant(self, stated, weights, depths, hay, noise):
        """Statements [B, M, L] in `hay` tokens of noise, in the order of
        depths [B, M] in [0, 1]; weights [L] of each. Returns (tokens, weights,
        borders)."""
        batch, count, size = stated.shape
        unit = UNIT[noise]
        context = hay + count * size
        depths, order = torch.sort(depths, dim=1, stable=True)
        stated = stated.gather(1, order[..., None].expand_as(stated))
        start = (depths * (hay // unit)).round().long() * unit
        if hay < unit:  # a list is padded in front
            start = start + hay
        start = start + torch.arange(count, device=self.device) * size
        index = start.unsqueeze(-1) + torch.arange(size, device=self.device)
        index = index.view(batch, -1)
        is_fact = torch.zeros(batch, context, device=self.device,
                              dtype=torch.bool)
        is_fact.scatter_(1, index, True)
        hay_index = (~is_fact).cumsum(1) - 1
        if hay > 0:
            tokens = self.haystack(batch, hay, noise).gather(
                1, hay_index.clamp(0, hay - 1))
        else:
            tokens = torch.zeros(batch, context, device=self.device,
                                 dtype=torch.long)
        tokens = tokens.scatter(1, index, stated.reshape(batch, -1))
        hay_weight = {REPEATED: 0.002, PROSE: 0.02, WORDS: 0.0}[noise]
        weights = ((~is_fact).float() * hay_weight).scatter(
            1, index, weights.repeat(count).expand(batch, -1))
        borders = (hay_index % unit == 0) & ~is_fact
        return tokens, weights, borders.scatter(1, start, True)

    def with_questions(self, context, questions):
        """What plant() returned, and questions [(template, tokens [B, M, L])]
        after it."""
        tokens, weights, borders = context
        batch = tokens.shape[0]
        parts = [(torch.full((batch, 1), BOS, device=self.device),
                  torch.zeros(batch, 1, device=self.device),
                  torch.zeros(batch, 1, device=self.device, dtype=torch.bool)),
                 (tokens, weights, borders)]
        for template, asked in questions:
            count, size = asked.shape[1:]
            weight = torch.zeros(size, device=self.device)
            weight[template.answer] = 2.0
            border = torch.arange(size, device=self.device) == 0
            parts.append((asked.reshape(batch, -1),
                          weight.repeat(count).expand(batch, -1),
                          border.repeat(count).expand(batch, -1)))
        return tuple(torch.cat(x, 1) for x in zip(*parts))

    def asked_depths(self, depth, depths, asked):
        """depths [B, M], those of what is asked first [B, 1] as wanted [B]."""
        if depth is None:
            return depths
        wanted = torch.as_tensor(depth, device=self.device,
                                 dtype=torch.float32).view(-1, 1)
        return depths.scatter(1, asked, wanted.expand(asked.shape))

    def hay(self, batch, length, kind="passkey", noise=REPEATED, facts=1,
            num_questions=1, named=True, value_type="digits", depth=None):
        """Facts in a haystack, as many as fit if there is no room for all.
        depth [B] in [0, 1] places the asked fact."""
        device = self.device
        named = named or facts > 1 or kind in ("needle", "people")
        size = num_value_tokens(kind, value_type)
        fact, question = (Template(t, size, device)
                          for t in templates(kind, named, size))
        count = max(1, min(num_questions,
                           (length - 1 - len(fact)) // len(question),
                           10**6 if named else 2))
        context = length - 1 - count * len(question)
        facts = max(1, min(facts, context // len(fact)))
        if value_type == "name":
            both = self.names(batch, 2 * facts)
            keys, values = both[:, :facts], both[:, facts:]
        else:
            keys = self.names(batch, facts)
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

        weights = torch.zeros(len(fact), device=device)
        weights[fact.values[size:]] = 0.3  # the value's second statement
        depths = self.asked_depths(depth, self.uniform(batch, facts),
                                   asked[:, :1])
        return self.with_questions(
            self.plant(fact.fill(keys, values), weights, depths,
                       context - facts * len(fact), noise),
            [(question, question.fill(of_asked(keys), of_asked(values)))])

    # ---- Several values, several questions -----------------------------------

    def several(self, batch, length, noise=PROSE, keys=1, key_values=4,
                keys_asked=1, num_questions=1, value_type="digits",
                depth=None):
        """`key_values` facts of each key; a question asks for all values of
        `keys_asked` keys, those of a key in the order in which they stand.
        depth [B] places one fact of the first key asked for."""
        device = self.device
        size = num_value_tokens("needle", value_type)
        fact = Template(templates("needle", True, size)[0], size, device)
        whose = listed("K", keys_asked, 2)
        asked = f"the special magic numbers for {whose}"
        answer = listed("V", keys_asked * key_values, size)
        question = Template(
            parse(f"what is {asked} ? {asked} is : {answer} . \\n"),
            keys_asked * key_values * size, device)
        facts = keys * key_values
        hay = (length - 1 - facts * len(fact) -
               num_questions * len(question))
        assert hay >= 0, (length, keys, key_values, num_questions)
        name = self.names(batch, keys)
        value = self.values("needle", value_type, batch, facts, size)
        picked = self.distinct(keys, batch * num_questions, keys_asked).view(
            batch, num_questions * keys_asked)
        depths = self.asked_depths(depth, self.uniform(batch, facts),
                                   picked[:, :1] * key_values)
        depths = depths.view(batch, keys, key_values).sort(-1).values
        stated = fact.fill(name.repeat_interleave(key_values, 1), value)
        questions = question.fill(
            name.gather(1, picked[..., None].expand(-1, -1, 2)).view(
                batch, num_questions, -1),
            value.view(batch, keys, -1).gather(
                1, picked[..., None].expand(-1, -1, key_values * size)).view(
                    batch, num_questions, -1))
        return self.with_questions(
            self.plant(stated, torch.zeros(len(fact), device=device),
                       depths.view(batch, facts), hay, noise),
            [(question, questions)])

    # ---- Chains --------------------------------------------------------------

    def variables(self, batch, length, noise=REPEATED, hops=(4, 4), asked=(0,),
                  depth=None):
        """Chains of names: the first has a value of five digits, each other
        the value of the one before. A question asks for the names of a chain
        of `asked`. depth [B] places the start of asked[0]."""
        device = self.device
        first = Template(parse("the value of K0 K1 is V0 V1 V2 V3 V4 . \\n"),
                         5, device)
        link = Template(parse("the value of K0 K1 is the value of V0 V1 . "
                              "\\n"), 2, device)
        names, values, stated, depths = [], [], [], []
        pool = self.names(batch, sum(hops) + len(hops))
        for chain, n in enumerate(hops):
            names.append(pool[:, :n + 1])
            pool = pool[:, n + 1:]
            values.append(self.symbols("digits", batch, 1, 5))
            stated += [first.fill(names[-1][:, :1], values[-1]),
                       link.fill(names[-1][:, 1:], names[-1][:, :-1])]
            u = self.uniform(batch, n + 1).sort(-1).values
            if depth is not None and chain == asked[0]:
                start = torch.as_tensor(depth, device=device,
                                        dtype=torch.float32).view(-1, 1)
                u = start + u * (1 - start)
                u[:, :1] = start
            depths.append(u)
        questions = []
        for chain in asked:
            n = hops[chain] + 1
            value = " ".join(marks("K", 5))
            template = Template(
                parse(f"what words for value {value} ? the words for value "
                      f"{value} is : {listed('V', n, 2)} . \\n"), 2 * n, device)
            questions.append((template, template.fill(
                values[chain], names[chain].reshape(batch, 1, -1))))
        stated = torch.cat(stated, 1)
        hay = (length - 1 - stated.shape[1] * stated.shape[2] -
               sum(len(template) for template, _ in questions))
        assert hay >= 0, (length, hops, asked)
        return self.with_questions(
            self.plant(stated, torch.zeros(len(first), device=device),
                       torch.cat(depths, 1), hay, noise), questions)

    def neighbours(self, batch, length, num_questions=1, depth=None):
        """A list of links and facts; a question asks for the fact of what a
        name leads to. depth [B] places the fact of the first question."""
        device = self.device
        fact, link, question = (
            Template(parse(text), 2, device) for text in (
                "the one of K0 K1 is V0 V1 . \\n",
                "the key of K0 K1 is V0 V1 . \\n",
                "what is the one of the key of K0 K1 ? the one of the key of "
                "K0 K1 is V0 V1 . \\n"))
        room = length - 1 - num_questions * len(question)
        entries = max(num_questions, min(room // (2 * len(fact)), 4096))
        start, middle, end = self.names(batch, 3 * entries).chunk(3, 1)
        stated = torch.cat([fact.fill(middle, end), link.fill(start, middle)],
                           1)
        asked = self.distinct(entries, batch, num_questions)
        depths = self.asked_depths(depth, self.uniform(batch, 2 * entries),
                                   asked[:, :1])
        index = asked[..., None].expand(-1, -1, 2)
        return self.with_questions(
            self.plant(stated, torch.zeros(len(fact), device=device), depths,
                       room - 2 * entries * len(fact), PROSE),
            [(question, question.fill(start.gather(1, index),
                                      end.gather(1, index)))])

    # ---- Counted words -------------------------------------------------------

    def common(self, batch, length, often=30, rarely=3):
        """Ten words `often` times in a list, the others `rarely`; the ten are
        asked for, in any order."""
        question = parse("? what words here again and again :")
        room = (length - 1 - len(question) - 21) // 2
        others = min((room - 10 * often) // rarely, NUM_FREE - 10)
        assert others > 0, (length, often, rarely)
        items = torch.cat([
            torch.arange(10, device=self.device).repeat_interleave(often),
            torch.arange(10, 10 + others,
                         device=self.device).repeat_interleave(rarely)])
        words = self.distinct(NUM_FREE, batch, NUM_FREE) + FREE
        return self.word_list(length, items, words, words[:, :10], question)

    def frequent(self, batch, length, exponent=2.0):
        """Words by Zipf's law, the first rank noise ("code"); ranks 2 to 4 are
        asked for, in the order of falling counts."""
        question = parse("? what code words here again and again :")
        room = (length - 1 - len(question) - 7) // 2
        num_words = min(max((length - 7) // 50, 8), NUM_FREE)
        items = constant(zipf_items(room, num_words, exponent), self.device)
        words = self.distinct(NUM_FREE, batch, num_words - 1) + FREE
        noise = torch.full((batch, 1), TEMPLATE_ID["code"], device=self.device)
        return self.word_list(length, items, torch.cat([noise, words], 1),
                              words[:, :3], question)

    def word_list(self, length, items, words, asked, question):
        """items [N]: which of words [B, W] each item is, before shuffling;
        asked [B, A]: the answer."""
        batch = words.shape[0]
        order = self.uniform(batch, len(items)).argsort(1)
        listed_words = words.gather(1, items[order])

        def with_commas(x):
            return torch.stack([x, torch.full_like(x, COMMA)], -1).view(
                batch, -1)

        answer = with_commas(asked)
        answer[:, -1] = DOT
        begin = torch.full((batch, 1), BOS, device=self.device)
        end = torch.full((batch, 1), NEWLINE, device=self.device)
        asks = constant(tuple(question), self.device).expand(batch, -1)
        padding = self.haystack(
            batch, length - 2 - 2 * len(items) - len(question) -
            answer.shape[1], REPEATED)
        tokens = torch.cat([begin, padding, with_commas(listed_words), asks,
                            answer, end], 1)
        weights = torch.zeros(length, device=self.device)
        list_begin = 1 + padding.shape[1]
        list_end = list_begin + 2 * len(items)
        # The list itself teaches which words are frequent.
        weights[list_begin:list_end:2] = 10 / len(items)
        weights[length - 1 - answer.shape[1]:length - 1] = 2.0
        borders = torch.zeros(length, device=self.device, dtype=torch.bool)
        borders[list_begin:list_end:2] = True
        borders[list_end] = True
        return (tokens, weights.expand(batch, -1).clone(),
                borders.expand(batch, -1).clone())

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
