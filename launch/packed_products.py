"""One pass over the linear layers of the demo's target, by rows and dtype: torch's product and oneDNN's packed one.

python launch/packed_products.py --out docs/results/packed.json

Both take turns, and the medians are compared. Nothing else should run meanwhile. The table of docs/performance.md is of
its results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear
from tqdm import tqdm

from sglang_eagle31.server.cpu import fast_paths
from sglang_eagle31.tools.shared.demo_model import prepare_model
from sglang_eagle31.tools.shared.provenance import provenance

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
TURNS = 7


def main() -> int:
    """Measure what this CPU runs, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/packed.json"), metavar="FILE", help="JSON")
    args = parser.parse_args()
    tensors = [tensor for file in prepare_model().glob("*.safetensors") for tensor in load_file(file).values()]
    weights = [tensor for tensor in tensors if tensor.dim() == 2]
    record = {**provenance(sys.argv), "threads": torch.get_num_threads(), "turns": TURNS, "milliseconds": {}}
    for dtype in fast_paths.DTYPES:
        name, why = fast_paths.name(dtype), fast_paths.why_not_packed(dtype)
        record["milliseconds"][name] = measure([weight.to(dtype) for weight in weights], packed=not why)
        print(f"\n{name}{f': not packed, {why}' if why else ''}")
        for rows, row in record["milliseconds"][name].items():
            print(f"{rows:>4} rows  " + "  ".join(f"{kind} {value:6.1f} ms" for kind, value in row.items()))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def measure(weights: list[Tensor], packed: bool) -> dict[str, dict[str, float]]:
    """Median milliseconds of a pass by rows and kind."""
    forms = [fast_paths.pack(weight) for weight in weights] if packed else []
    found = {}
    for rows in tqdm(ROWS, unit="rows", leave=False):
        inputs = {width: torch.randn(rows, width).to(weights[0].dtype) for width in {w.shape[1] for w in weights}}
        kinds: dict[str, Callable[[], None]] = {"linear": lambda x=inputs: run(linear, weights, weights, x)}
        if packed:
            kinds["packed"] = lambda x=inputs: run(fast_paths.packed_linear, forms, weights, x)
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(TURNS + 1):
            for kind, one_pass in kinds.items():
                start = time.perf_counter()
                one_pass()
                times[kind].append(1e3 * (time.perf_counter() - start))
        found[str(rows)] = {kind: round(statistics.median(values[1:]), 2) for kind, values in times.items()}
    return found


def run(product: Callable[..., Tensor], forms: list[Tensor], weights: list[Tensor], inputs: dict[int, Tensor]) -> None:
    """All layers once."""
    for form, weight in zip(forms, weights, strict=True):
        product(inputs[weight.shape[1]], form)


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
