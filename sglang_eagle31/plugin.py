"""The two entry points that SGLang loads. Nothing happens on import, and nothing heavy is imported."""

from __future__ import annotations

import logging

logger = logging.getLogger("sglang_eagle31")


def activate() -> None:
    """Entry point ``sglang.srt.platforms``: make SGLang's EAGLE importable on a CPU without ``sgl_kernel``.

    SGLang calls it when it first resolves the platform, in every process, before any module imports ``sgl_kernel``.
    It returns None, so SGLang keeps its own platform.
    """
    from sglang_eagle31.server.cpu import standin

    standin.prepare()


def register() -> None:
    """Entry point ``sglang.srt.plugins``: register EAGLE31 and put the seams in place, in every process.

    What does not fit is logged here and refused by EAGLE31 alone; other servers start.
    """
    from sglang_eagle31.server.cpu import standin

    standin.prepare()  # the platform may not be resolved yet, and what follows imports SGLang
    from sglang_eagle31 import patches
    from sglang_eagle31.server import resolve as algorithm

    # The hooks come first: if the registry itself has moved, they are what refuses EAGLE31.
    for reason in patches.install(patches.group("server")):
        logger.warning("EAGLE31 will refuse to start: %s", reason)
    algorithm.register()
