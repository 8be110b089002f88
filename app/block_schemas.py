"""Bodies of /api/engines/{id}/blocks and /fit.

Owns their names. Knows nothing of how they are filled.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.dialects.openai_schemas import ChatMessage
from app.schema_base import Incoming, Outgoing, Text

BlockWord = Literal["free", "cached", "held"]


class BlockCounts(Outgoing):
    """free + cached + held = total. cached: nobody holds it, its contents can still be found. shared: held by several.
    partial: last blocks that are not full; empty_slots: the token places left in them. ahead: reserved for drafts,
    nothing certain written yet."""

    total: int
    free: int
    cached: int
    held: int
    shared: int
    partial: int
    empty_slots: int
    ahead: int
    num_running: int
    num_waiting: int
    evictions_total: int
    preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int


class BlockRates(Outgoing):
    """Over the last minute, or as much of it as somebody watched. None: nothing to compare yet."""

    evictions_per_min: float | None = None
    preemptions_per_min: float | None = None


class BlockOwner(Outgoing):
    """A request (of several samples: one) that holds blocks. id: its number in the cells, the same in every view."""

    id: int
    request_id: str
    index: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    blocks: int
    shared: int
    ahead: int


class BlockPlace(Outgoing):
    """Where a block stands in an owner's table, counted from 0."""

    id: int
    request_id: str
    index: int
    place: int
    places: int


class BlockDetail(Outgoing):
    """One block. tokens: written and certain. hash: the first four bytes of its name, None where it cannot be found by
    one. hits: how often it was found since it has that name. age_s: since it was last taken, found or given back."""

    id: int
    state: BlockWord
    group: int | None
    hash: str | None
    age_s: float | None
    hits: int | None
    tokens: int
    refs: int
    owners: list[BlockPlace]


class BlockTable(Outgoing):
    """The blocks of one KV group in the order of the text. passed: leading ones that the window has given back."""

    passed: int
    blocks: list[int]


class OwnerTables(Outgoing):
    id: int
    request_id: str
    index: int
    tables: list[BlockTable]


class BlockMapView(Outgoing):
    """All blocks at one moment.

    runs: flat quadruples: first block, how many, code, owner's id (-1: nobody's). A code has the state in bits 0 and 1
    (0 free, 1 cached, 2 held), bit 2 for blocks reserved for drafts, the KV group from bit 3 on (4 bits), the tokens
    of a partial last block from bit 7 on (10 bits, 0: full), the number of owners from bit 17 on (8 bits, 255: or
    more). kind "change" is sent on the live topic only: its runs are laid over the view with the number `after`.
    windows: of each KV group, 0: it sees the whole text. block, table: where they were asked for; no runs are sent
    then.
    """

    kind: Literal["full", "change"] = "full"
    after: int | None = None
    engine_run_id: str
    number: int
    t: float
    num_blocks: int
    block_size: int
    windows: list[int]
    counts: BlockCounts
    rates: BlockRates
    owners: list[BlockOwner]
    runs: list[int] | None = None
    block: BlockDetail | None = None
    table: OwnerTables | None = None


class BlockHistoryView(Outgoing):
    """The counts over time, of the moments when somebody watched. t: seconds since the epoch."""

    t: list[float]
    columns: dict[str, list[int]]


class FitBody(Incoming):
    """A prompt: its text, a chat, or only its number of tokens; and how much answer it wants."""

    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    num_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=100_000_000)] = 256
    cache_salt: Text = ""


class PromptFit(Outgoing):
    """Whether a prompt would find room now.

    fits: "yes": it would start at once, with room to its last token; "prompt_only": it would start, its answer may have
    to wait for blocks; "not_now": it would wait; "never": it is larger than the engine. reasons: "context"
    (max_model_len), "pool" (more blocks than there are), "sequences" (max_num_seqs run), "queue" (others wait before
    it), "blocks", "blocks_for_answer". blocks_needed: to its last token (at most max_model_len), without those that
    others hold already; blocks_free: free and cached ones, without the engine's reserve for those that run.
    num_cached_tokens: of the prompt, in the cache; None where only its length is given.
    """

    fits: Literal["yes", "prompt_only", "not_now", "never"]
    reasons: list[str]
    num_tokens: int
    max_num_tokens: int
    num_cached_tokens: int | None
    blocks_needed: int
    blocks_needed_for_prompt: int
    blocks_shared: int
    blocks_free: int
    blocks_reserved: int
    blocks_total: int
    block_size: int
    max_model_len: int
    num_running: int
    max_num_seqs: int
    num_waiting: int
