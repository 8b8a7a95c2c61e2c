#!/usr/bin/env python3
"""Answers an evaluation's prompts with Transformers and compares.

  pip install torch transformers
  overture evaluate --prompts=prompts.jsonl GRID_FLAGS --model=FOLDER
  overture evaluate --out=RUN GRID_FLAGS --model=FOLDER --server=...
  compare_transformers.py FOLDER prompts.jsonl [RUN/records.jsonl]

Greedy decoding on the CPU, in the dtype of the weights unless --dtype says
otherwise. Prints the accuracy of both per task, and each sample where they
differ; exit status 1 if one is right where the other is not.
"""

import argparse
import collections
import json
import sys

import torch
from transformers import AutoModelForCausalLM


def read_lines(path):
    with open(path, encoding="ascii") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def dense_answers(path):
    """Answers of ours over dense full KV, by sample."""
    return {record["sample"]: record["answer"]
            for record in read_lines(path)[1:]
            if record["selector"] == "dense" and record["view"] == "full"
            and record["question"] == "last" and record["repeat"] == 0}


def is_right(answer, sample):
    """Strictly, as clients/evaluate/score.cc has it. A word is one token."""
    gold = sample["gold"]
    if sample["any_order"]:
        return sorted(answer) == sorted(gold) and answer[-1:] == gold[-1:]
    return answer == gold


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("records", nargs="?")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model,
                                                 dtype=options.dtype).eval()
    ours = dense_answers(options.records) if options.records else None
    right = collections.defaultdict(lambda: [0, 0, 0])
    contradictions = 0
    for sample in read_lines(options.prompts):
        if ours is not None and sample["sample"] not in ours:
            continue
        prompt = torch.tensor([sample["prompt"]])
        with torch.no_grad():
            out = model.generate(
                prompt, attention_mask=torch.ones_like(prompt),
                max_new_tokens=sample["max_tokens"], do_sample=False,
                eos_token_id=None, pad_token_id=0)
        answer = out[0, prompt.shape[1]:].tolist()
        count = right[sample["task"]]
        theirs_right = is_right(answer, sample)
        count[0] += 1
        count[1] += theirs_right
        if ours is not None:
            ours_right = is_right(ours[sample["sample"]], sample)
            count[2] += ours_right
            contradictions += ours_right != theirs_right
            if ours[sample["sample"]] != answer:
                print(f"{sample['sample']}: {ours[sample['sample']]} here, "
                      f"{answer} in Transformers, gold {sample['gold']}")
    print(f"{'task':18} samples  Transformers  Overture")
    for task, (count, theirs, mine) in right.items():
        mine = mine if ours is not None else "-"
        print(f"{task:18} {count:7}  {theirs:12}  {mine:>8}")
    return 1 if contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
