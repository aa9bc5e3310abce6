"""What the repairs read of SGLang's objects, in the installed SGLang."""

from __future__ import annotations

import dataclasses
import inspect

from sglang_eagle31.server.cpu import standin
from sglang_eagle31.server.lossless.asks import ALL_TOKENS

standin.prepare()


def fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_top_k_of_the_whole_vocabulary() -> None:
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

    assert ALL_TOKENS == TOP_K_ALL


def test_the_sampling_info_has_what_is_replaced() -> None:
    from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo

    replaced = {"acc_additive_penalties", "acc_scaling_penalties", "logit_bias", "top_ks", "top_ps", "custom_params"}
    read = {"custom_logit_processor", "has_custom_logit_processor", "is_all_greedy", "min_ps", "temperatures"}
    assert replaced | read <= fields(SamplingBatchInfo)
    assert {"processor", "rows", "indices"} <= fields(ProcessorEntry)


def test_the_tree_and_the_batch_have_what_is_read() -> None:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    tree = {"draft_token", "draft_token_num", "retrieve_next_token", "retrieve_next_sibling"}
    assert tree <= fields(EagleVerifyInput) and hasattr(EagleVerifyInput, "max_tree_depth")
    assert {"reqs", "seq_lens", "input_ids", "forward_mode", "decoding_reqs", "sampling_info"} <= fields(ScheduleBatch)
    counted = {"accept_index", "num_correct_drafts_per_req_cpu", "grammar_retained_tokens"}
    assert counted <= fields(GenerationBatchResult)


def test_a_request_has_what_is_read() -> None:
    from sglang.srt.managers.schedule_batch import Req

    source = inspect.getsource(Req.__init__)
    for name in (
        "origin_input_ids",
        "output_ids",
        "retraction_count",
        "custom_logit_processor",
        "finished_len",
        "eos_token_ids",
        "spec_num_correct_drafts",
        "spec_num_cap_tokens",
        "spec_correct_drafts_histogram",
    ):
        assert f"self.{name}" in source, name


def test_the_penalties_are_four() -> None:
    """A penalty that SGLang adds would be one that verification lacks."""
    from sglang.srt.sampling import penaltylib

    found = {name for name in dir(penaltylib) if name.startswith("Batched") and name.endswith("Penalizer")}
    known = ("Frequency", "MinNewTokens", "Presence", "Repetition")
    assert found == {f"Batched{name}Penalizer" for name in known}
