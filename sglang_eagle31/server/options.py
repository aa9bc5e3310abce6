"""Every option of ours: one frozen record, read from the command line or from one environment variable."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
from dataclasses import dataclass
from typing import Any, NoReturn

ENV = "SGLANG_EAGLE31_OPTIONS"
ATTRIBUTE = "_eagle31_options"
NAMES = ("EAGLE31", "EAGLE3.1")
GUARD = ("on", "off", "observe")
SWITCH = ("on", "off")
SHARED = ("drift_sample", "pack_weights")
"""Options that serve other speculative algorithms too."""


def asked(name: str | None) -> bool:
    """Whether a ``--speculative-algorithm`` value means EAGLE31; any case, with or without the dot."""
    return name is not None and name.strip().upper() in NAMES


@dataclass(frozen=True)
class Eagle31Config:
    """Options of sglang-eagle31.

    Attributes:
        override: ``KEY=VALUE`` facts about the head that its files leave open or state wrongly.
        cache_dir: folder for staged heads; None is ``$SGLANG_EAGLE31_CACHE`` or ``~/.cache/sglang-eagle31``.
        guard: ``on``, ``off`` or ``observe``; None is ``on`` on a CPU and ``observe`` elsewhere.
        drift_sample: share of draft rounds that the drift probe records, 0 to 1; 0 installs nothing.
        pack_weights: ``on`` or ``off``: on our CPU backend, whether weights are also kept in oneDNN's layout.
    """

    override: tuple[str, ...] = ()
    cache_dir: str | None = None
    drift_sample: float = 0.0
    guard: str | None = None
    pack_weights: str = "on"

    @classmethod
    def from_env(cls) -> Eagle31Config:
        """The options of this process. Raises ValueError naming an unknown or ill-formed option."""
        text = os.environ.get(ENV, "")
        try:
            raw = json.loads(text) if text else {}
        except json.JSONDecodeError as error:
            raise ValueError(f"{ENV}={text!r} is not JSON ({error}); fix: unset it or set a JSON object") from error
        return cls._checked(raw)

    @classmethod
    def from_namespace(cls, args: argparse.Namespace) -> Eagle31Config:
        """The options of a parsed command line, on top of those of the environment.

        Those in ``SHARED`` serve other speculative algorithms too.

        Raises:
            ValueError: an option of ours was given, but not ``--speculative-algorithm EAGLE31``.
        """
        given = {
            field.name: value
            for field in dataclasses.fields(cls)
            if (value := getattr(args, f"eagle31_{field.name}", None)) not in (None, [])
        }
        algorithm = getattr(args, "speculative_algorithm", None)
        foreign = {name: value for name, value in given.items() if name not in SHARED or algorithm is None}
        if foreign and not asked(algorithm):
            flags = ", ".join(f"--eagle31-{name.replace('_', '-')} {value}" for name, value in foreign.items())
            raise ValueError(
                f"{flags} has no effect with --speculative-algorithm {algorithm}; "
                "fix: add --speculative-algorithm EAGLE31 or drop the option"
            )
        checked = cls._checked(given)
        if not asked(algorithm):
            return checked  # a server that did not ask for EAGLE31 does not even read the variable
        return dataclasses.replace(cls.from_env(), **{name: getattr(checked, name) for name in given})

    @classmethod
    def _checked(cls, raw: Any) -> Eagle31Config:
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(raw) - known) if isinstance(raw, dict) else [repr(raw)]
        if unknown:
            raise ValueError(f"{ENV}: unknown option {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        override = raw.get("override", ())
        pairs = override if isinstance(override, (list, tuple)) else [None]
        if not all(isinstance(pair, str) and "=" in pair for pair in pairs):
            raise ValueError(f"--eagle31-override {override!r}: expected KEY=VALUE (in {ENV}: a list of them)")
        cache_dir = raw.get("cache_dir")
        if not isinstance(cache_dir, (str, type(None))):
            raise ValueError(f"--eagle31-cache-dir {cache_dir!r}: expected a folder (in {ENV}: its name)")
        rate = raw.get("drift_sample", 0.0)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f"--eagle31-drift-sample {rate!r}: expected a share of rounds; fix: a number from 0 to 1")
        guard = raw.get("guard")
        if guard is not None and guard not in GUARD:
            raise ValueError(f"--eagle31-guard {guard!r}: expected one of {', '.join(GUARD)} (in {ENV}: the same)")
        pack = raw.get("pack_weights", "on")
        if pack not in SWITCH:
            raise ValueError(f"--eagle31-pack-weights {pack!r}: expected on or off (in {ENV}: the same)")
        return cls(tuple(override), cache_dir, float(rate), guard, pack)

    def attach(self, server_args: Any) -> None:
        """Keep the options on SGLang's record."""
        setattr(server_args, ATTRIBUTE, self)

    @classmethod
    def of(cls, server_args: Any) -> Eagle31Config:
        """The options of a record: those of its command line, or of the environment when it had none (Engine)."""
        kept: Eagle31Config | None = getattr(server_args, ATTRIBUTE, None)
        return kept or cls.from_env()

    def overrides(self) -> dict[str, str]:
        """The overrides as key and value text."""
        return {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in self.override)}


