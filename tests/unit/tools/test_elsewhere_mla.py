"""What stock SGLang would run of heads with latent attention: each silent fault, and the softmax scale."""

from __future__ import annotations

import dataclasses
import math

import pytest
from elsewhere_heads import KIMI, MLA_SPEC, H, mla_head, sglang

from sglang_eagle31.tools.audit.engines import Runs, effective_sglang

S27 = {
    "norm before fc": (mla_head({"norm_before_fc": True}, add={"input_norm.weight": (3 * H,)}), "pre_fc_norm"),
    "residual": (mla_head({"norm_before_residual": True}), "residual"),
    "prefix": (
        mla_head(without=("fc",), add={"model.fc.weight": (H, 3 * H)}),
        "unknown tensors dropped: model.fc.weight",
    ),
    "scale": (
        mla_head({"rope_scaling": {"rope_type": "yarn", "factor": 64.0, "mscale_all_dim": 1.0}}),
        "softmax_scale",
    ),
}


@pytest.mark.parametrize("row", S27)
def test_s27_mla(row: str) -> None:
    checkpoint, reason = S27[row]
    wanted = dataclasses.replace(
        MLA_SPEC,
        pre_fc_norm="input_norm" if row == "norm before fc" else "none",
        residual="post" if row == "residual" else "pre",
        rope_scaling=checkpoint.config.get("rope_scaling"),
        softmax_scale=12**-0.5 if row == "scale" else None,
    )
    outcome = sglang(checkpoint, wanted, KIMI)
    assert outcome.kind == "wrong"
    assert reason in "\n".join(outcome.reasons)


def test_mla_softmax_scale_follows_yarn() -> None:
    effect = effective_sglang(S27["scale"][0], KIMI)
    assert isinstance(effect, Runs)
    assert effect.fields["softmax_scale"] == pytest.approx((0.1 * math.log(64) + 1) ** 2 / math.sqrt(12))
