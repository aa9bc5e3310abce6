"""Stand-ins for the forward of target and draft: they read KV rows and write KV rows as attention does.

What they are given (tokens, rows, slots, masks, hidden states) and what becomes of what they return is SGLang's doing.
"""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from rollback_language import DRAFTED, START, VOCAB, advance, advance_all, draft_row, say, say_all

if TYPE_CHECKING:
    from rollback_world import Shape, World

Path = tuple[int, ...]


class Drafts:
    """What the draft proposes. Per request and round it is right down to a depth that is drawn, and wrong below.

    ``proposals[request][path]`` holds the proposed tokens after a drafted path, with their probabilities, for the round
    that comes next.
    """

    def __init__(self, shape: Shape, random: Random) -> None:
        self.shape, self.random = shape, random
        self.right_to: dict[str, int] = {}
        self.forced: dict[str, list[int]] = {}
        self.proposals: dict[str, dict[Path, list[tuple[int, float]]]] = {}
        self.paths: dict[str, dict[int, Path]] = {}
        self.verified: dict[str, dict[Path, list[tuple[int, float]]]] = {}

    def begin(self, name: str, state: int) -> torch.Tensor:
        """A new round: logits over the first drafted token, ``[VOCAB]``."""
        steps, forced = self.shape.steps, self.forced.get(name)
        self.right_to[name] = forced.pop(0) if forced else self.random.choice((0, steps, self.random.randint(0, steps)))
        self.proposals[name], self.paths[name] = {}, {state: ()}
        return self._propose(name, state, ())

    def go_on(self, name: str, parent: int, token: int) -> torch.Tensor:
        """Logits over the token after a drafted one, ``[VOCAB]``."""
        path = (*self.paths[name][parent], token)
        state = advance(parent, token)
        self.paths[name][state] = path
        return self._propose(name, state, path)

    def close(self, name: str) -> None:
        """The round is verified: what was proposed for it is kept in ``verified``."""
        self.verified[name] = self.proposals[name]

    def _propose(self, name: str, state: int, path: Path) -> torch.Tensor:
        topk, truth = self.shape.topk, say(state)
        wrong = self.random.sample([token for token in range(3, VOCAB) if token != truth], topk)
        if len(path) < self.right_to[name]:
            wrong[self.random.choice((0, self.random.randrange(topk)))] = truth
        logits = torch.full((VOCAB,), -40.0)
        weights = sorted((self.random.uniform(0.05, 1.0) for _ in wrong), reverse=True)
        logits[wrong] = torch.tensor([math.log(weight) for weight in weights])
        probabilities = torch.softmax(logits, 0)
        self.proposals[name][path] = [(token, float(probabilities[token])) for token in wrong]
        return logits


class Runner:
    """As much of SGLang's ModelRunner as the code around a forward touches."""

    def __init__(self, world: World, pool: Any, is_draft: bool) -> None:
        from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self.rows, self.pool = world.rows.req_to_token, pool
        self.device, self.model_config = "cpu", world.config
        self.is_draft_worker, self.token_to_kv_pool = is_draft, pool
        self.req_to_token_pool, self.token_to_kv_pool_allocator = world.rows, world.allocator
        self.spec_algorithm = SpeculativeAlgorithm.from_string("EAGLE3")
        self.prefill_attention_backend_str = "torch_native"
        self.attn_backend = SimpleNamespace(
            verify_mask=None, max_context_len=world.config.context_len, init_forward_metadata=lambda forward: None
        )
        self.lora_manager = self.canary_manager = self.decode_cuda_graph_runner = self.watermark_state = None
        self.prefill_aware_swa = False
        self.ngram_embedding_manager = SimpleNamespace(enabled=False)
        self.kv_index_translator = KVIndexTranslator(
            req_to_token=self.rows,
            token_to_kv_pool_allocator=world.allocator,
            token_to_kv_pool=pool,
            page_size=world.shape.page,
            device="cpu",
            is_draft_worker=is_draft,
        )

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """What the pool holds for these slots: int64."""
        state: torch.Tensor = self.pool.k_buffer[0][slots.long(), 0, 0]
        assert torch.equal(state, self.pool.v_buffer[0][slots.long(), 0, 0]), "K and V of a slot are of two tokens"
        return state

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """K and V alike."""
        assert len(slots) == len(states)
        self.pool.k_buffer[0][slots, 0, 0] = states
        self.pool.v_buffer[0][slots, 0, 0] = states

    def before(self, row: int, position: int) -> int:
        """State of a request's text before a position, read from the pool."""
        return START if position == 0 else int(self.read(self.rows[row, position - 1].view(1)))


