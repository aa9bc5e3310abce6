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
NAMES = ("EAGLE31", "EAGLE3.1")


def asked(name: str | None) -> bool:
    """Whether a ``--speculative-algorithm`` value means EAGLE31; any case, with or without the dot."""
    return name is not None and name.strip().upper() in NAMES


@dataclass(frozen=True)
class Eagle31Config:
    """Options of sglang-eagle31.

    Attributes:
        override: ``KEY=VALUE`` facts about the head that its files leave open or state wrongly.
        cache_dir: folder for staged heads; None is ``$SGLANG_EAGLE31_CACHE`` or ``~/.cache/sglang-eagle31``.
    """

    override: tuple[str, ...] = ()
    cache_dir: str | None = None

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

        Raises:
            ValueError: an option of ours was given, but not ``--speculative-algorithm EAGLE31``.
        """
        given = {
            field.name: value
            for field in dataclasses.fields(cls)
            if (value := getattr(args, f"eagle31_{field.name}", None)) not in (None, [])
        }
        algorithm = getattr(args, "speculative_algorithm", None)
        if given and not asked(algorithm):
            flags = ", ".join(f"--eagle31-{name.replace('_', '-')} {value}" for name, value in given.items())
            raise ValueError(
                f"{flags} has no effect with --speculative-algorithm {algorithm}; "
                "fix: add --speculative-algorithm EAGLE31 or drop the option"
            )
        return dataclasses.replace(cls.from_env(), **cls._checked(given).__dict__) if given else cls.from_env()

    @classmethod
    def _checked(cls, raw: Any) -> Eagle31Config:
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(raw) - known) if isinstance(raw, dict) else [repr(raw)]
        if unknown:
            raise ValueError(f"{ENV}: unknown option {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        override = raw.get("override", ())
        if isinstance(override, str) or any("=" not in item for item in override):
            raise ValueError(f"--eagle31-override {override!r}: expected KEY=VALUE (in {ENV}: a list of them)")
        return cls(override=tuple(override), cache_dir=raw.get("cache_dir"))

    def export(self) -> None:
        """Keep the options where every child process finds them."""
        if self != Eagle31Config():
            os.environ[ENV] = json.dumps(dataclasses.asdict(self))

    def overrides(self) -> dict[str, str]:
        """The overrides as key and value text."""
        return {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in self.override)}


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
        "(boundaries), feedback=post, residual=pre, logits=norm, rope_theta=10000, max_position_embeddings=8192, "
        "sliding_window=2048. Repeatable.",
    )
    group.add_argument(
        "--eagle31-cache-dir",
        metavar="DIR",
        help="Folder for staged heads (default: $SGLANG_EAGLE31_CACHE or ~/.cache/sglang-eagle31).",
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
