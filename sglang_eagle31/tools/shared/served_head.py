"""What is asked of a server before it is measured: does it speculate, how deep, and how far does its head reach."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.shared.counters import guards
from sglang_eagle31.tools.shared.server_info import server_info


@dataclass(frozen=True)
class Head:
    """Facts of one server and its draft head; None where the server does not say."""

    name: str
    url: str
    algorithm: str
    variant: str | None
    """``eagle3``, ``eagle3.1`` and so on; only from servers that run EAGLE31."""
    path: str | None
    """Of the draft."""
    model: str | None
    version: str | None
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    most_input: int | None
    """Longest prompt in tokens that the server takes (context length and KV pool)."""
    positions: int | None
    """``max_position_embeddings`` of the head."""
    window: int | None
    """Keys a query of the head sees; None: all."""
    config_known: bool
    """Whether positions and window were read: None then means that there is no limit, no window."""
    adaptive: bool
    """Whether the server changes its number of steps while it runs."""
    pinned: str | None = None
    """Shape that each request asks for, because the server's guard would choose others; None where it does not."""

    @property
    def chain(self) -> bool:
        """Whether drafts are chains; a tree has few deep nodes, which lowers acceptance there by itself."""
        return self.topk in (None, 1)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def parse_urls(items: list[str]) -> list[tuple[str | None, str]]:
    """``(name, url)`` of ``URL`` and ``NAME=URL`` items.

    Raises ValueError for what is no http address, and for a name or an address that comes twice.
    """
    found: list[tuple[str | None, str]] = []
    for item in items:
        match = re.fullmatch(r"(?:([\w.+ -]+)=)?(https?://\S+?)/*", item)
        if match is None:
            raise ValueError(
                f"--url {item}: expected URL or NAME=URL; fix: for example --url old=http://localhost:30000"
            )
        found.append((match[1], match[2]))
    for which, values in (("name", [name for name, _ in found if name]), ("address", [url for _, url in found])):
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ValueError(f"--url: the {which} {twice[0]} is given twice; fix: each server once, by its own name")
    return found


def read_heads(urls: list[tuple[str | None, str]]) -> list[Head]:
    """Facts of every server, each with a name of its own. Raises ValueError as `read_head` does."""
    heads: list[Head] = []
    for name, url in urls:
        head = read_head(name, url)
        taken = {other.name for other in heads}
        if head.name in taken:
            head = Head(**{**asdict(head), "name": f"{head.name} ({len(heads) + 1})"})
        heads.append(head)
    return heads


def read_head(name: str | None, url: str) -> Head:
    """Facts from ``/server_info``.

    Raises ValueError when nothing answers, when the answer is not SGLang's, and for a server without speculation.
    """
    return head_of(name, url, server_info(url))


def head_of(name: str | None, url: str, info: Mapping[str, Any]) -> Head:
    """`read_head` on the answer of ``/server_info``."""
    ours: Mapping[str, Any] = info.get("eagle31") or {}
    algorithm = ours.get("algorithm") or info.get("speculative_algorithm")
    if not algorithm or str(algorithm).upper() == "NONE":
        raise ValueError(
            f"--url {url}: this server runs without speculation (speculative_algorithm is {algorithm!r}), so there is "
            "no acceptance to measure; fix: start it with --speculative-algorithm and a draft head"
        )
    path = ours.get("head") or info.get("speculative_draft_model_path")
    config = ours.get("spec") or _config_of(path)
    stated = info.get("speculative_draft_window_size")
    return Head(
        name=name or (Path(str(path)).name if path else str(algorithm)),
        url=url,
        algorithm=str(algorithm),
        variant=ours.get("variant"),
        path=str(path) if path else None,
        model=info.get("model_path"),
        version=info.get("version"),
        steps=_number(info.get("speculative_num_steps")),
        topk=_number(info.get("speculative_eagle_topk")),
        draft_tokens=_number(info.get("speculative_num_draft_tokens")),
        most_input=_number(info.get("max_req_input_len")),
        positions=_number((config or {}).get("max_position_embeddings")),
        window=_number(stated) or _number((config or {}).get("sliding_window")),
        config_known=config is not None,
        adaptive=bool(info.get("speculative_adaptive")),
        pinned=_guarded(info),
    )


def _guarded(info: Mapping[str, Any]) -> str | None:
    """The configured shape of a server whose guard chooses shapes."""
    return next((str(guard["configured"]) for guard in guards(info) if guard["mode"] == "on"), None)


def _config_of(path: Any) -> Mapping[str, Any] | None:
    """config.json of a head's folder or cached repository, with the text part of a nested one; None if not here."""
    file = _config_file(str(path)) if path else None
    if file is None:
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    for part in ("transformer_layer_config", "text_config"):  # speculators; multimodal
        if isinstance(config.get(part), dict):
            config = {**config, **config[part]}
    if config.get("use_sliding_window") is False:
        config = {**config, "sliding_window": None}
    return config


def _config_file(path: str) -> Path | None:
    file = Path(path) / "config.json"
    if file.is_file():
        return file
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError:  # a folder of another machine
        return None
    return Path(cached) if isinstance(cached, str) else None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None
