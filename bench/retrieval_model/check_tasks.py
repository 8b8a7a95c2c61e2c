#!/usr/bin/env python3
"""Checks the generators, and that an evaluation asks in the same sentences.

  check_tasks.py
  overture evaluate --prompts=prompts.jsonl --tasks=TASKS --model=FOLDER
  check_tasks.py prompts.jsonl

Every draw of every mixture must have its length, known tokens and an answer.
A prompt must be a sample of ours but for its names, values and filler: the same
question and answer, the same kinds and number of statements. Needs torch only.
"""

import argparse
import collections
import json
import random
import re

import torch

import mixtures
import tasks

# Ours by the evaluation's name.
SAME = {
    "passkey": "passkey", "number": "number", "kv": "kv",
    "niah_single_2": "needle", "niah_multikey_1": "multikey",
    "niah_multikey_2": "needle_list", "niah_multikey_3": "uuid_needle",
    "niah_multivalue": "multivalue", "niah_multiquery": "multiquery",
    "vt": "vt_4", "cwe": "cwe", "fwe": "fwe", "qa_1": "qa_1", "qa_2": "qa_2",
}
STATEMENTS = (
    "the pass key is V remember it . V is the pass key",
    "the sequence of digits is V remember it . V is the sequence of digits",
    "one of the special magic numbers for W W is : V",
    "the value of W W is V", "the value of W W is the value of W W",
    "the one of W W is W W", "the key of W W is W W",
    ", B : B ;", "W ,", "code ,")


def check_draws():
    generator = tasks.Generator("cpu", 1)
    rng = random.Random(1)
    for length in (512, 1024, 4096, 16384):
        seen = collections.Counter()
        for mixture in mixtures.FINAL:
            for _ in range(60):
                tokens, weights, borders, answers, types = mixtures.batch(
                    generator, rng, 2, length, 2, mixture, 0.5, 0.5, 0.3)
                assert tokens.shape == weights.shape == (2, length)
                assert borders.shape == answers.shape == (2, length)
                assert 0 <= tokens.min() and tokens.max() < tasks.VOCAB
                assert answers.any(1).all() and (weights[answers] > 0).all()
                seen.update(mixtures.TYPES[kind] for kind in types)
        assert set(seen) == set(mixtures.TYPES), seen
        print(length, dict(seen))


def classes(ids):
    """Tokens without what is drawn: digits D, bytes B, free words W."""
    words = tasks.vocab()
    return ["D" if tasks.DIGIT <= i < tasks.BOS else
            "B" if i < tasks.DIGIT else
            "W" if i >= tasks.FREE else words[i] for i in ids]


def split(ids):
    """(statements and how often each stands, question with answer)."""
    tokens = classes(ids)
    starts = [i for i, token in enumerate(tokens) if token in ("what", "?")]
    begin = starts[-1]
    if len(starts) > 1 and (tokens[starts[-2]] == "what" or
                            tokens[begin] == "what"):
        begin = starts[-2]
    context = re.sub(r"\bD( D)* \.", "V", " ".join(tokens[:begin]))
    context = re.sub(r"\bD( D)*", "V", context)
    context = re.sub(r"\bB( B)*", "B", context)
    counts = {text: len(re.findall(r"(?<!\S)" + re.escape(text) + r"(?!\S)",
                                   context)) for text in STATEMENTS}
    return counts, " ".join(tokens[begin:])


def check_prompts(path):
    generator = tasks.Generator("cpu", 1)
    with open(path, encoding="ascii") as file:
        samples = [json.loads(line) for line in file]
    for sample in samples:
        length = len(sample["prompt"])
        name, arguments = mixtures.FINAL["multi"][SAME[sample["task"]]]
        arguments = mixtures.arguments_at(name, arguments, length)
        ends = 0 if name == "kv" else 1  # a line's end after the answer
        depth = ({"depth": [0.5]} if mixtures.takes_depth(name, arguments)
                 else {})
        ours = getattr(generator, name)(
            1, length + len(sample["gold"]) + ends, **arguments, **depth)[0]
        theirs = sample["prompt"] + sample["gold"] + [tasks.NEWLINE] * ends
        for mine, other in zip(split(ours[0].tolist()), split(theirs)):
            assert mine == other, f"{sample['sample']}:\n{mine}\n{other}"
    print(len(samples), "prompts are the same")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.prompts:
        check_prompts(options.prompts)
    else:
        check_draws()


if __name__ == "__main__":
    main()