def _output(logits: torch.Tensor, hidden: torch.Tensor) -> Any:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    return LogitsProcessorOutput(next_token_logits=logits, hidden_states=hidden.double().view(-1, 1))


class TargetRunner(Runner):
    """The target, and the worker around it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, world.target_kv, is_draft=False)
        self.drafts = world.drafts
        self.model_runner = self

    def forward_batch_generation(
        self, batch: Any, forward_batch: Any = None, is_verify: bool = False, **more: Any
    ) -> Any:
        """Prefill of a scheduler's batch, or verification of a tree."""
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch

        if is_verify:
            states = self._verify(forward_batch)
            for name in forward_batch.rids:
                self.drafts.close(name)
            logits = torch.nn.functional.one_hot(say_all(states), VOCAB).float()
            return GenerationBatchResult(logits_output=_output(logits, states))
        mode = more["capture_hidden_mode"]
        forward = ForwardBatch.init_new(batch, self, capture_hidden_mode=mode, return_hidden_states_before_norm=False)
        states, last = self._prefill(forward)
        logits = torch.nn.functional.one_hot(say_all(last), VOCAB).float()
        return GenerationBatchResult(
            logits_output=_output(logits, states), next_token_ids=say_all(last), can_run_cuda_graph=False
        )

    def _prefill(self, forward: Any) -> tuple[torch.Tensor, torch.Tensor]:
        states, last, ids = [], [], forward.input_ids.tolist()
        rows = forward.req_pool_indices.tolist()
        for row, start, count in zip(rows, forward.extend_prefix_lens_cpu, forward.extend_seq_lens_cpu, strict=True):
            state = self.before(row, start)
            for _ in range(count):
                state = advance(state, ids[len(states)])
                states.append(state)
            last.append(state)
        written = torch.tensor(states)
        self.write(forward.out_cache_loc, written)
        return written, torch.tensor(last)

    def _verify(self, forward: Any) -> torch.Tensor:
        """States of all nodes, each from the nearest node it may see, the root's from the committed text."""
        batch = forward.batch_size
        tokens, depths = forward.input_ids.view(batch, -1), forward.positions.view(batch, -1)
        nodes = tokens.shape[1]
        sees = forward.spec_info.custom_mask[: batch * nodes * nodes].view(batch, nodes, nodes).bool().clone()
        sees &= ~torch.eye(nodes, dtype=torch.bool)
        parent = torch.where(sees, depths[:, None, :], -1).argmax(-1)
        starts = [
            self.before(row, length)
            for row, length in zip(forward.req_pool_indices.tolist(), forward.seq_lens.tolist(), strict=True)
        ]
        states = advance_all(torch.tensor(starts)[:, None].expand(batch, nodes), tokens)
        for depth in range(1, nodes):
            here = depths - depths[:, :1] == depth
            states = torch.where(here, advance_all(states.gather(1, parent), tokens), states)
        self.write(forward.out_cache_loc, states.flatten())
        return states.flatten()


class DraftRunner(Runner):
    """The draft: prefill and extend write what the target said, drafting marks its rows as drafted."""

    def __init__(self, world: World, drafts: Drafts) -> None:
        super().__init__(world, world.draft_kv, is_draft=True)
        self.drafts = drafts

    def forward(self, forward: Any) -> Any:
        """One forward of any kind."""
        ids, hidden = forward.input_ids.long(), forward.spec_info.hidden_states.view(-1).long()
        states = advance_all(hidden, ids)
        if forward.forward_mode.is_decode():
            self.write(forward.out_cache_loc, torch.full_like(states, DRAFTED))
            names = [name for name in forward.rids for _ in range(len(ids) // len(forward.rids))]
            rows = zip(names, hidden.tolist(), ids.tolist(), strict=True)
            logits = torch.stack([self.drafts.go_on(*row) for row in rows])
            return SimpleNamespace(logits_output=_output(logits, states))
        rows = zip(hidden.tolist(), ids.tolist(), strict=True)
        self.write(forward.out_cache_loc, torch.tensor([draft_row(*row) for row in rows]))
        if forward.forward_mode.is_draft_extend_v2():
            width = len(ids) // len(forward.rids)
            last = torch.arange(len(forward.rids)) * width + forward.spec_info.num_accept_tokens.long() - 1
        else:
            last = torch.tensor(forward.extend_seq_lens_cpu).cumsum(0) - 1
        proposals = torch.zeros(len(ids), VOCAB)
        for name, index in zip(forward.rids, last.tolist(), strict=True):
            proposals[index] = self.drafts.begin(name, int(states[index]))
        if forward.forward_mode.is_draft_extend_v2():
            return SimpleNamespace(logits_output=_output(proposals, states))
        return SimpleNamespace(logits_output=_output(proposals[last], states[last]))
