"""Our drafter classes in SGLang's model registry.

Target: sglang.srt.models.registry._ModelRegistry.register
Why: the staged config names our drafter class, which SGLang's loader must find.
How: `ModelRegistry.register` with the package that holds the classes, in the scheduler process, before the draft loads.
Upstream: public API for model packages.
Remove when: never; it is the supported way.
"""

from __future__ import annotations

from sglang_eagle31.patches._seam import Seam

SEAM = Seam(
    "sglang.srt.models.registry._ModelRegistry.register",
    ("self", "package_name", "overwrite", "strict"),
    "USE",
    "eagle31",
)
