"""Fill in the facts: this machine, what is installed, a head's files, a server's answer. Nothing is judged here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet

from sglang_eagle31 import __version__
from sglang_eagle31.head.checkpoint import local_folder
from sglang_eagle31.head.dialects.native import DEPTH
from sglang_eagle31.head.stage import cache_dir
from sglang_eagle31.head.target import read_target
from sglang_eagle31.server.cpu import memory
from sglang_eagle31.server.options import Eagle31Config
from sglang_eagle31.tools.audit.engines.sglang_fields import VERSION as SGLANG_VERSION
from sglang_eagle31.tools.audit.report import audit
from sglang_eagle31.tools.doctor.facts import Head, Machine, Plugins, Requirement, Server, Software

DISTRIBUTION = "sglang-eagle31"
GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")
ENTRY = "eagle31"
VARIABLES = ("OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE", "SGLANG_USE_CPU_ENGINE", "SGLANG_PLUGINS", "SGLANG_PLATFORM")


def machine() -> Machine:
    """This machine, as far as Linux says; what it does not say is 0, empty or None."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cpu = _table("/proc/cpuinfo")
    devices = [path for pattern in ("nvidia[0-9]*", "kfd") for path in Path("/dev").glob(pattern)]
    return Machine(
        system=platform.system(),
        arch=platform.machine(),
        flags=frozenset((cpu.get("flags") or cpu.get("Features") or "").split()),
        cores=len(cores),
        quota=_quota(_text("/sys/fs/cgroup/cpu.max")),
        load=os.getloadavg()[0],
        memory=memory.total(),
        free=memory.available(),
        gpus=tuple(sorted(map(str, devices))),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        compiler=_compiler("CXX", ("g++",)),
        c_compiler=_compiler("CC", ("gcc", "clang")),
    )


def software() -> Software:
    """Versions, and the bounds that this package declares. Raises ValueError if it is not installed."""
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(
            f"{DISTRIBUTION} is not installed in this environment, so that SGLang cannot find it; fix: pip install ."
        ) from error
    bound = metadata["Requires-Python"] if "Requires-Python" in metadata else ""
    parsed = [Parsed(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]
    wanted = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return Software(
        python=platform.python_version(),
        python_bound=bound,
        python_fits=SpecifierSet(bound).contains(platform.python_version(), prereleases=True),
        ours=__version__,
        declared=metadata["Version"],
        sglang=_version("sglang"),
        tested=(SGLANG_VERSION,),
        requirements=tuple(_requirement(one) for one in wanted),
    )


def _requirement(wanted: Parsed) -> Requirement:
    version = _version(wanted.name)
    fits = version is not None and wanted.specifier.contains(version, prereleases=True)
    return Requirement(str(wanted), wanted.name, version, fits)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def plugins() -> Plugins:
    """What SGLang will find of us; seams are compared with SGLang's source, which is not imported."""
    from sglang_eagle31 import patches

    found: dict[str, str | None] = {}
    others: set[str] = set()
    for group in GROUPS:
        entries = importlib.metadata.entry_points(group=group)
        mine = [entry for entry in entries if entry.name == ENTRY]
        found[group] = mine[0].value if mine else None
        others |= {entry.name for entry in entries if entry.name != ENTRY}
    try:
        error, options = None, Eagle31Config.from_env()
    except ValueError as wrong:
        error, options = str(wrong), Eagle31Config()
    cache = cache_dir(options.cache_dir)
    groups = {seam.group for seam in patches.SEAMS}
    return Plugins(
        found=found,
        others=tuple(sorted(others)),
        unfit={group: tuple(patches.fit(patches.group(group))) for group in sorted(groups)},
        options_error=error,
        cache=str(cache),
        cache_error=_unwritable(cache),
    )


def head(path: str, target: str | None, overrides: Mapping[str, str]) -> Head:
    """The audit of a head; what cannot be read is an error in the facts."""
    try:
        report = audit(path, target, overrides)
        folder = local_folder(path)
        context = read_target(target).context_length if target else None
        size = sum(map(_weights, (folder, local_folder(target)))) if target else None
    except ValueError as error:
        return Head(path, target, str(error))
    positions = report.spec.get("max_position_embeddings", (None, ""))[0]
    return Head(path, target, None, report.to_json(), positions, context, _depth(_config(folder)), size)


def server(url: str) -> Server:
    """A server's answer; what is wrong with it is an error in the facts."""
    from sglang_eagle31.tools.shared.served_head import head_of
    from sglang_eagle31.tools.shared.server_info import server_info

    try:
        info = server_info(url)
    except ValueError as error:
        return Server(url, str(error).removeprefix("--url "))
    if not isinstance(info, dict) or "internal_states" not in info:
        return Server(url, f"{url}: /server_info is not that of an SGLang server; fix: correct the address")
    found = Server(url, None, info)
    if found.algorithm is None:
        return found
    known = head_of(None, url, info)
    folder = known.path if known.path and Path(known.path).is_dir() else None
    depth = _depth(_config(Path(folder))) if folder else None
    return Server(url, None, info, depth, known.positions, known.window)


def served_head(server: Server, overrides: Mapping[str, str]) -> Head | None:
    """The audit of the head that a server without EAGLE31 runs, if its files and the target's are here."""
    paths = [server.info.get(name) for name in ("speculative_draft_model_path", "model_path")]
    if server.ours or server.algorithm != "EAGLE3" or not all(path and Path(path).is_dir() for path in paths):
        return None
    return head(str(paths[0]), str(paths[1]), overrides)


def _config(folder: Path) -> Mapping[str, Any]:
    """config.json; empty where it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _depth(config: Mapping[str, Any]) -> int | None:
    depth = config.get(DEPTH)
    return depth if isinstance(depth, int) and depth > 0 else None


def _weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _compiler(variable: str, names: tuple[str, ...]) -> str | None:
    """As torch and Triton look for it: the variable, else the names."""
    if variable in os.environ:
        words = os.environ[variable].split()
        return shutil.which(words[0]) if words else None
    return next((path for name in names if (path := shutil.which(name))), None)


def _quota(text: str) -> float | None:
    """``cpu.max`` of a control group: microseconds of CPU time allowed in a period, or ``max``."""
    words = text.split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _table(path: str) -> dict[str, str]:
    """``key: value`` lines; the first of each key."""
    found: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in _text(path).splitlines()):
        found.setdefault(key.strip(), value.strip())
    return found


def _unwritable(folder: Path) -> str | None:
    """Why no file can be made there, or in the nearest folder above that exists; None if it can."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
