"""The optimiser loop: batches in a seeded order, AdamW, time- or step-based cosine, checkpoints that resume exactly."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sglang_eagle31.train.data import Sample
from sglang_eagle31.train.evaluate import Acceptance, acceptance
from sglang_eagle31.train.model import DraftHead
from sglang_eagle31.train.ttt import StepResult, collate, ttt_loss


@dataclass(frozen=True)
class Options:
    """How to optimise."""

    steps: int = 1000
    minutes: float = 0.0
    """If positive, the length of the run in wall minutes (over all resumed parts), instead of ``steps``."""
    ttt: int = 4
    lr: float = 1e-3
    output_lr: float = 1.0
    """Learning rate of ``lm_head`` relative to the rest; 0 keeps the target's own rows."""
    warmup: float = 0.02
    """Share of the run."""
    batch_tokens: int = 2048
    clip: float = 0.5
    dropout: float = 0.0
    """Against overfitting where data are few."""
    seed: int = 0
    eval_every: int = 100
    save_every: int = 100
    bf16: bool = False
    """Autocast. Faster on a GPU or a CPU with AMX; slower on a CPU with AVX-512 alone."""

    def __post_init__(self) -> None:
        for name in ("steps", "ttt", "batch_tokens", "eval_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: give a number of at least 1")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"--warmup {self.warmup}: give a share of the run, at least 0 and below 1")


@dataclass
class Data:
    """Samples and the frozen parts of the target that the loss needs."""

    train: list[Sample]
    held_out: list[Sample]
    embedding: Tensor
    """``[V, H_t]``"""
    target_rows: Tensor
    """``[V_d, H_t]``"""
    used: Tensor
    """``[V_d]``"""
    t2d: Tensor
    """``[V]`` bool"""


def epoch_batches(lengths: list[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sample indices in batches of at most ``batch_tokens`` padded tokens; the order depends on seed and epoch only."""
    rng = random.Random(f"{seed}/{epoch}")
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i] + rng.uniform(0, 32), i))
    batches: list[list[int]] = []
    for index in order:
        longest = max([lengths[index], *(lengths[i] for i in batches[-1])]) if batches else 0
        if batches and longest * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    rng.shuffle(batches)
    return batches


class Trainer:
    """One run in the folder ``out``: checkpoint.pt, best.pt and log.jsonl."""

    def __init__(self, head: DraftHead, data: Data, options: Options, out: Path) -> None:
        self.head, self.data, self.options, self.out = head, data, options, out
        head.dropout = options.dropout
        head.lm_head.weight.requires_grad_(options.output_lr > 0)
        rest = [p for name, p in head.named_parameters() if name != "lm_head.weight"]
        groups = [{"params": rest, "scale": 1.0}, {"params": [head.lm_head.weight], "scale": options.output_lr}]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.step = self.epoch = self.position = 0
        self.elapsed = 0.0
        self.best = 0.0
        self.parts = [{"from_step": 0, "options": asdict(options)}]
        self.on_best: Callable[[Acceptance], None] = lambda score: None
        out.mkdir(parents=True, exist_ok=True)

    def resume(self) -> None:
        """Continue from ``checkpoint.pt``: weights, optimiser, place in the data, generator state."""
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.step, self.epoch, self.position = state["step"], state["epoch"], state["position"]
        self.elapsed, self.best = state["elapsed"], state["best"]
        self.parts = [*state["parts"], {"from_step": self.step, "options": asdict(self.options)}]

    def save(self) -> None:
        """Write ``checkpoint.pt`` atomically."""
        state = {
            "head": self.head.state_dict(),
            "used": self.data.used,
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "elapsed": self.elapsed,
            "best": self.best,
            "parts": self.parts,
        }
        torch.save(state, self.out / "checkpoint.partial")
        (self.out / "checkpoint.partial").rename(self.out / "checkpoint.pt")

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0..1."""
        if self.options.minutes > 0:
            return min(1.0, self.elapsed / 60 / self.options.minutes)
        return min(1.0, self.step / self.options.steps)

    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine down to zero."""
        done, warmup = self.progress, self.options.warmup
        if done < warmup:
            return self.options.lr * (done / warmup + 1e-3)
        return self.options.lr * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))

    def _batches(self) -> Iterator[list[int]]:
        lengths = [len(s.ids) for s in self.data.train]
        while True:
            batches = epoch_batches(lengths, self.options.batch_tokens, self.options.seed, self.epoch)
            while self.position < len(batches):
                self.position += 1
                yield batches[self.position - 1]
            self.epoch, self.position = self.epoch + 1, 0

    def run(self, stop_at: int | None = None) -> None:
        """Optimise to the end of the run, or until step ``stop_at`` (as an interruption would)."""
        bar = tqdm(total=None if self.options.minutes > 0 else self.options.steps, initial=self.step, unit="step")
        smooth: dict[str, float] = {}
        batches = self._batches()
        while self.progress < 1.0 and self.step != stop_at:
            began = time.monotonic()
            result = self._optimise(next(batches))
            self.step += 1
            self.elapsed += time.monotonic() - began
            self._log(result, bar, smooth)
            last = self.progress >= 1.0
            if self.data.held_out and (last or self.step % self.options.eval_every == 0):
                self.evaluate()
            if last or self.step % self.options.save_every == 0:
                self.save()
        bar.close()

    def _optimise(self, indices: list[int]) -> StepResult:
        data, device = self.data, self.data.embedding.device
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * self.learning_rate()
        self.head.train()
        batch = collate([data.train[i] for i in indices], device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.options.bf16):
            result = ttt_loss(self.head, batch, data.embedding, data.target_rows, data.t2d, self.options.ttt)
        if result.rows:
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(result.loss)
            torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.options.clip)
            self.optimizer.step()
        return result

    def _log(self, result: StepResult, bar: Any, smooth: dict[str, float]) -> None:
        if not result.rows:
            return
        now = {"loss": result.losses[0], **{f"acc{i}": a for i, a in enumerate(result.accuracy)}}
        now["accept"] = 1.0 + sum(result.full_accuracy)
        for name, value in now.items():
            smooth[name] = 0.95 * smooth.get(name, value) + 0.05 * value
        bar.update()
        bar.set_postfix({k: f"{v:.3f}" for k, v in smooth.items()}, refresh=False)
        self._write(
            {
                "step": self.step,
                "epoch": self.epoch,
                "minutes": round(self.elapsed / 60, 3),
                "lr": self.learning_rate(),
                "rows": result.rows,
                "losses": result.losses,
                "accuracy": result.accuracy,
                "full_accuracy": result.full_accuracy,
            }
        )

    def evaluate(self) -> Acceptance:
        """Score the held-out samples with chains of 3; the best weights so far go to ``best.pt``."""
        score = acceptance(self.head, self.data.held_out, self.data.embedding, self.data.used, steps=3)
        self._write({"step": self.step, "minutes": round(self.elapsed / 60, 3), "held_out": score.to_dict()})
        tqdm.write(f"step {self.step}: held-out accept length {score.accept_length():.3f}, by depth {score.full}")
        if score.accept_length() > self.best:
            self.best = score.accept_length()
            torch.save({"head": self.head.state_dict(), "step": self.step}, self.out / "best.partial")
            (self.out / "best.partial").rename(self.out / "best.pt")
            self.on_best(score)
        return score

    def _write(self, entry: dict[str, Any]) -> None:
        with (self.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def describe(self) -> dict[str, Any]:
        """For the provenance file: every resumed part with its own options."""
        return {
            "parts": self.parts,
            "steps_done": self.step,
            "epochs": self.epoch,
            "wall_hours": self.elapsed / 3600,
        }
