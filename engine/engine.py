"""The engine: requests in, tokens out, one step at a time.

Owns the loop's one turn and the admission of requests; knows ids only, no text, no pipe. Invariant: every sample of a
request that was added gets exactly one row with a finish_reason, and its blocks return to the pool.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from engine.config import LoadOptions
from engine.core.answer_end import cut_at_ends
from engine.core.block_pool import BlockPool
from engine.core.grammar import follow
from engine.core.inspection import InspectionWish
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.kv_groups import KVGroup
from engine.core.outputs import RequestOutput, RequestProgress
from engine.core.prefix import PrefixHasher
from engine.core.request import POOLINGS, FinishReason, Request, RequestStatus
from engine.core.sampling_params import Guided, SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.speculation import DEFAULT_SPECULATION, SpeculationParams, most_sampled_rows
from engine.core.stats import EngineCounters
from engine.core.timeline import progress_of
from engine.protocol import EngineStats
from engine.runner.executor import Executor
from engine.sample.grammar import GrammarCompiler, GrammarError, Outcome
from engine.spec.speculator import Speculation, Speculator

MAX_SAMPLES = 128  # of one prompt, as OpenAI has it


class Engine:
    """One model's scheduler and executor."""

    def __init__(
        self,
        executor: Executor,
        options: LoadOptions,
        *,
        num_blocks: int,
        groups: Sequence[KVGroup],
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        model_identity: str,
        grammars: GrammarCompiler,
        speculation: Speculation,
    ) -> None:
        """num_blocks counts the null block. groups: the model's KV groups, which share the pool. model_identity: what
        tells this model's cached blocks from another's. speculation: who may propose drafts, and who decides."""
        self.executor = executor
        self.grammars = grammars
        self.pool = BlockPool(num_blocks)
        size = options.block_size
        hasher = PrefixHasher(f"{model_identity}\0{size}", size) if options.enable_prefix_caching else None
        self.scheduler = Scheduler(
            KVCacheManager(self.pool, size, hasher, groups),
            options.max_num_seqs,
            options.max_num_batched_tokens,
            options.long_prefill_token_threshold,
            max_sampled_rows=most_sampled_rows(options),
        )
        limits: dict[str, Any] = {"max_drafts": options.num_speculative_tokens, "rule": options.speculation_rule}
        self.speculate_by(Speculator(self.scheduler, speculation, **limits))
        self._grammar_checks = set[str]()
        self.counters = EngineCounters()
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)

    def speculate_by(self, speculator: Speculator) -> None:
        """Has this one speculate from now on, for requests to come."""
        self.speculator = speculator
        self.scheduler.on_end = speculator.end

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
        pooling: str = "",
        speculation: SpeculationParams = DEFAULT_SPECULATION,
        trace: bool = False,
        inspect: InspectionWish | None = None,
    ) -> RequestOutput | None:
        """Queues n samples of a request; returns their common error row when it cannot be served.

        With `pooling` it is the prompt's pooled hidden state that is wanted, and nothing of `sampling`. The samples
        share a seed and differ by their index in the noise. All but the first wait until that one has computed the
        prompt, and find its whole blocks in the cache. inspect: how the one token was drawn that comes next.
        """
        fault = self._fault(request_id, prompt_token_ids, sampling, n, pooling)
        if fault is None and inspect is not None:
            fault = inspect.fault(len(prompt_token_ids), self.vocab_size, alone=n == 1 and not pooling)
        fault = fault or self.speculator.fault(speculation)
        if fault is not None:
            self.counters.observe_finished(n)
            return RequestOutput(request_id, [], finish_reason=FinishReason.ERROR, error=fault)
        picked = secrets.randbits(53)  # clients in JavaScript keep 53 bits exact
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_token_ids)
        most = sampling.max_tokens if inspect is None else 1
        first = Request(
            request_id=request_id,
            token_ids=list(prompt_token_ids),
            sampling=sampling,
            seed=picked if sampling.seed is None else sampling.seed,
            end_token_ids=ends,
            max_output_tokens=0 if pooling else min(most, self.max_model_len - len(prompt_token_ids)),
            priority=priority,
            cache_salt=cache_salt,
            pooling=pooling,
            speculation=self.speculator.settle(speculation, guided=sampling.guided is not None),
            trace=trace,
            inspect=inspect,
        )
        samples = [first, *(first.sibling(index) for index in range(1, n))]
        if sampling.guided is not None:
            for request in samples:
                self.scheduler.hold(request, RequestStatus.WAITING_GRAMMAR)
            self.grammars.submit(request_id, sampling.guided)
        else:
            self.scheduler.add_samples(samples)
        return None

    def check_grammar(self, request_id: str, guided: Guided) -> None:
        """Has a later step return one row that says whether the grammar can be used; it counts as no request."""
        self._grammar_checks.add(request_id)
        self.grammars.submit(request_id, guided)

    def abort_request(
        self, request_id: str, num_output_tokens: int | None = None, index: int | None = None
    ) -> list[RequestOutput]:
        """Ends a request, all its samples or the one of that index; no rows when it is unknown or has ended."""
        doomed = [one for one in self.scheduler.samples_of(request_id) if index is None or one.sample_index == index]
        rows = [row for one in doomed if (row := self.scheduler.abort(one.request_id, num_output_tokens)) is not None]
        self.counters.observe_finished(len(rows))
        return rows

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work() or self.grammars.has_compiled()

    def has_requests(self) -> bool:
        """Whether any request has not ended; some may wait for their grammars while there is no work."""
        return bool(self.scheduler.requests)

    def step(self) -> list[RequestOutput]:
        """One turn: draft, plan, run, count, take the tokens in.

        Rows about grammars have a turn of their own, so that a step that fails does not lose them.
        """
        verdicts, rows = self._take_grammars()
        if not verdicts and not rows and self.scheduler.has_work():
            self.speculator.draft()
            plan = self.scheduler.schedule()
            result = cut_at_ends(self.scheduler.requests, self.executor.execute(plan))
            self.counters.observe(plan, result)
            self.speculator.observe(plan, result)
            rows = self.scheduler.update(plan, result)
        self.counters.observe_finished(sum(row.finish_reason is not None for row in rows))
        return [*verdicts, *rows]

    def fail_all(self, error: str) -> list[RequestOutput]:
        """Ends every request with an error row: a step failed, and nobody's state can be trusted."""
        rows = [self.scheduler.fail(request, error) for request in list(self.scheduler.requests.values())]
        self.counters.observe_finished(len(rows))
        return rows

    def _take_grammars(self) -> tuple[list[RequestOutput], list[RequestOutput]]:
        """Starts the requests whose grammars are compiled.

        Returns the rows that answer `check_grammar`, and those of requests whose grammars are at fault.
        """
        verdicts: list[RequestOutput] = []
        rows: list[RequestOutput] = []
        for request_id, compiled in self.grammars.take_compiled():
            if request_id in self._grammar_checks:
                self._grammar_checks.remove(request_id)
                verdicts.append(_verdict(request_id, compiled))
                continue
            samples = self.scheduler.samples_of(request_id)
            if isinstance(compiled, GrammarError):
                rows.extend(self.scheduler.fail(request, f"guided: {compiled}") for request in samples)
                continue
            for request in samples:
                request.grammar = compiled.matcher()
                if request.inspect is not None:
                    fault = follow(request.grammar, request.token_ids[request.inspect.num_prompt_tokens :])
                    if fault is not None:
                        rows.append(self.scheduler.fail(request, f"guided: {fault}"))
            self.scheduler.start_samples(self.scheduler.samples_of(request_id))
        return verdicts, rows

    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        counters, drafts = self.counters, self.speculator.total
        return EngineStats(
            t_s=time.time(),
            num_requests_running=len(self.scheduler.running),
            num_requests_waiting=len(self.scheduler.waiting) + len(self.scheduler.held),
            kv_blocks_total=self.pool.num_total,
            kv_blocks_used=self.pool.num_used,
            kv_blocks_cached=self.pool.num_cached,
            prompt_tokens_total=counters.prompt_tokens_total,
            generation_tokens_total=counters.generation_tokens_total,
            requests_finished_total=counters.requests_finished_total,
            preemptions_total=self.scheduler.num_preemptions,
            steps_total=counters.steps_total,
            step_s_total=counters.step_s_total,
            drafts_total=drafts.drafts,
            drafted_total=drafts.drafted,
            accepted_total=drafts.accepted,
            accepted_per_position_total=list(drafts.accepted_per_position),
            drafted_per_position_total=list(drafts.drafted_per_position),
            draft_s_total=drafts.draft_s,
            verify_s_total=drafts.verify_s,
            speculation_enabled=self.speculator.enabled,
            speculation_gain=self.speculator.controller.gain(),
            proposers=self.speculator.stats(),
            prefix_cache_queries_total=self.scheduler.prefix_queries,
            prefix_cache_hits_total=self.scheduler.prefix_hits,
        )

    def progress(self) -> list[RequestProgress]:
        """How far the requests are that have no token yet, or lost their blocks."""
        scheduler = self.scheduler
        return progress_of(scheduler.running, scheduler.waiting, scheduler.queue_clock.cause)

    def _fault(
        self, request_id: str, prompt_token_ids: list[int], sampling: SamplingParams, n: int, pooling: str
    ) -> str | None:
        """Why a request cannot be served, or None."""
        if self.scheduler.samples_of(request_id):
            return f"request id {request_id!r} is already running; ids are unique"
        if not prompt_token_ids:
            return "the prompt is empty; give at least one token"
        if len(prompt_token_ids) > self.max_model_len - (not pooling):
            answer = "" if pooling else " with at least one for the answer"
            return (
                f"the prompt has {len(prompt_token_ids)} tokens, this engine holds {self.max_model_len}{answer}; "
                "shorten the prompt or load the model with a larger max_model_len"
            )
        outside = next((token for token in prompt_token_ids if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            return f"prompt token id {outside} lies outside the vocabulary of {self.vocab_size} tokens"
        if not 1 <= n <= MAX_SAMPLES:
            return f"n={n}: must lie between 1 and {MAX_SAMPLES}"
        if pooling not in POOLINGS:
            return f"pooling={pooling!r}: known are {', '.join(filter(None, POOLINGS))}"
        if pooling and (n > 1 or sampling.guided is not None or sampling.prompt_logprobs is not None):
            return f"pooling={pooling!r}: goes with neither n above 1, nor a grammar, nor prompt_logprobs"
        fault = sampling.token_id_fault(self.vocab_size)
        return None if fault is None else str(fault)


def _verdict(request_id: str, compiled: Outcome) -> RequestOutput:
    if isinstance(compiled, GrammarError):
        return RequestOutput(request_id, [], finish_reason=FinishReason.ERROR, error=f"guided: {compiled}")
    return RequestOutput(request_id, [], finish_reason=FinishReason.STOP)
