#!/usr/bin/env python3
"""Writes the tokenizer goldens: texts and the ids that Hugging Face
`tokenizers` gives them.

    pip install tokenizers==0.23.3 gguf
    cd tests/goldens
    ./make_tokenizer_goldens.py write
    ./make_tokenizer_goldens.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    ./make_tokenizer_goldens.py diff ../../build/release/bin/tokenizer_dump \
        [--count N] [--seed S] [--gguf SmolLM2-135M-Instruct.Q4_1.gguf]

write     tokenizer_vocab.json (once: a byte-level vocabulary of our own) and
          tokenizer_goldens.json: each rule's tokenizer.json without its
          vocabulary, and its ids.
smollm2   tokenizer_smollm2.json: ids under SmolLM2's own vocabulary, which
          comes from the GGUF file.
diff      compares ids of random texts with those of tokenizer_dump.

The vocabulary is trained without cutting the text first, so its tokens reach
across spaces, digits and line ends: a piece that is cut in the wrong place
changes the ids.
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile

from tokenizers import (AddedToken, Tokenizer, decoders, models,
                        pre_tokenizers, trainers)

from tokenizer_corpus import CORPUS

HERE = pathlib.Path(__file__).parent
VOCAB = HERE / "tokenizer_vocab.json"

GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
        r"|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def train_vocab():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False)
    # The licence makes the vocabulary English enough to leave few bytes alone.
    licence = (HERE / "../../LICENSE").read_text(encoding="utf-8")
    parts = [text for text in CORPUS if len(text) < 150] * 4
    parts += licence.split("\n\n")
    # No added token may become an ordinary one.
    contents = {token["content"] for rule in rules(0).values()
                for token in rule["added_tokens"]}
    for content in contents:
        parts = [part for whole in parts for part in whole.split(content)]
    tokenizer.train_from_iterator(parts, trainers.BpeTrainer(
        vocab_size=3000, min_frequency=2, max_token_length=14,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    assert not contents & set(model["vocab"])
    with open(VOCAB, "w", encoding="ascii") as out:
        json.dump({"vocab": model["vocab"], "merges": model["merges"]}, out,
                  indent=0, separators=(",", ":"))
        out.write("\n")


def byte_level(use_regex, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space,
            "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern},
            "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def added(token_id, content, **flags):
    token = {"id": token_id, "content": content, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    token.update(flags)
    return token


def template(name, token_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {name: {"id": name, "ids": [token_id],
                                      "tokens": [name]}}}


def rules(vocab_size):
    """tokenizer.json without vocab and merges, by name; as published."""
    def make(pre_tokenizer, contents, **changes):
        tokens = [token if isinstance(token, dict)
                  else added(vocab_size + i, token)
                  for i, token in enumerate(contents)]
        root = {"version": "1.0", "truncation": None, "padding": None,
                "added_tokens": tokens, "normalizer": None,
                "pre_tokenizer": pre_tokenizer, "post_processor": None,
                "decoder": byte_level(True, True),
                "model": {"type": "BPE", "dropout": None, "unk_token": None,
                          "continuing_subword_prefix": None,
                          "end_of_word_suffix": None, "fuse_unk": False,
                          "byte_fallback": False,
                          "ignore_merges": changes.pop("ignore_merges",
                                                       False)}}
        root.update(changes)
        return root

    n = vocab_size
    return {
        "gpt2": make(byte_level(True), ["<|endoftext|>"],
                     post_processor=byte_level(True)),
        "smollm": make(
            sequence("pretokenizers",
                     {"type": "Digits", "individual_digits": True},
                     byte_level(True)),
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        "llama-bpe": make(
            sequence("pretokenizers", split(LLAMA3), byte_level(False)),
            ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eot_id|>"],
            ignore_merges=True,
            post_processor=sequence("processors", byte_level(True),
                                    template("<|begin_of_text|>", n))),
        "qwen2": make(
            sequence("pretokenizers", split(QWEN2), byte_level(False)),
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>",
             added(n + 3, "<tool_call>", special=False),
             added(n + 4, "</tool_call>", special=False)],
            normalizer={"type": "NFC"}, post_processor=byte_level(False)),
        # No published model: every flag and step at once.
        "flags": make(
            sequence("pretokenizers",
                     {"type": "Digits", "individual_digits": False},
                     split(GPT2, "Removed", True), byte_level(True, True)),
            [added(n, "<mask>", lstrip=True), added(n + 1, "<rs>", rstrip=True),
             added(n + 2, "word", single_word=True, special=False),
             added(n + 3, "caf\u00e9", normalized=True, special=False),
             added(n + 4, "<|im_", special=False),
             added(n + 5, "<|im_start|>")],
            normalizer=sequence("normalizers", {"type": "NFC"})),
    }


def with_vocab(rule, vocab):
    root = json.loads(json.dumps(rule))
    root["model"].update(vocab)
    return json.dumps(root)


def without_added(rule):
    root = json.loads(json.dumps(rule))
    root["added_tokens"] = []
    root["post_processor"] = None
    return root


def encode(tokenizer, text, bos=False):
    return tokenizer.encode(text, add_special_tokens=bos).ids


def decode(tokenizer, ids):
    """As tokenizer.decode, but added tokens stand as they are: `tokenizers`
    reads them, too, as the byte-level alphabet, which spoils all but ASCII."""
    added_tokens = tokenizer.get_added_tokens_decoder()
    text, run = "", []
    for token_id in ids + [None]:
        if token_id is None or token_id in added_tokens:
            text += tokenizer.decode(run, skip_special_tokens=False)
            run = []
        if token_id in added_tokens:
            text += added_tokens[token_id].content
        elif token_id is not None:
            run.append(token_id)
    return text


def dump_lines(out, items):
    out.write("[\n" + ",\n".join(
        json.dumps(item, separators=(",", ":")) for item in items) + "]")


def write_goldens():
    vocab = json.loads(VOCAB.read_text(encoding="ascii"))
    with open(HERE / "tokenizer_goldens.json", "w", encoding="ascii") as out:
        out.write('{"corpus":')
        dump_lines(out, CORPUS)
        out.write(',\n"rules":{')
        for i, (name, rule) in enumerate(
                rules(len(vocab["vocab"])).items()):
            tokenizer = Tokenizer.from_str(with_vocab(rule, vocab))
            plain = Tokenizer.from_str(with_vocab(without_added(rule), vocab))
            ids = [encode(tokenizer, text) for text in CORPUS]
            out.write(("," if i else "") + f'\n"{name}":{{"tokenizer":')
            json.dump(rule, out, separators=(",", ":"))
            out.write(',\n"ids":')
            dump_lines(out, ids)
            # Where it differs, by index: with a BOS, without added tokens,
            # decoded (NFC and prefix spaces change the text).
            for key, got, usual in (
                    ("with_special_ids",
                     [encode(tokenizer, text, True) for text in CORPUS[:2]],
                     [None] * 2),
                    ("plain_ids", [encode(plain, text) for text in CORPUS],
                     ids),
                    ("decoded", [decode(tokenizer, x) for x in ids], CORPUS)):
                out.write(f',\n"{key}":')
                json.dump({i: a for i, (a, b) in enumerate(zip(got, usual))
                           if a != b}, out, separators=(",", ":"))
            out.write("}")
        out.write("}}\n")


def smollm2(path):
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    tokenizer = Tokenizer(models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def write_smollm2(path):
    tokenizer = smollm2(path)
    with open(HERE / "tokenizer_smollm2.json", "w", encoding="ascii") as out:
        out.write('{"ids":')
        ids = [encode(tokenizer, text) for text in CORPUS]
        dump_lines(out, ids)
        # SmolLM2 has no token for 21 bytes; what they are in is lost.
        out.write(',\n"decoded":')
        json.dump({i: decoded for i, (x, text) in enumerate(zip(ids, CORPUS))
                   if (decoded := decode(tokenizer, x)) != text},
                  out, separators=(",", ":"))
        out.write("}\n")


class RandomTexts:
    """Texts that mix a few kinds of characters each."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.whole = [text for text in CORPUS if text]

    def char(self, kind):
        rng = self.rng
        if kind == 0:
            return chr(rng.randrange(32, 127))
        if kind == 1:
            return rng.choice(" \t\n\r\u00a0\u2003\u3000\u0085\u180e\u200b"
                              "\u200d")
        if kind == 2:
            return rng.choice("'sStTrReEvVmMlLdD\u017f")
        if kind == 3:
            return rng.choice("0123456789\u0663\u00b2\u00bd\u2167\u4e00")
        if kind == 4:
            return chr(rng.randrange(0x80, 0x800))
        if kind == 5:
            return chr(rng.choice([rng.randrange(0x800, 0xD800),
                                   rng.randrange(0xE000, 0x10000)]))
        if kind == 6:
            return chr(rng.randrange(0x10000, 0x110000))
        if kind == 7:
            return rng.choice(["<|im_start|>", "<|im_end|>", "<|", "|>",
                               "<mask>", "<|endoftext|>", "word", "<rs>",
                               "caf\u00e9", "the ", "<tool_call>",
                               "<|eot_id|>"])
        if kind == 8:  # marks and what they compose with
            return rng.choice("aeouAEOsz\u00e9\u1e69\u0915\u0928\u1100\u1161"
                              "\u11a8\uac00\uac01\u0301\u0302\u0323\u0307"
                              "\u0338\u093c\u0345\u05bc\u212b\u0344\u30ab"
                              "\u3099\u0bc6\u0bbe")
        if kind == 9:
            return chr(rng.randrange(0x300, 0x370))
        text = rng.choice(self.whole)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randrange(1, 12)]

    def text(self):
        rng = self.rng
        weights = [rng.random() ** 3 for _ in range(11)]
        size = int(2 ** rng.uniform(0, 7))
        return "".join(self.char(rng.choices(range(11), weights)[0])
                       for _ in range(size))


