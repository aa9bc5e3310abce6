"""Find a seam's target in SGLang's source without importing it, so that a check costs milliseconds, not seconds."""

from __future__ import annotations

import ast
from pathlib import Path


def parameters(target: str, root: Path) -> list[str] | None:
    """Parameter names of a function or method.

    Args:
        target: dotted path of its definition (inherited and re-exported names are not followed).
        root: folder that holds the top-level package, e.g. site-packages or an unpacked wheel.

    Returns:
        the names in order, or None if the source has no such function.
    """
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        base = root.joinpath(*parts[:cut])
        file = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if file.is_file():
            return _descend(ast.parse(file.read_text()), parts[cut:])
    return None


def _descend(tree: ast.Module, names: list[str]) -> list[str] | None:
    body: list[ast.stmt] = tree.body
    for name in names[:-1]:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes:
            return None
        body = classes[0].body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in body if isinstance(node, kinds) and node.name == names[-1]]
    if not found:
        return None
    args = found[0].args
    return [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
