"""The tree attention backend, where SGLang would take torch_native on a CPU.

Target: sglang.srt.layers.attention.attention_registry.register_attention_backend
Why: on a CPU without AMX SGLang falls back to `torch_native`, which knows neither tree masks nor draft decoding.
How: the entry `torch_native` is registered again with a creator that gives a speculative EAGLE server our backend and
    any other server SGLang's own.
Upstream: https://github.com/sgl-project/sglang/issues/11043 (CPU without AMX).
Remove when: SGLang's torch_native serves EAGLE.
"""

from __future__ import annotations

from sglang_eagle31.patches._seam import Seam

SEAM = Seam("sglang.srt.layers.attention.attention_registry.register_attention_backend", ("name",), "USE", "cpu")
