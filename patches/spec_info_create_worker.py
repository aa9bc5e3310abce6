"""Our worker class for EAGLE31, and our attention backend for EAGLE on a CPU.

Target: sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker
Why: EAGLE31 resolves to EAGLE3, whose worker class SGLang picks itself. On a CPU, the seams of the attention backend
    are needed in the scheduler of a speculative server only, and this is the first call that only such a server makes.
How: around the choice: a record that carries our plan gets Eagle31Worker, any other gets SGLang's answer. The class is
    subclassed to count rounds, and with `--eagle31-drift-sample` to attach the drift probe, after its graphs are
    captured.
Upstream: `get_platform_worker_cls` (0.5.23) serves platforms only, and switches adaptive speculation off.
Remove when: SGLang's registry lets a plugin supply the worker of a built-in algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def choose_worker(create_worker: Callable[..., type], self: Any, server_args: Any) -> type:
    """AROUND hook: the worker class for this record."""
    from sglang_eagle31.server.cpu import standin
    from sglang_eagle31.server.resolve import plan_of

    if standin.installed():
        standin.install_backends()
    if plan_of(server_args) is None:
        return watched(create_worker(self, server_args), server_args)
    install_repairs()
    from sglang_eagle31.server.metrics.install import counted
    from sglang_eagle31.server.worker import Eagle31Worker, register_drafters

    register_drafters()
    return watched(counted(Eagle31Worker), server_args)


def install_repairs() -> None:
    """Put the seams of EAGLE31 in place in the scheduler; the process that resolved the arguments is another one.

    Raises:
        ValueError: a seam does not fit or is not in place.
    """
    from sglang.srt.utils import is_cpu

    from sglang_eagle31 import patches
    from sglang_eagle31.patches import reject_sampling_chain
    from sglang_eagle31.server import resolve as algorithm

    reasons = patches.install(patches.group("eagle31"))
    if is_cpu():
        reasons += reject_sampling_chain.put_ops()
    if reasons:
        raise algorithm.refuse(reasons)


def watched(worker: type, server_args: Any) -> type:
    """``worker``, with the drift probe when the record asks for it."""
    from sglang_eagle31.server.options import shared

    rate = shared(server_args).drift_sample
    if not rate:
        return worker
    from sglang_eagle31.server.probe.install import probed

    return probed(worker, rate)


SEAM = Seam(
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
    ("self", "server_args"),
    "AROUND",
    "server",
    choose_worker,
)
