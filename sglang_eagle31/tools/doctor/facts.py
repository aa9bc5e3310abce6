"""Everything that the checks look at, as plain values; `gather` fills them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "FAIL", "skip"]
GIB = 1 << 30


ROBUST = "python -m sglang_eagle31 robust --url URL --model TARGET"
VERIFY = "python -m sglang_eagle31 verify --requests FILE.jsonl --url URL --baseline URL"
BENCH = "python -m sglang_eagle31 bench --model TARGET --head HEAD"
DOCTOR = "python -m sglang_eagle31 doctor --head HEAD --target TARGET"


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        section: the part of the report, e.g. ``machine``.
        name: what was looked at; section and name together are unique.
        status: ``skip`` for what could not be told; then ``fix`` says how to find out.
        text: what was found.
        fix: what to do; empty when there is nothing to do.
    """

    section: str
    name: str
    status: Status
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        system, arch: as ``platform`` has them, e.g. ``Linux`` and ``x86_64``.
        flags: CPU flags.
        cores: that this process may use.
        quota: cores' worth of time that the control group allows; None without a limit.
        load: processes that ran or waited in the last minute, on average.
        memory, free: bytes of main memory, and those that are available.
        gpus: device files of GPUs.
        variables: environment variables that matter here, as far as they are set.
        compiler: the C++ compiler that would be used, None if there is none.
        c_compiler: the same for C.
    """

    system: str
    arch: str
    flags: frozenset[str]
    cores: int
    quota: float | None
    load: float
    memory: int
    free: int
    gpus: tuple[str, ...]
    variables: Mapping[str, str]
    compiler: str | None
    c_compiler: str | None


@dataclass(frozen=True)
class Requirement:
    """One declared dependency: the text, and the version that is installed (None: not)."""

    text: str
    name: str
    installed: str | None
    fits: bool


@dataclass(frozen=True)
class Software:
    """Versions: of Python and its declared bound, of this package, of SGLang, and of the declared dependencies.

    Attributes:
        declared: version in the metadata of the installed package; ``ours`` is that of the code.
        sglang: installed version, None if there is none.
        tested: versions of SGLang with which this package was tested.
    """

    python: str
    python_bound: str
    python_fits: bool
    ours: str
    declared: str
    sglang: str | None
    tested: tuple[str, ...]
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True)
class Plugins:
    """What SGLang will find of us.

    Attributes:
        found: by entry-point group the value of ours, None where it is missing.
        others: names of other packages' plugins.
        unfit: by group of seams the reasons for which one does not fit.
        options_error: what is wrong with ``SGLANG_EAGLE31_OPTIONS``.
        cache: the folder for staged heads.
        cache_error: why it cannot be written.
    """

    found: Mapping[str, str | None]
    others: tuple[str, ...]
    unfit: Mapping[str, Sequence[str]]
    options_error: str | None
    cache: str
    cache_error: str | None


@dataclass(frozen=True)
class Started:
    """What a fresh process became after SGLang had loaded its plugins.

    Attributes:
        error: why there is no answer; then nothing else is known.
        registered: whether SGLang knows the name EAGLE31.
        lost: hooks of every server that are not on their targets.
        kernel: ``real``, ``stand-in`` or ``none``, which ``sgl_kernel`` SGLang gets.
        kernel_error: why there is none.
        gpus: name and bytes of each GPU that torch sees.
        amx: whether SGLang would take its AMX kernels.
        unpacked: by dtype, why our CPU backend does not pack weights in it; empty where it does.
        dtype: the ``--dtype`` that suits this CPU, and why; empty where it was not asked.
    """

    error: str | None = None
    registered: bool = False
    lost: tuple[str, ...] = ()
    kernel: str = "none"
    kernel_error: str | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    amx: bool = False
    unpacked: Mapping[str, str] = field(default_factory=dict)
    dtype: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """A head's audit.

    Attributes:
        path, target: as given.
        error: why it cannot be read; then nothing else is known.
        report: `audit.report.Report.to_json`.
        positions, context: ``max_position_embeddings`` of the head and of the target.
        depth: draft steps that it was trained with, None if its files do not say.
        size: bytes of the weights of target and head; None without a target here.
    """

    path: str
    target: str | None = None
    error: str | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    positions: int | None = None
    context: int | None = None
    depth: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Server:
    """A server's ``/server_info``, or why there is none.

    Attributes:
        depth: draft steps that its head was trained with, if the head's folder is here and says so.
        positions, window: of the head, from the server or from that folder; None if unknown or without a limit.
    """

    url: str
    error: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    depth: int | None = None
    positions: int | None = None
    window: int | None = None

    @property
    def ours(self) -> Mapping[str, Any]:
        """The marker of an EAGLE31 server; empty on others."""
        marker: Mapping[str, Any] = self.info.get("eagle31") or {}
        return marker

    @property
    def algorithm(self) -> str | None:
        """What the server runs, in upper case; None without speculation."""
        name = self.ours.get("algorithm") or self.info.get("speculative_algorithm")
        return None if not name or str(name).upper() == "NONE" else str(name).upper()

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """The internal state of each scheduler."""
        return self.info.get("internal_states") or []


@dataclass(frozen=True)
class Facts:
    """All of them; None for what was not asked for."""

    machine: Machine
    software: Software
    plugins: Plugins
    started: Started | None = None
    head: Head | None = None
    server: Server | None = None
