"""The blocks of a fake engine: a real scheduler over a hundred blocks of 16, fed with the requests that it answers.

A request grows by a token each 50 ms for as long as it is being answered. One that is not adaptive has three drafts
proposed with each token, of which none is ever right, so that blocks are reserved ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from engine import protocol
from engine.core.block_map import BlockWatch
from engine.core.block_pool import BlockPool
from engine.core.draft_room import DraftRoom
from engine.core.kv_cache_manager import KVCacheManager
from engine.core.prefix import PrefixHasher
from engine.core.request import Request
from engine.core.room import room_for
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.speculation import Draft
from engine.core.step import StepResult

TOKEN_S = 0.05
NUM_BLOCKS = 100
BLOCK_SIZE = 16


class FakeBlocks:
    def __init__(self) -> None:
        kv = KVCacheManager(BlockPool(NUM_BLOCKS + 1), BLOCK_SIZE, PrefixHasher("fake", BLOCK_SIZE))
        self.scheduler = Scheduler(kv, 8, 512, max_sampled_rows=64)
        self.watch = BlockWatch(self.scheduler)
        self.replies: list[protocol.FromEngine] = []
        self.next_s = 0.0

    def handle(self, message: protocol.ToEngine) -> None:
        match message:
            case protocol.WatchBlocks():
                print(f"watch blocks afresh={message.afresh}", flush=True)
                self.watch.renew(message.seconds, afresh=message.afresh)
            case protocol.AskRoom():
                room = room_for(
                    self.scheduler,
                    message.prompt_token_ids,
                    message.num_tokens,
                    message.max_num_tokens,
                    message.cache_salt,
                )
                self.replies.append(protocol.RoomAnswer(message.ask_id, room))

    def turn(self, answered: Mapping[str, protocol.AddRequest]) -> Iterator[protocol.FromEngine]:
        """Follows what is being answered now; yields what is to be sent."""
        if time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + TOKEN_S
            for request_id in [one for one in self.scheduler.requests if one not in answered]:
                self.scheduler.abort(request_id)
            for request_id, asked in answered.items():
                if request_id not in self.scheduler.requests:
                    self.scheduler.add(self.request(asked))
            self.step(answered)
        yield from self.replies
        self.replies.clear()
        if (frame := self.watch.due()) is not None:
            yield protocol.BlockMap(frame)

    def request(self, asked: protocol.AddRequest) -> Request:
        return Request(
            asked.request_id, list(asked.prompt_token_ids), SamplingParams(), 0, frozenset(), 1000, cache_salt=""
        )

    def step(self, answered: Mapping[str, protocol.AddRequest]) -> None:
        for request in self.scheduler.decoding():
            if not answered[request.request_id].speculation.adaptive:
                reserved = DraftRoom(self.scheduler).reserve(request, request.num_tokens + 3)
                request.draft = Draft((7, 7, 7)) if reserved else Draft()
        plan = self.scheduler.schedule()
        drawn = {share.request_id: (5,) for share in plan.requests if share.samples}
        self.scheduler.update(plan, StepResult(drawn, 0.0, num_accepted=dict.fromkeys(drawn, 0)))
        self.scheduler.kv.check()