def ask_dump(binary, model, texts, *options):
    records = b"".join(struct.pack("<I", len(data)) + data
                       for data in (text.encode() for text in texts))
    out = subprocess.run([binary, model, "--decode", *options], input=records,
                         capture_output=True, check=True).stdout
    pos = 0
    for _ in texts:
        count, = struct.unpack_from("<I", out, pos)
        ids = list(struct.unpack_from(f"<{count}i", out, pos + 4))
        pos += 4 + 4 * count
        size, = struct.unpack_from("<I", out, pos)
        yield ids, out[pos + 4:pos + 4 + size]
        pos += 4 + size


def diff(binary, count, seed, gguf):
    texts_of = RandomTexts(seed)
    texts = [texts_of.text() for _ in range(count)]
    vocab = json.loads(VOCAB.read_text(encoding="ascii"))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for name, rule in rules(len(vocab["vocab"])).items():
            text = with_vocab(rule, vocab)
            model = pathlib.Path(folder) / name
            model.mkdir()
            (model / "tokenizer.json").write_text(text, encoding="utf-8")
            cases.append((name, str(model), Tokenizer.from_str(text)))
        if gguf:
            cases.append(("SmolLM2 GGUF", gguf, smollm2(gguf)))
            model = pathlib.Path(folder) / "smollm2"
            model.mkdir()
            smollm2(gguf).save(str(model / "tokenizer.json"))
            cases.append(("SmolLM2 tokenizer.json", str(model),
                          smollm2(gguf)))
        for name, model, tokenizer in cases:
            different = chars = 0
            for text, (ids, decoded) in zip(
                    texts, ask_dump(binary, model, texts, "--special")):
                chars += len(text)
                want = encode(tokenizer, text)
                if ids != want:
                    different += 1
                    if different <= 3:
                        print(f"{name}: {text!a}\n  want {want}\n  got  {ids}")
                elif name in ("gpt2", "smollm", "llama-bpe"):
                    assert decoded == text.encode(), (name, text)
            failed = failed or different > 0
            print(f"{name}: {count} texts, {chars} characters, "
                  f"{different} different, seed {seed}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    commands.add_parser("smollm2").add_argument("gguf")
    diff_parser = commands.add_parser("diff")
    diff_parser.add_argument("binary")
    diff_parser.add_argument("--count", type=int, default=20000)
    diff_parser.add_argument("--seed", type=int, default=1)
    diff_parser.add_argument("--gguf")
    args = parser.parse_args()
    if args.command == "write":
        if not VOCAB.exists():
            train_vocab()
        write_goldens()
    elif args.command == "smollm2":
        write_smollm2(args.gguf)
    else:
        raise SystemExit(diff(args.binary, args.count, args.seed, args.gguf))


if __name__ == "__main__":
    main()
