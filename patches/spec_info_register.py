"""The name EAGLE31 in SGLang's registry, with a validator that refuses.

Target: sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register
Why: fail closed. SGLang logs and swallows a plugin whose hooks failed, and would start unpatched. If the seam that
    resolves EAGLE31 has moved, SGLang reaches this entry instead and stops before weights load, with every reason.
How: a registered algorithm whose `validate_server_args` raises, listing the reasons.
Upstream: public API for plugins.
Remove when: never; it is the safety net.
"""

from __future__ import annotations

from sglang_eagle31.patches._seam import Seam

SEAM = Seam(
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register",
    ("name", "supports_overlap", "validate_server_args"),
    "USE",
    "server",
)
