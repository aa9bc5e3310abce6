"""What a seam into SGLang is, and how one is checked and put in place.

A seam is one SGLang object that this package wraps or calls. Signatures decide whether it still fits: the dotted target
must be there and must still have the parameters the seam relies on. Versions are never compared.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_eagle31.patches import _static

Kind = Literal["BEFORE", "AFTER", "AROUND", "USE"]
Group = Literal["server", "eagle31", "cpu"]


@dataclass(frozen=True)
class Seam:
    """One place where this package meets SGLang.

    Attributes:
        target: dotted path of the SGLang function or method.
        params: parameter names that the seam relies on.
        kind: how it is wrapped; ``USE`` means that it is only called or subclassed.
        group: ``server`` is put in place in every process, ``eagle31`` only for a server that asked for EAGLE31,
            ``cpu`` only for EAGLE on a CPU without an importable ``sgl_kernel``.
        handler: the hook for wrapped seams, as SGLang's ``HookRegistry`` takes it.
    """

    target: str
    params: tuple[str, ...]
    kind: Kind
    group: Group
    handler: Callable[..., Any] | None = None

    def reasons(self) -> list[str]:
        """Why this seam does not fit the installed SGLang; empty when it fits."""
        have = self._parameters()
        if have is None:
            return [f"SGLang has no {self.target} any more"]
        missing = [name for name in self.params if name not in have]
        if missing:
            return [f"{self.target} lost the parameters {', '.join(missing)}; it takes {', '.join(have)}"]
        return []

    def in_place(self) -> bool:
        """Whether our hook is really on the target (SGLang logs and swallows a hook that failed to apply)."""
        found, hooks = pkgutil.resolve_name(self.target), []
        while found is not None:
            hooks += [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
            found = getattr(found, "__wrapped__", None)
        return any(hook is self.handler for hook in hooks)

    def _parameters(self) -> list[str] | None:
        """From the object if its module is loaded, else from its source, so that no check imports SGLang's models."""
        module = self.target
        while "." in module and module not in sys.modules:
            module = module.rpartition(".")[0]
        loaded = sys.modules.get(module)
        found: Any = loaded
        for name in self.target[len(module) + 1 :].split("."):
            if found is None:
                break
            found = getattr(found, name, None)
        if found is not None:
            return list(inspect.signature(inspect.unwrap(found)).parameters)
        package = importlib.util.find_spec("sglang")
        # A loaded package may lack a module that is merely not imported yet; a loaded module lacks what is gone.
        gone = loaded is not None and not hasattr(loaded, "__path__")
        if gone or package is None or package.origin is None:
            return None
        return _static.parameters(self.target, Path(package.origin).parent.parent)


_applied: set[str] = set()


def fit(seams: Iterable[Seam]) -> list[str]:
    """Every reason for which one of the seams does not fit; empty when all fit."""
    return [reason for seam in seams for reason in seam.reasons()]


def install(seams: Iterable[Seam]) -> list[str]:
    """Apply the hooks of the seams that are not yet in place and look at each target afterwards.

    Returns:
        the reasons for which a seam does not fit or is not in place; empty when all are.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    seams = tuple(seams)
    wrapped = [seam for seam in seams if seam.handler is not None and not seam.reasons()]
    for seam in wrapped:
        if seam.target not in _applied and seam.handler is not None:
            HookRegistry.register(seam.target, seam.handler, HookType[seam.kind])
            _applied.add(seam.target)
    HookRegistry.apply_hooks()
    # A seam that did not fit before and does now was looked for in a source file that only imports it.
    lost = [seam for seam in seams if seam.handler is not None and not seam.reasons() and not seam.in_place()]
    return fit(seams) + [f"the hook on {seam.target} did not take effect" for seam in lost]