def shared(server_args: Any) -> Eagle31Config:
    """The options of any record; a server without EAGLE31 has them by its command line only."""
    kept: Eagle31Config | None = getattr(server_args, ATTRIBUTE, None)
    if kept is None and not hasattr(server_args, "_eagle31"):
        return Eagle31Config()
    return Eagle31Config.of(server_args)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our options, in their own group, to SGLang's parser, and name the known ones when one is misspelt."""
    group = parser.add_argument_group(
        "EAGLE 3.1 (sglang-eagle31)", "Options of --speculative-algorithm EAGLE31 (also spelt EAGLE3.1)."
    )
    group.add_argument(
        "--eagle31-override",
        action="append",
        metavar="KEY=VALUE",
        help="A fact about the draft head that its files leave open or state wrongly, e.g. aux_layers=2,15,27 "
        "(boundaries), feedback=post, residual=pre, logits_norm=true, rope_theta=10000, max_position_embeddings=8192, "
        "sliding_window=2048. Repeatable.",
    )
    group.add_argument(
        "--eagle31-cache-dir",
        metavar="DIR",
        help="Folder for staged heads (default: $SGLANG_EAGLE31_CACHE or ~/.cache/sglang-eagle31).",
    )
    group.add_argument(
        "--eagle31-drift-sample",
        type=float,
        metavar="RATE",
        help="Share of draft rounds that the drift probe records, 0 to 1 (default 0: nothing is installed). Also with "
        "--speculative-algorithm EAGLE, EAGLE3, NEXTN, STANDALONE. python -m sglang_eagle31 drift --url URL reads it.",
    )
    group.add_argument(
        "--eagle31-guard",
        choices=GUARD,
        help="Whether to draft only as much as pays: on (default on a CPU) runs the fastest of some shapes up to the "
        "configured one, no speculation among them, as measured while serving; observe (default elsewhere) only "
        "reports; off runs the configured shape and times nothing.",
    )
    group.add_argument(
        "--eagle31-pack-weights",
        choices=SWITCH,
        help="On a CPU without sgl_kernel: keep weights a second time, in the layout that oneDNN multiplies fastest "
        "(default on: faster, at twice the memory for weights; where the CPU cannot or memory is short, they are not). "
        "Also with EAGLE, EAGLE3, NEXTN, STANDALONE.",
    )
    known = [option for action in group._group_actions for option in action.option_strings]
    plain_error = parser.error

    def error(message: str) -> NoReturn:
        wrong = [word.partition("=")[0] for word in message.split() if word.startswith("--eagle31")]
        if "unrecognized arguments" in message and wrong:
            near = difflib.get_close_matches(wrong[0], known, 1, 0.0)[0]
            message += f" (options of EAGLE31: {', '.join(known)}; did you mean {near}?)"
        plain_error(message)

    parser.error = error  # type: ignore[method-assign]
