"""Custom logit processors at every node of a draft tree, each with the request as it is when that node is committed.

Dimensions: B requests; N nodes of a tree; V vocabulary; D nodes of the longest path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

REQUEST = "__req__"
"""Key under which SGLang hands a processor the request."""

Processor = Callable[[torch.Tensor, list[Any]], torch.Tensor]


class RequestAtNode:
    """A request seen from a node: ``output_ids`` ends with the node's path, all else is the request's.

    What a processor writes to it stays in this view, for the node may be rejected.
    """

    def __init__(self, request: Any, committed: Sequence[int], path: Sequence[int]) -> None:
        """``committed`` is the output before the root, ``path`` the tokens from the root to the node."""
        self.__dict__.update(_request=request, _committed=committed, _path=path)

    @property
    def output_ids(self) -> Any:
        """The output in the request's own container, made anew for the first reader."""
        ids = self.__dict__.get("_ids")
        if ids is None:
            ids = self._request.output_ids[:0]
            ids.extend(self._committed)
            ids.extend(self._path)
            self.__dict__["_ids"] = ids
        return ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_request"], name)


def root_first(path: Sequence[int]) -> list[int]:
    """A row of `paths.path_tokens`, from the root to the node."""
    return [token for token in reversed(path) if token >= 0]


def params_at_nodes(
    params: Any, request: Any, committed: Sequence[int], paths: Sequence[Sequence[int]]
) -> list[dict[str, Any] | Any]:
    """The ``custom_params`` of one request for each of its nodes.

    Args:
        params: SGLang's for the request: a dict that may hold the request, or None.
        request: the real one.
        committed: output before the root.
        paths: tokens from the root to each of the N nodes.
    """
    if not isinstance(params, Mapping) or REQUEST not in params:
        return [params] * len(paths)
    return [{**params, REQUEST: RequestAtNode(request, committed, path)} for path in paths]


def run(
    logits: torch.Tensor, nodes: int, processor: Processor, rows: torch.Tensor, params: Sequence[Sequence[Any]]
) -> None:
    """Let one processor change the logits after every node of its requests, in place.

    Args:
        logits: [B * N, V], written.
        nodes: N.
        processor: called with [R * N, V] logits and as many params.
        rows: int64 [R] the requests it is for.
        params: of each of the R requests, N.
    """
    index = (rows.unsqueeze(1) * nodes + torch.arange(nodes, device=rows.device)).flatten()
    changed = processor(logits.index_select(0, index), [each for row in params for each in row])
    logits.index_copy_(0, index, changed.to(logits.dtype))
