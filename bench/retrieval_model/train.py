#!/usr/bin/env python3
"""Trains the retrieval model on one GPU; README.md beside this has the recipes.

  train.py --out RUN [--seconds 400] [--stages LENGTH:ACCUMULATION:SECONDS,...]

Writes RUN/config.json, RUN/weights.safetensors (fp32), RUN/state.pt
(optimisers, generators and progress), RUN/log.txt and RUN/scores.json. A run
that was stopped continues with the same command: a longer training can be cut
into runs of a few minutes. Without a GPU a tiny model runs, as a smoke test.
"""

import argparse
import contextlib
import dataclasses
import glob
import json
import os
import random
import time

import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import mixtures
import tasks
from model import CONFIGS, Llama, Muon, init_params

STARTED = time.monotonic()
TOKENS = 65536  # of a micro-batch, at every length: one compilation
MAX_SPAN = 65536
NUM_TYPES = len(mixtures.TYPES)
DEPTHS = [i / 10 for i in range(11)]


def parse_stages(text):
    """[(length, accumulated micro-batches, seconds at most)]"""
    return [tuple(int(x) for x in stage.split(":"))
            for stage in text.split(",")]


class Trainer:
    def __init__(self, options):
        self.options = options
        self.cuda = torch.cuda.is_available()
        self.device = "cuda" if self.cuda else "cpu"
        self.tokens = TOKENS if self.cuda else 1024
        name = options.model or ("base" if self.cuda else "tiny")
        config = dataclasses.replace(CONFIGS[name], rope_theta=options.theta)
        self.params = init_params(config, self.device, options.seed)
        if options.init:
            for path in glob.glob(os.path.join(options.init, "*.safetensors")):
                for name, weight in load_file(path).items():
                    self.params[name].data.copy_(weight)
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.model = Llama(config, self.params, dtype, compiled=self.cuda)
        matrices = [p for name, p in self.params.items()
                    if p.dim() == 2 and "embed" not in name]
        rest = [p for name, p in self.params.items()
                if p.dim() != 2 or "embed" in name]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=options.rate,
                                      betas=(0.9, 0.95), weight_decay=0.0,
                                      fused=self.cuda)
        self.generator = tasks.Generator(self.device, 100 + options.seed)
        self.rng = random.Random(options.seed)
        self.stages = parse_stages(options.stages)
        # What a stopped run needs to go on.
        self.progress = {"step": 0, "stage": 0, "stage_seconds": 0.0,
                         "seconds": 0.0, "tokens": 0,
                         "phase": 2 if options.init else 0}
        self.seconds = options.seconds
        self.sums = torch.zeros(2 + 2 * NUM_TYPES, device=self.device)
        os.makedirs(options.out, exist_ok=True)
        with open(self.path("config.json"), "w", encoding="ascii") as file:
            json.dump(dataclasses.asdict(config), file)
        self.restore()
        self.log("model", config, sum(p.numel() for p in self.params.values()),
                 "parameters; torch", torch.__version__)

    def clock(self):
        """Seconds since this process started."""
        return time.monotonic() - STARTED

    def path(self, name):
        return os.path.join(self.options.out, name)

    def log(self, *words):
        line = (f"[{self.progress['seconds']:6.1f} {self.clock():6.1f}] " +
                " ".join(map(str, words)))
        print(line, flush=True)
        with open(self.path("log.txt"), "a", encoding="ascii") as file:
            file.write(line + "\n")

    def save(self):
        """Each file is replaced whole, the state last."""
        weights = {name: p.detach().cpu() for name, p in self.params.items()}
        save_file(weights, self.path("weights.tmp"))
        os.replace(self.path("weights.tmp"), self.path("weights.safetensors"))
        torch.save({"weights": weights, "muon": self.muon.buffers,
                    "adam": self.adam.state_dict(),
                    "generator": self.generator.random.get_state(),
                    "rng": self.rng.getstate(), "progress": self.progress},
                   self.path("state.tmp"))
        os.replace(self.path("state.tmp"), self.path("state.pt"))

    def restore(self):
        if not os.path.exists(self.path("state.pt")):
            return
        state = torch.load(self.path("state.pt"), map_location="cpu",
                           weights_only=False)
        for name, weight in state["weights"].items():
            self.params[name].data.copy_(weight)
        for shape, buffer in state["muon"].items():
            self.muon.buffers[shape].copy_(buffer)
        self.adam.load_state_dict(state["adam"])
        self.generator.random.set_state(state["generator"])
        self.rng.setstate(state["rng"])
        self.progress = state["progress"]
        self.log("continues at step", self.progress["step"])

    # ---- Scores --------------------------------------------------------------

    @torch.no_grad()
    def exact(self, name, arguments, length, rows, generator, depths=None):
        """Strict match per question, bool [rows, questions].

        Teacher-forced, which equals greedy decoding where all is right (words
        that may come in any order: if the model keeps to the order given).
        """
        size = max(1, self.tokens // length)
        arguments = mixtures.arguments_at(name, arguments, length)
        questions = arguments.get("num_questions", 1)
        hits = []
        for begin in range(0, rows, size):
            extra = {}
            if depths is not None and mixtures.takes_depth(name, arguments):
                picked = [depths[(begin + i) % len(depths)]
                          for i in range(size)]
                extra["depth"] = picked
            tokens, weights, _ = getattr(generator, name)(size, length,
                                                          **arguments, **extra)
            positions = torch.arange(length, device=self.device)
            _, predicted = self.model.loss(tokens, weights,
                                           positions.expand(size, length))
            answers = weights[:, 1:] >= 1
            hit = mixtures.hits(name,
                                predicted[:, :-1][answers].view(size, -1),
                                tokens[:, 1:][answers].view(size, -1))
            hits.append(hit.view(size, questions, -1).all(-1))
        return torch.cat(hits)[:rows]

    def quick(self, length):
        generator = tasks.Generator(self.device, 977)
        rows = max(16, self.tokens // length)
        return {task: round(self.exact(name, arguments, length, rows,
                                       generator).float().mean().item(), 3)
                for task, (name, arguments)
                in mixtures.QUICK[self.options.mixture].items()}

    def final(self):
        """Scores of each length of --final, as far as the time goes."""
        scores = {}
        for length in [int(x) for x in self.options.final.split(",")]:
            generator = tasks.Generator(self.device, 4242 + length)
            rows = (22 if length > 32768 else 33 if length > 16384 else
                    66 if length > 4096 else 110)
            scores[length] = {}
            for task, (name, arguments) in (
                    mixtures.FINAL[self.options.mixture].items()):
                if self.clock() > self.options.score_until:
                    break
                hit = self.exact(name, arguments, length, rows, generator,
                                 DEPTHS).float().view(-1)
                scores[length][task] = {
                    "acc": round(hit.mean().item(), 4), "n": len(hit)}
                if mixtures.takes_depth(name, arguments):
                    scores[length][task]["depth"] = [
                        round(hit[i::len(DEPTHS)].mean().item(), 3)
                        for i in range(len(DEPTHS))]
            self.log("final", length, {task: score["acc"] for task, score
                                       in scores[length].items()})
            with open(self.path("scores.json"), "w", encoding="ascii") as file:
                json.dump(scores, file)

    # ---- Training ------------------------------------------------------------

    def rate(self, length):
        """Warm-up, less at long lengths, linear end over the last quarter."""
        factor = min(1.0, (self.progress["step"] + 1) / 100)
        factor *= 1.0 if length <= 4096 else 0.8 if length <= 8192 else 0.6
        left = 1 - self.progress["seconds"] / self.seconds
        return self.options.rate * factor * min(1.0, max(0.04, left / 0.25))

    def draw_length(self, stage):
        """72% the stage's, 20% a shorter one's, 8% double."""
        r = self.rng.random()
        length = self.stages[stage][0]
        if stage == 0 or r < 0.72:
            return length
        if r < 0.92:
            return self.stages[self.rng.randrange(stage)][0]
        return min(2 * length, 32768)

    def positions(self, borders, length):
        share = 0.85 * (1 if length <= 2048 else 0.8 if length <= 8192 else 0.5)
        if self.rng.random() >= share:
            return torch.arange(length, device=self.device).expand_as(borders)
        span = MAX_SPAN if self.rng.random() < 0.7 else 2 * length
        return self.generator.gapped_positions(borders, max(length, span))

    def shares(self):
        """(share of KV, share of word keys in it): hex KV is learnt first, then
        look-up by name; afterwards the mix is even."""
        return [(0.85, 0.15), (0.4, 0.5), (0.5, 0.3)][self.progress["phase"]]

    def step(self):
        stage = self.progress["stage"]
        length, accumulated, _ = self.stages[stage]
        easy = max(0.2, 0.7 - self.progress["step"] / 1500)
        if self.options.init:
            easy = 0.2
        if self.progress["phase"] == 0:
            easy = max(easy, 0.5)
        for _ in range(accumulated):
            drawn = self.draw_length(stage)
            size = max(1, self.tokens // drawn)
            tokens, weights, borders, answers, types = mixtures.batch(
                self.generator, self.rng, size, drawn, self.options.groups,
                self.options.mixture, easy, *self.shares())
            loss, predicted = self.model.loss(tokens, weights,
                                              self.positions(borders, drawn))
            (loss / accumulated).backward()
            types = torch.tensor(types)
            if self.cuda:  # a plain copy would wait for the GPU
                types = types.pin_memory().to(self.device, non_blocking=True)
            self.sums[0] += loss.detach()
            self.sums[1] += 1
            answers = answers[:, 1:]
            right = (predicted[:, :-1] == tokens[:, 1:]) & answers
            self.sums[2:2 + NUM_TYPES].index_add_(0, types,
                                                  right.sum(1).float())
            self.sums[2 + NUM_TYPES:].index_add_(0, types,
                                                 answers.sum(1).float())
            self.progress["tokens"] += tokens.numel()
        torch.nn.utils.clip_grad_norm_(self.params.values(), 1.0)
        rate = self.rate(length)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.muon.step(rate)
        for param in self.params.values():
            param.grad = None
        self.progress["step"] += 1
        if self.cuda and self.progress["step"] % 25 == 0:
            torch.cuda.synchronize()  # else the host's clock runs ahead

    def report(self):
        """Logs and resets the sums; moves to the next phase when it is due."""
        sums = self.sums.tolist()
        self.sums.zero_()
        shares = [right / count if count > 500 else None for right, count
                  in zip(sums[2:2 + NUM_TYPES], sums[2 + NUM_TYPES:])]
        tokens, now = self.progress["tokens"], self.clock()
        speed = (tokens - self.reported[1]) / (now - self.reported[0]) / 1e6
        self.reported = (now, tokens)
        self.log("step", self.progress["step"], "at",
                 self.stages[self.progress["stage"]][0], "loss",
                 round(sums[0] / max(sums[1], 1), 4),
                 {kind: round(share, 3) for kind, share
                  in zip(mixtures.TYPES, shares) if share is not None},
                 f"{tokens / 1e6:.1f}M tokens, {speed:.2f}M/s")
        phase = self.progress["phase"]
        if phase == 0 and shares[0] is not None and shares[0] > 0.9:
            self.progress["phase"] = 1
        elif phase == 1 and None not in shares[:3] and min(shares[:3]) > 0.97:
            self.progress["phase"] = 2

    def advance(self):
        """Scores the stage now and then, and leaves it if all is learnt or
        time is up."""
        length, _, seconds = self.stages[self.progress["stage"]]
        last = self.progress["stage"] + 1 == len(self.stages)
        learnt = False
        if self.clock() - self.scored > (60 if last else
                                         30 if length > 4096 else 12):
            scores = self.quick(length)
            self.log("scores at", length, scores)
            learnt = min(scores.values()) >= 0.95
            self.scored = self.clock()
            self.reported = (self.scored, self.progress["tokens"])
        if not last and (learnt or self.progress["stage_seconds"] > seconds):
            self.progress["stage"] += 1
            self.progress["stage_seconds"] = 0.0

    def train(self):
        """Until --seconds are trained or the run's time is up."""
        options = self.options
        begin = self.clock()
        self.reported = (begin, self.progress["tokens"])
        self.scored = last_save = begin
        steps = 0
        while (self.progress["seconds"] < self.seconds
               and self.clock() < options.train_until):
            self.step()
            steps += 1
            if steps == 3:
                # The first steps compile: that time is not training's.
                begin = self.scored = last_save = self.clock()
                self.reported = (begin, self.progress["tokens"])
                self.log("first steps done")
                if options.fit:
                    self.seconds = (self.progress["seconds"] +
                                    options.train_until - begin)
            if steps > 3 and self.clock() - self.reported[0] > 12:
                self.report()
                self.advance()
            if self.clock() - last_save > 60:
                self.save()
                last_save = self.clock()
            if steps > 3:
                now = self.clock()
                self.progress["seconds"] += now - begin
                self.progress["stage_seconds"] += now - begin
                begin = now
        self.save()
        self.log("trained", self.progress["step"], "steps",
                 self.progress["tokens"], "tokens")
        return options.fit or self.progress["seconds"] >= self.seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", choices=CONFIGS,
                        help="base on a GPU, tiny without one")
    parser.add_argument("--init", help="folder with weights to start from")
    parser.add_argument("--mixture", choices=mixtures.FINAL,
                        default="retrieve")
    parser.add_argument("--seconds", type=float, default=400,
                        help="of training in all")
    parser.add_argument("--train-until", type=float, default=1e9,
                        help="seconds after its start when this run stops "
                        "training, to be continued")
    parser.add_argument("--fit", action="store_true",
                        help="--seconds follows from --train-until: this run "
                        "is the last")
    parser.add_argument("--score-until", type=float, default=1e9,
                        help="seconds after its start when this run ends")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--theta", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=4,
                        help="kinds of samples in a micro-batch")
    parser.add_argument(
        "--stages", default="512:1:45,1024:1:30,2048:1:40,4096:1:40,"
        "8192:1:40,16384:2:45,32768:2:999")
    parser.add_argument("--final",
                        default="1024,2048,4096,8192,16384,32768,65536",
                        help="lengths that are scored at the end")
    options = parser.parse_args()
    # On Hopper 441 TF/s forward and backward at 32K, flash attention 282.
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with (sdpa_kernel(backends, set_priority=True)
          if torch.cuda.is_available() else contextlib.nullcontext()):
        trainer = Trainer(options)
        if trainer.train():
            trainer.final()


if __name__ == "__main__":
    main()
