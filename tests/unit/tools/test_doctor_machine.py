"""Every outcome of the checks of machine, versions and plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import GPU, HEAD, MACHINE, PLUGINS, SOFTWARE, STARTED

from sglang_eagle31.tools.doctor.checks import machine, plugins, software
from sglang_eagle31.tools.doctor.facts import GIB, Line, Requirement, Started

BROKEN = Started(error="ended with 1: boom")
NONE = replace(STARTED, kernel="none", kernel_error="libcuda.so is not there")
REAL = replace(STARTED, kernel="real")
AVX2 = replace(STARTED, unpacked={"bfloat16": "needs avx512", "float32": ""}, dtype=("float32", "because"))
NO_CXX = replace(MACHINE, compiler=None)


def on(**changes: Any) -> Any:
    return replace(MACHINE, **changes)


def named(**variables: str) -> Any:
    return replace(MACHINE, variables=variables)


def requiring(*requirements: Requirement, **changes: Any) -> Any:
    return replace(SOFTWARE, requirements=requirements, **changes)


SGLANG = Requirement("sglang>=0.5.23,<0.6", "sglang", "0.7.0", False)
CASES = [
    (machine.platform(MACHINE), "ok", "Linux x86_64"),
    (machine.platform(on(arch="aarch64")), "warn", "not tested"),
    (machine.accelerator(MACHINE, STARTED), "ok", "on the CPU"),
    (machine.accelerator(MACHINE, GPU), "ok", "H200, 139 GiB"),
    (machine.accelerator(on(gpus=("/dev/nvidia0",)), STARTED), "warn", "torch sees no GPU"),
    (machine.accelerator(on(gpus=("/dev/nvidia0",)), None), "skip", "/dev/nvidia0"),
    (machine.accelerator(MACHINE, BROKEN), "skip", "not asked"),
    (machine.cpu(MACHINE, STARTED), "ok", "4 cores, avx2, avx512f, avx512_bf16"),
    (machine.cpu(MACHINE, STARTED), "ok", "weights are packed in bfloat16 and float32"),
    (machine.cpu(MACHINE, AVX2), "ok", "packed in float32, not in bfloat16 (needs avx512)"),
    (
        machine.cpu(MACHINE, replace(AVX2, unpacked={"float32": "no oneDNN"})),
        "warn",
        "packed in no dtype, not in float32 (no oneDNN)",
    ),
    (machine.cpu(MACHINE, None), "skip", "was not tried"),
    (machine.cpu(MACHINE, REAL), "ok", "4 cores, avx2, avx512f, avx512_bf16"),
    (machine.dtype(AVX2), "ok", "--dtype float32: because"),
    (machine.dtype(GPU), "ok", "the model's own"),
    (machine.dtype(BROKEN), "skip", "not tried"),
    (machine.cpu(on(flags=frozenset()), GPU), "ok", "no vector flags"),
    (machine.threads(MACHINE, STARTED), "ok", "not set"),
    (machine.threads(on(quota=2.0), STARTED), "warn", "torch would start 4"),
    (machine.threads(on(quota=2.0), GPU), "ok", "2 of 4 cores"),
    (machine.threads(named(OMP_NUM_THREADS="4"), STARTED), "ok", "OMP_NUM_THREADS=4"),
    (machine.threads(named(OMP_NUM_THREADS="4,2"), STARTED), "ok", "OMP_NUM_THREADS=4"),
    (machine.threads(named(OMP_NUM_THREADS="8"), STARTED), "warn", "but there are 4"),
    (machine.threads(named(OMP_NUM_THREADS="1"), STARTED), "warn", "idle"),
    (machine.threads(named(OMP_NUM_THREADS="1"), GPU), "ok", "OMP_NUM_THREADS=1"),
    (machine.threads(named(OMP_NUM_THREADS="all"), STARTED), "FAIL", "no number"),
    (machine.load(MACHINE), "ok", "load 0.5"),
    (machine.load(on(load=9.0)), "warn", "others work here"),
    (machine.memory(MACHINE, STARTED, None), "ok", "30.0 of 32.0 GiB free"),
    (machine.memory(MACHINE, STARTED, HEAD), "ok", "2.0 GiB in two layouts"),
    (machine.memory(MACHINE, REAL, HEAD), "ok", "weights take 1.0 GiB, 30.0 GiB free"),
    (machine.memory(on(free=2 * GIB), STARTED, HEAD), "warn", "KV cache"),
    (machine.memory(on(free=GIB), STARTED, HEAD), "FAIL", "1.0 GiB free"),
    (machine.memory(on(free=0), GPU, HEAD), "ok", "139.0 GiB of the GPUs' memory"),
    (machine.compiler(MACHINE, STARTED), "ok", "g++"),
    (machine.compiler(NO_CXX, STARTED), "warn", "repetition penalty"),
    (machine.compiler(NO_CXX, REAL), "FAIL", "first speculative request"),
    (machine.compiler(replace(NO_CXX, variables={"TORCH_COMPILE_DISABLE": "0"}), STARTED), "FAIL", "compiles"),
    (machine.compiler(replace(NO_CXX, variables={"TORCH_COMPILE_DISABLE": "1"}), REAL), "ok", "none is needed"),
    (machine.compiler(NO_CXX, GPU), "ok", "gcc"),
    (machine.compiler(on(c_compiler=None), GPU), "FAIL", "Triton"),
    (software.python(SOFTWARE), "ok", "3.11.7"),
    (software.python(replace(SOFTWARE, python_fits=False, python="3.10.1")), "FAIL", "declared >=3.11"),
    (software.sglang(SOFTWARE), "ok", "tested"),
    (software.sglang(replace(SOFTWARE, sglang="0.5.24")), "warn", "not among the tested"),
    (software.sglang(replace(SOFTWARE, sglang=None)), "FAIL", "not installed"),
    (software.sglang(requiring(SGLANG, sglang="0.7.0")), "FAIL", "outside sglang>=0.5.23,<0.6"),
    (software.packages(SOFTWARE), "ok", "all 1"),
    (software.packages(requiring(Requirement("rich", "rich", None, False))), "FAIL", "rich is missing"),
    (software.packages(requiring(Requirement("rich>=99", "rich", "1", False))), "FAIL", "outside rich>=99"),
    (software.packages(requiring()), "warn", "0 declared packages"),
    (software.packages(replace(SOFTWARE, declared="0.0.9")), "warn", "version 0.0.9"),
    (plugins.entry_points(PLUGINS), "ok", "sglang.srt.plugins"),
    (plugins.entry_points(replace(PLUGINS, others=("other",))), "ok", "other plugins: other"),
    (
        plugins.entry_points(replace(PLUGINS, found={**PLUGINS.found, "sglang.srt.platforms": None})),
        "FAIL",
        "platforms",
    ),
    (plugins.enabled(MACHINE), "ok", "not set"),
    (plugins.enabled(named(SGLANG_PLUGINS="a, eagle31")), "ok", "a, eagle31"),
    (plugins.enabled(named(SGLANG_PLUGINS="other")), "FAIL", "leaves eagle31 out"),
    (plugins.enabled(named(SGLANG_PLATFORM="eagle31")), "FAIL", "SGLANG_PLATFORM=eagle31"),
    (plugins.options(PLUGINS), "ok", "or is not set"),
    (plugins.options(replace(PLUGINS, options_error="wrong; fix: unset it")), "FAIL", "wrong"),
    (plugins.cache(PLUGINS), "ok", "/cache"),
    (plugins.cache(replace(PLUGINS, cache_error="/: read-only")), "FAIL", "read-only"),
    (plugins.seams(PLUGINS, STARTED), "ok", "all fit"),
    (plugins.seams(replace(PLUGINS, unfit={"server": ("SGLang has no x any more",)}), None), "FAIL", "no x any more"),
    (plugins.seams(replace(PLUGINS, unfit={"cpu": ("lost y",)}), STARTED), "FAIL", "lost y"),
    (plugins.seams(replace(PLUGINS, unfit={"cpu": ("lost y",)}), REAL), "ok", "not used on this machine: lost y"),
    (plugins.loaded(STARTED), "ok", "every hook"),
    (plugins.loaded(None), "skip", "not started"),
    (plugins.loaded(BROKEN), "FAIL", "boom"),
    (plugins.loaded(replace(STARTED, registered=False)), "FAIL", "does not know"),
    (plugins.loaded(replace(STARTED, lost=("a.b",))), "FAIL", "a.b"),
    (plugins.kernel(REAL), "ok", "SGLang's own"),
    (plugins.kernel(STARTED), "ok", "stand-in"),
    (plugins.kernel(NONE), "FAIL", "libcuda.so"),
    (plugins.kernel(BROKEN), "skip", "not started"),
    (plugins.attention(GPU), "ok", "this GPU"),
    (plugins.attention(STARTED), "ok", "ours"),
    (plugins.attention(replace(REAL, amx=True)), "ok", "intel_amx"),
    (plugins.attention(REAL), "FAIL", "without AMX"),
    (plugins.attention(NONE), "skip", "no server starts"),
    (plugins.attention(None), "skip", "not started"),
]


@pytest.mark.parametrize(
    ("line", "status", "text"), CASES, ids=[f"{i}-{line.name}" for i, (line, *_) in enumerate(CASES)]
)
def test_an_outcome(line: Line, status: str, text: str) -> None:
    assert (line.status, text in line.text) == (status, True), line
    assert bool(line.fix) == (status != "ok"), line  # what is not ok says what to do
