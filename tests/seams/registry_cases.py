"""What the plugin does to the real SGLang, one forked process a case, so that no hook outlives its case.

Run as a script it imports SGLang once, runs every case in a fork and prints one JSON object: case to outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from sglang_eagle31 import patches, plugin
from sglang_eagle31.patches import Seam
from sglang_eagle31.server import resolve as algorithm
from sglang_eagle31.server.cpu import standin
from sglang_eagle31.server.options import Eagle31Config

Outcome = dict[str, Any]


def record(name: str | None) -> SimpleNamespace:
    """The arguments that are looked at before any model is read."""
    return SimpleNamespace(
        speculative_algorithm=name,
        speculative_draft_model_path=None,
        speculative_num_steps=None,
        speculative_eagle_topk=None,
        speculative_num_draft_tokens=None,
        speculative_adaptive=False,
        enable_multi_layer_eagle=False,
        enable_torch_compile=False,
    )


def holder_of(seam: Seam) -> tuple[Any, str]:
    """The object and the attribute to take away; a constructor goes with its class."""
    owner, _, name = seam.target.removesuffix(".__init__").rpartition(".")
    return pkgutil.resolve_name(owner), name


def move_away(seam: Seam) -> None:
    holder, name = holder_of(seam)
    delattr(holder, name)


def lose_parameters() -> None:
    """Every target takes other arguments than it did."""
    for seam in patches.SEAMS:
        owner, _, name = seam.target.rpartition(".")
        setattr(pkgutil.resolve_name(owner), name, lambda *_, **__: None)


def swallow_hooks() -> None:
    """SGLang logs a hook that fails to apply and goes on."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    def fail(target: str, hooks: list[Any]) -> None:
        raise RuntimeError("cannot be wrapped")

    HookRegistry._apply_target = staticmethod(fail)


def be_second() -> None:
    """Another plugin hooked the same targets and had its hooks applied, after which SGLang skips them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for seam in HOOKED:
        HookRegistry.register(seam.target, lambda *args, **kwargs: None, HookType.BEFORE)
    HookRegistry.apply_hooks()


def register_as_sglang_does() -> None:
    """SGLang logs what a plugin raises, and goes on."""
    with contextlib.suppress(Exception):
        plugin.register()


def refusal(call: Callable[[Any], Any]) -> str:
    try:
        call(record("EAGLE31"))
    except ValueError as error:
        return str(error)
    return ""


def bend(change: Callable[[], None]) -> Outcome:
    """EAGLE31 is refused by the resolution and by the registered validator; other records are left as they are."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    standin.installed = lambda: True  # so that the seams of the CPU count on any machine
    change()
    register_as_sglang_does()
    untouched = {}
    for name in (None, "EAGLE3", "NGRAM"):
        before = record(name)
        algorithm.resolve(before)
        untouched[str(name)] = before == record(name) and SpeculativeAlgorithm.from_string(name) is not None
    try:
        validator = SpeculativeAlgorithm.from_string("EAGLE31").validate_server_args
    except ValueError as error:
        validated = str(error)
    else:
        validated = refusal(validator)
    return {"resolved": refusal(algorithm.resolve), "validated": validated, "untouched": untouched}


def in_place() -> Outcome:
    """Everything fits: the hooks are on their targets, and nothing but what a user forgot is refused."""
    plugin.register()
    server = {seam.target: seam.in_place() for seam in patches.group("server") if seam.handler}
    asked_for = {seam.target: seam.in_place() for seam in patches.group("eagle31") if seam.handler}
    return {
        "server": server,
        "eagle31 before": asked_for,
        "reasons": patches.install(patches.SEAMS),
        "eagle31 after": {seam.target: seam.in_place() for seam in patches.SEAMS if seam.handler},
        "resolved": refusal(algorithm.resolve),
    }


def names() -> Outcome:
    """Both spellings in any case reach the validator."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    plugin.register()
    spelt = ("EAGLE31", "eagle31", "EAGLE3.1", "Eagle3.1")
    return {name: refusal(SpeculativeAlgorithm.from_string(name).validate_server_args) for name in spelt}


def command_line() -> Outcome:
    """SGLang's own parser with our options."""
    from sglang.srt.server_args import ServerArgs

    plugin.register()
    parser = argparse.ArgumentParser(prog="launch_server")
    ServerArgs.add_cli_args(parser)
    words = ["--model-path", "m"]
    stderr, code = io.StringIO(), None
    try:
        with contextlib.redirect_stderr(stderr):
            parser.parse_args([*words, "--eagle31-foo", "1"])
    except SystemExit as stop:
        code = stop.code
    asked = parser.parse_args([*words, "--speculative-algorithm", "eagle3.1", "--eagle31-override", "feedback=post"])
    return {
        "help": parser.format_help(),
        "unknown": [code, stderr.getvalue()],
        "asked": [asked.speculative_algorithm, Eagle31Config.from_namespace(asked).override],
    }


HOOKED = [seam for seam in patches.SEAMS if seam.handler and seam.group != "cpu"]
"""Those of the CPU go on later, in the scheduler."""


def cases() -> dict[str, Callable[[], Outcome]]:
    """Every case by name."""
    out: dict[str, Callable[[], Outcome]] = {
        **{case.__name__: case for case in (in_place, names, command_line)},
        **{change.__name__: partial(bend, change) for change in (lose_parameters, swallow_hooks, be_second)},
    }
    return out | {f"move_away {seam.target}": partial(bend, partial(move_away, seam)) for seam in patches.SEAMS}


def in_fork(case: Callable[[], Outcome]) -> Outcome:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            outcome = case()
        except BaseException:
            outcome = {"error": traceback.format_exc()}
        with os.fdopen(write, "w") as pipe:
            json.dump(outcome, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main() -> None:
    """Import what the seams point to, as a server has, and run the cases."""
    plugin.activate()
    for seam in patches.SEAMS:
        pkgutil.resolve_name(seam.target)
    outcomes = {name: in_fork(case) for name, case in cases().items()}
    print(json.dumps(outcomes), file=sys.__stdout__)


if __name__ == "__main__":
    main()
