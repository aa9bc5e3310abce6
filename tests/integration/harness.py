"""Our served drafter without a server: a staged head on SGLang's layers in this process, one request, its own KV lists.

module = build(staged_folder)                      # Eagle31LlamaForCausalLM with its weights
run = Run(module)
logits, feedback = run.prefill(captured, next_ids)  # a row per token
logits, feedback = run.step(token, feedback[-1])    # one row
"""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open

from sglang_eagle31.server.cpu import standin

standin.prepare()  # before anything imports SGLang

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class PlainAttention:
    """Causal softmax attention in float32 for one request, over lists of every key and value that a layer was given."""

    prefill_attention_backend_str = decode_attention_backend_str = "torch_native"
    data_type = kv_cache_dtype = torch.float32

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> torch.Tensor:
        """SGLang's call: ``[tokens, heads * D]`` to ``[tokens, heads * Dv]``.

        A latent layer's call may bring its rotated part apart, as ``q_rope`` and ``k_rope``.
        """
        count = forward_batch.positions.shape[0]
        heads, kv_heads = layer.tp_q_head_num, layer.tp_k_head_num
        query, key = q.reshape(count, heads, -1).float(), k.reshape(count, kv_heads, -1).float()
        value = v.reshape(count, kv_heads, -1).float()
        if kwargs.get("q_rope") is not None:
            query = torch.cat([query, kwargs["q_rope"].reshape(count, heads, -1).float()], dim=-1)
            key = torch.cat([key, kwargs["k_rope"].reshape(count, kv_heads, -1).float()], dim=-1)
        keys, values = self._write(layer.layer_id, key, value) if save_kv_cache else (key, value)
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(heads // kv_heads, 1)) * layer.scaling
        at = torch.arange(len(keys) - count, len(keys), device=scores.device).unsqueeze(1)
        other = torch.arange(len(keys), device=scores.device)
        hidden = other > at
        if layer.sliding_window_size >= 0:  # SGLang's window counts the keys before the query
            hidden |= other < at - layer.sliding_window_size
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(heads // kv_heads, 1))
        return out.reshape(count, -1).to(q.dtype)

    @property
    def token_to_kv_pool(self) -> PlainAttention:
        """Where SGLang's MLA layers write a prompt's latents, before they attend in another form."""
        return self

    def set_kv_buffer(self, layer: Any, where: Any, latent: torch.Tensor, value: None) -> None:
        """Append latents ``[tokens, 1, rank + rope]``."""
        self._write(layer.layer_id, latent.float(), latent[..., :0].float())

    def set_mla_kv_buffer(self, layer: Any, where: Any, latent: torch.Tensor, rotated: torch.Tensor) -> None:
        """The same in two parts, as SGLang has it on a GPU."""
        self.set_kv_buffer(layer, where, torch.cat([latent, rotated], dim=-1), None)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer] = torch.cat([self.keys.get(layer, key[:0]), key])
        self.values[layer] = torch.cat([self.values.get(layer, value[:0]), value])
        return self.keys[layer], self.values[layer]


def start_runtime() -> None:
    """SGLang's process-wide state, once: the arguments of a server in float32 and parallel groups of one process."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention_flags
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    if parallel_state.model_parallel_is_initialized():
        return
    args = ServerArgs(model_path="dummy", device=DEVICE, dtype="float32", attention_backend="torch_native")
    publish(args, role="test", ranks=SpawnRanks(world_rank=0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    backend = "gloo" if DEVICE == "cpu" else "nccl"
    parallel_state.init_distributed_environment(1, 0, address, 0, backend)
    parallel_state.initialize_model_parallel()
    initialize_dp_attention_flags(args)


def build(staged: Path, embed: torch.Tensor | None = None, head: torch.Tensor | None = None) -> Any:
    """The module of a folder that ``drafter.stage.stage`` wrote, in float32 with its weights.

    ``embed`` ``[V, H]`` and ``head`` ``[V, H]`` are the target's, for a head that does not ship its own.
    """
    start_runtime()
    from sglang.srt.model_loader.utils import set_default_torch_dtype
    from transformers import AutoConfig

    from sglang_eagle31.server.drafter.llama import Eagle31LlamaForCausalLM

    config = AutoConfig.from_pretrained(staged)
    with set_default_torch_dtype(torch.float32), torch.device(DEVICE):
        module = Eagle31LlamaForCausalLM(config)
    module.load_weights(_tensors(staged))
    shared = [
        torch.nn.Parameter(weight.to(DEVICE), requires_grad=False) for weight in (embed, head) if weight is not None
    ]
    if shared:
        (module.set_embed_and_head if len(shared) == 2 else module.set_embed)(*shared)
    return module.eval()


def _tensors(staged: Path) -> Any:
    for file in sorted(staged.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


class Run:
    """One request on a module of `build`; every call appends to its keys and values.

    What it returns are logits ``[tokens, draft vocabulary]`` and the state that the next step is fed ``[tokens, H]``.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.length = 0
        self.backend = PlainAttention()

    def prefill(self, captured: torch.Tensor, next_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``captured`` ``[tokens, k * target width]`` of each token, ``next_ids`` ``[tokens]`` the token after each."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        # Of SGLang's forwards over captured states this is the one that gives logits for every token.
        return self._forward(ForwardMode.DRAFT_EXTEND_V2, next_ids, captured)

    def step(self, token: int, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One drafted ``token`` and the fed-back ``state`` ``[H]``."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        return self._forward(ForwardMode.DECODE, torch.tensor([token]), state.view(1, -1))

    def _forward(self, mode: Any, ids: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, total = len(ids), self.length + len(ids)
        ids = ids.to(DEVICE)
        batch = batch_of(mode, ids, self.length, states.to(DEVICE))
        with torch.inference_mode(), attending(self.backend):
            out = self.module(ids, batch.positions, batch)
        assert out.next_token_logits.shape[0] == out.hidden_states.shape[0] == count
        self.length = total
        return out.next_token_logits.float().cpu(), out.hidden_states.float().cpu()


def attend(layer: Any, states: torch.Tensor, prompt: bool = False) -> tuple[torch.Tensor, PlainAttention]:
    """One request through an attention layer of ours: ``[tokens, width]`` to ``[tokens, H]``, and what was cached.

    ``prompt`` is SGLang's forward for a prompt, for which an MLA layer does not attend to latents.
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    mode, backend = ForwardMode.EXTEND if prompt else ForwardMode.DRAFT_EXTEND_V2, PlainAttention()
    ids = torch.zeros(len(states), dtype=torch.long, device=DEVICE)
    batch = batch_of(mode, ids, 0, states)
    with torch.inference_mode(), attending(backend):
        return layer(batch.positions, states.to(DEVICE), batch).float().cpu(), backend


def batch_of(mode: Any, ids: torch.Tensor, start: int, states: torch.Tensor) -> Any:
    """SGLang's batch of one request whose tokens ``ids`` follow ``start`` others."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

    count, total = len(ids), start + len(ids)
    positions = torch.arange(start, total, device=DEVICE)
    return ForwardBatch(
        forward_mode=mode,
        batch_size=1,
        input_ids=ids,
        req_pool_indices=torch.zeros(1, dtype=torch.long, device=DEVICE),
        seq_lens=torch.tensor([total], device=DEVICE),
        out_cache_loc=positions + 1,
        seq_lens_sum=total,
        positions=positions,
        seq_lens_cpu=torch.tensor([total]),
        extend_seq_lens=torch.tensor([count], device=DEVICE),
        extend_seq_lens_cpu=[count],
        extend_prefix_lens_cpu=[start],
        capture_hidden_mode=CaptureHiddenMode.FULL,
        spec_info=SimpleNamespace(hidden_states=states, select_index=None),
    )


def attending(backend: Any) -> Any:
    """SGLang's context of one forward with this attention backend."""
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    return forward_context(ForwardContext(attn_backend=backend))
