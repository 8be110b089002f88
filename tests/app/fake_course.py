"""The course that the fake engine tells of a request which says QUEUED: it waits for blocks behind two others, its
prompt is computed in four chunks, and it loses its blocks once. PATIENT: four times as slowly."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from engine.core.outputs import Preemption, PrefillChunk, QueueWait, RequestProgress, RequestTiming

WAIT_S, PREFILL_S = 0.5, 0.8
NUM_CHUNKS = 4


@dataclass(frozen=True)
class Course:
    """Of one request; times on the engine's two clocks."""

    request_id: str
    arrival_t: float
    arrival_s: float
    num_prompt_tokens: int
    pace: float = 1.0  # how many times as long it takes

    @property
    def wait_s(self) -> float:
        return WAIT_S * self.pace

    @property
    def prefill_s(self) -> float:
        return PREFILL_S * self.pace

    def started(self, now: float) -> bool:
        """Whether it gives tokens by now."""
        return now - self.arrival_s >= self.wait_s + self.prefill_s

    def progress(self, now: float) -> RequestProgress | None:
        """What is told of it before."""
        since, total = now - self.arrival_s, self.num_prompt_tokens
        if since < self.wait_s:
            return RequestProgress(self.request_id, "waiting", total=total, ahead=2, cause="blocks")
        if self.started(now):
            return None
        done = int((since - self.wait_s) / self.prefill_s * NUM_CHUNKS) * total // NUM_CHUNKS
        return RequestProgress(self.request_id, "prefill", done=done, total=total)

    def timing(self, now: float) -> RequestTiming:
        """What is told at its end."""
        if now - self.arrival_s < self.wait_s:  # it was ended before anything was computed
            return RequestTiming(arrival_t=self.arrival_t, end_s=now - self.arrival_s, wait=QueueWait(2, 7))
        step = self.prefill_s / NUM_CHUNKS
        ends = [self.wait_s + step * (index + 1) for index in range(NUM_CHUNKS)]
        part = self.num_prompt_tokens // NUM_CHUNKS
        decode_s = max(0.0, now - self.arrival_s - self.wait_s - self.prefill_s)
        lost = self.wait_s + self.prefill_s + decode_s / 4
        return RequestTiming(
            queue_s=self.wait_s,
            prefill_s=self.prefill_s,
            decode_s=decode_s,
            arrival_t=self.arrival_t,
            end_s=now - self.arrival_s,
            wait=QueueWait(num_ahead=2, num_running=7, blocks_s=self.wait_s),
            chunks=[
                PrefillChunk(
                    end - step, end, part, part * (index + 1) if index < NUM_CHUNKS - 1 else self.num_prompt_tokens
                )
                for index, end in enumerate(ends)
            ],
            preemptions=[Preemption(lost, self.num_prompt_tokens + 3, lost + decode_s / 4)],
            decode_steps=9,
            others_mean=7.0,
            others_max=7,
            others_prompt_tokens=300,
        )


def course_of(request_id: str, prompt: str, num_prompt_tokens: int) -> Course | None:
    """Of a request that arrives now, if it says so."""
    pace = 4.0 if "PATIENT" in prompt else 1.0
    return Course(request_id, time.time(), time.monotonic(), num_prompt_tokens, pace) if "QUEUED" in prompt else None


def progress_of(courses: Iterable[Course | None]) -> list[RequestProgress]:
    """What is told now of those that have one."""
    now = time.monotonic()
    return [progress for each in courses if each is not None and (progress := each.progress(now)) is not None]
