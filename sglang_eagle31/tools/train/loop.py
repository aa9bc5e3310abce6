"""The optimiser loop: batches in a seeded order, AdamW, time- or step-based cosine, checkpoints that resume exactly."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.evaluate import Score, score_by_source
from sglang_eagle31.tools.train.model import DraftHead
from sglang_eagle31.tools.train.options import Options, epoch_batches, steps_of
from sglang_eagle31.tools.train.ttt import StepResult, collate, row_counts, ttt_loss


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
    features: Callable[[list[Sample]], list[Sample]] = lambda samples: samples
    """Completes samples that came without the target's states."""

    def digest(self) -> str:
        """Of the training samples' tokens, in order: two runs with one digest and one seed see the same batches."""
        whole = hashlib.sha256()
        for sample in self.train:
            whole.update(sample.ids.numpy().tobytes() + sample.mask.numpy().tobytes())
        return whole.hexdigest()[:16]


class Trainer:
    """One run in the folder ``out``: checkpoint.pt, best.pt and log.jsonl."""

    def __init__(self, head: DraftHead, data: Data, options: Options, out: Path) -> None:
        self.head, self.data, self.options, self.out = head, data, options, out
        head.dropout = options.dropout
        head.lm_head.weight.requires_grad_(options.output_lr > 0)
        rest = [p for name, p in head.named_parameters() if name != "lm_head.weight"]
        groups = [{"params": rest, "scale": 1.0}, {"params": [head.lm_head.weight], "scale": options.output_lr}]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.lengths = [len(s.ids) for s in data.train]
        self.steps = steps_of(options, self.lengths)
        self.step = self.epoch = self.position = 0
        self.elapsed = 0.0
        self.best = 0.0
        self.parts = [{"from_step": 0, "options": asdict(options)}]
        self.on_best: Callable[[Score], None] = lambda score: None
        self.smooth: dict[str, float] = {}
        out.mkdir(parents=True, exist_ok=True)

    def resume(self) -> None:
        """Continue from ``checkpoint.pt``: weights, optimiser, place in the data, generator state."""
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if state.get("cuda_rng") is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])
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
            "cuda_rng": torch.cuda.get_rng_state() if self.data.embedding.is_cuda else None,
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
        return min(1.0, self.step / self.steps)

    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine down to zero."""
        done, warmup = self.progress, self.options.warmup
        if done < warmup:
            return self.options.lr * (done / warmup + 1e-3)
        return self.options.lr * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))

    def _batches(self) -> Iterator[list[int]]:
        while True:
            batches = epoch_batches(self.lengths, self.options.batch_tokens, self.options.seed, self.epoch)
            while self.position < len(batches):
                self.position += 1
                yield batches[self.position - 1]
            self.epoch, self.position = self.epoch + 1, 0

    def run(self, stop_at: int | None = None) -> None:
        """Optimise to the end of the run, or until step ``stop_at`` (as an interruption would)."""
        bar = tqdm(total=None if self.options.minutes > 0 else self.steps, initial=self.step, unit="step")
        batches = self._batches()
        while self.progress < 1.0 and self.step != stop_at:
            began = time.monotonic()
            results = self._optimise([next(batches) for _ in range(self.options.accumulate)])
            self.step += 1
            self.elapsed += time.monotonic() - began
            bar.update()
            self._log(results, bar)
            last = self.progress >= 1.0
            if self.data.held_out and (last or self.step % self.options.eval_every == 0):
                self.evaluate()
            if last or self.step % self.options.save_every == 0:
                self.save()
        bar.close()

    def _optimise(self, groups: Sequence[list[int]]) -> list[StepResult]:
        """One step on the gradient of all ``groups`` of samples, as if they were one batch."""
        data, options, device = self.data, self.options, self.data.embedding.device
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * self.learning_rate()
        self.head.train()
        batches = [data.features([data.train[i] for i in indices]) for indices in groups]
        counts = [row_counts(samples, data.t2d, options.ttt) for samples in batches]
        totals = [sum(column) for column in zip(*counts, strict=True)]
        if totals[0] == 0:
            return []
        self.optimizer.zero_grad(set_to_none=True)
        results = []
        for samples, count in zip(batches, counts, strict=True):
            if count[0] == 0:
                continue
            batch = collate(samples, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
                arguments = (data.embedding, data.target_rows, data.t2d, options.ttt, totals)
                result = ttt_loss(self.head, batch, *arguments)
            torch.autograd.backward(result.loss)
            results.append(result)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), options.clip)
        self.optimizer.step()
        return results

    def _log(self, results: list[StepResult], bar: Any) -> None:
        if not results:
            return
        losses, hits, full, rows = (
            torch.stack([getattr(r, name) for r in results]).sum(0) for name in ("losses", "hits", "full_hits", "rows")
        )
        rows = rows.clamp_min(1)
        score = Score(int(rows[0]), (full / rows).tolist())
        entry: dict[str, Any] = {
            "step": self.step,
            "epoch": self.epoch,
            "minutes": round(self.elapsed / 60, 3),
            "lr": self.learning_rate(),
            "rows": score.rows,
            "losses": (losses / rows).tolist(),
            "accuracy": (hits / rows).tolist(),
            "full_accuracy": score.full,
            "conditional": score.conditional,
            "accept_length": score.accept_length(),
        }
        self._write(entry)
        now = {"loss": entry["losses"][0], "acc0": entry["accuracy"][0], "accept": entry["accept_length"]}
        for name, value in now.items():
            self.smooth[name] = 0.95 * self.smooth.get(name, value) + 0.05 * value
        bar.set_postfix({k: f"{v:.3f}" for k, v in self.smooth.items()}, refresh=False)

    def evaluate(self) -> Score:
        """Score the held-out samples with chains of ``eval_depth``; the best weights so far go to ``best.pt``."""
        held_out = self.data.features(self.data.held_out)
        score = score_by_source(self.head, held_out, self.data.embedding, self.data.used, self.options.eval_depth)
        self._write({"step": self.step, "minutes": round(self.elapsed / 60, 3), "held_out": score.to_dict()})
        depths = " ".join(f"{share:.3f}" for share in score.full)
        tqdm.write(f"step {self.step}: held-out accept length {score.accept_length():.3f}, by depth {depths}")
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
            "data_digest": self.data.digest(),
            "steps": self.steps,
            "steps_done": self.step,
            "epochs": self.epoch,
            "wall_hours": self.elapsed / 3600,
        }
