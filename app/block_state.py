"""All KV blocks of one engine as of one moment: built from an engine's frames, read as one cell a block.

Owns the layers of frames and what is derived from them: who holds a block, how full it is, whether it is shared. Knows
no engine process, no topic, no history. Invariant: after a frame was laid over the frames before it, this is what the
engine's pool and tables were when it made that frame; a frame that does not follow is refused.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.core.block_ledger import NAME_BYTES, SHORT_HASH_BYTES
from engine.core.block_map import BlockFrame, BlockOwner, BlockSpan, TableChange

# A cell: its state in bits 0 and 1, then these.
FREE, CACHED, HELD = 0, 1, 2
AHEAD = 1 << 2  # reserved for drafts: nothing certain is written there
GROUP_SHIFT, GROUP_MASK = 3, 0xF
FILL_SHIFT, FILL_MASK = 7, 0x3FF  # tokens in a last, partial block; 0: it is full, or empty
REFS_SHIFT, REFS_MASK = 17, 0xFF
NO_OWNER = -1
MAX_SERIALS = 20_000

Numbers = npt.NDArray[Any]
OwnerKey = tuple[str, int]


class OutOfOrder(Exception):
    """A frame tells what has changed since one that is not here."""


class OwnerNumbers:
    """A number for each request that ever held blocks, given once, so that it has the same colour in every frame."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[OwnerKey, int] = OrderedDict()
        self._next = 0

    def of(self, key: OwnerKey) -> int:
        """The number of a request's sample."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            if len(self._numbers) > MAX_SERIALS:
                self._numbers.popitem(last=False)
        return number


@dataclass(slots=True)
class Table:
    """One block table: all its ids, and how many of the first ones are no longer held."""

    ids: array[int] = field(default_factory=lambda: array("I"))
    passed: int = 0

    def take(self, change: TableChange) -> None:
        if change.start > len(self.ids):
            raise OutOfOrder
        del self.ids[change.start :]
        self.ids.frombytes(change.block_ids)
        self.passed = change.passed

    def numbers(self) -> Numbers:
        return np.array(self.ids, dtype=np.int64)


@dataclass(slots=True)
class Holder:
    """A request that holds blocks. number: its own, for good."""

    number: int
    told: BlockOwner
    tables: list[Table]


@dataclass(slots=True)
class Cells:
    """One code and one owner's number for each block; of several owners, the one that came first."""

    codes: Numbers
    owners: Numbers

    @property
    def refs(self) -> Numbers:
        return (self.codes >> REFS_SHIFT) & REFS_MASK


class BlockState:
    """The newest frame, and all that the ones before it told."""

    def __init__(self, numbers: OwnerNumbers) -> None:
        self.frame: BlockFrame | None = None
        self.holders: dict[OwnerKey, Holder] = {}
        self._numbers = numbers
        self._names = bytearray()
        self._hits = array("I")
        self._touched = array("f")

    def apply(self, frame: BlockFrame, *, in_order: bool = False) -> None:
        """Lay a frame over what is known. Raises OutOfOrder; in_order: the caller knows that it follows."""
        if frame.number == 1:
            self.holders = {}
            self._names = bytearray(NAME_BYTES * frame.num_blocks)
            self._hits = array("I", bytes(4 * frame.num_blocks))
            self._touched = array("f", bytes(4 * frame.num_blocks))
        elif self.frame is None or not (in_order or frame.number == self.frame.number + 1):
            raise OutOfOrder
        for span in frame.spans:
            self._take_span(span)
        held, self.holders = self.holders, {}
        for owner in frame.owners:
            key = (owner.request_id, owner.index)
            holder = held.get(key) or Holder(self._numbers.of(key), owner, [Table() for _ in owner.tables])
            holder.told = owner
            for table, change in zip(holder.tables, owner.tables, strict=True):
                table.take(change)
            self.holders[key] = holder
        self.frame = frame

    def whole(self) -> BlockFrame:
        """The state as one frame that tells everything."""
        frame = self.known
        owners = [
            BlockOwner(
                request_id=holder.told.request_id,
                index=holder.told.index,
                num_prompt_tokens=holder.told.num_prompt_tokens,
                num_tokens=holder.told.num_tokens,
                num_computed_tokens=holder.told.num_computed_tokens,
                num_cached_tokens=holder.told.num_cached_tokens,
                tables=[TableChange(table.passed, 0, table.ids.tobytes()) for table in holder.tables],
            )
            for holder in self.holders.values()
        ]
        span = BlockSpan(0, bytes(self._names), self._hits.tobytes(), self._touched.tobytes())
        told = {name: getattr(frame, name) for name in BlockFrame.__dataclass_fields__}
        return BlockFrame(**(told | {"number": 1, "owners": owners, "spans": [span]}))

    @property
    def known(self) -> BlockFrame:
        assert self.frame is not None, "a state is asked only after its first frame"
        return self.frame

    def cells(self) -> Cells:
        """Every block, the null block as a free one."""
        frame, size = self.known, self.known.block_size
        names = np.frombuffer(bytes(self._names), dtype=np.uint8).reshape(-1, NAME_BYTES)
        named = names[:, NAME_BYTES - 1] == 1
        codes = np.where(named, CACHED | (names[:, SHORT_HASH_BYTES].astype(np.int64) << GROUP_SHIFT), FREE)
        owners = np.full(frame.num_blocks, NO_OWNER, dtype=np.int64)
        refs = np.zeros(frame.num_blocks, dtype=np.int64)
        for holder in sorted(self.holders.values(), key=lambda one: -one.number):
            computed = holder.told.num_computed_tokens
            full, fill = divmod(computed, size)
            for group, table in enumerate(holder.tables):
                ids = table.numbers()
                held = ids[table.passed :]
                codes[held] = HELD | (group << GROUP_SHIFT)
                owners[held] = holder.number
                refs[held] += 1
                codes[ids[max(table.passed, full + (fill > 0)) :]] |= AHEAD
                if fill and table.passed <= full < len(ids):
                    codes[ids[full]] |= fill << FILL_SHIFT
        codes |= np.minimum(refs, REFS_MASK) << REFS_SHIFT
        codes[0] = FREE
        return Cells(codes, owners)

    def detail(self, block_id: int) -> dict[str, Any]:
        """What is known of one block."""
        frame = self.known
        name = self._names[NAME_BYTES * block_id : NAME_BYTES * (block_id + 1)]
        named = name[-1] == 1
        places = [
            (holder, group, at)
            for holder in self.holders.values()
            for group, table in enumerate(holder.tables)
            for at in _places(table, block_id)
        ]
        state = "held" if places else "cached" if named else "free"
        group = places[0][1] if places else name[SHORT_HASH_BYTES] if named else None
        touched = self._touched[block_id]
        return {
            "id": block_id,
            "state": state,
            "group": group,
            "hash": bytes(name[:SHORT_HASH_BYTES]).hex() if named else None,
            "age_s": max(0.0, frame.now_s - touched) if touched > 0 else None,
            "hits": self._hits[block_id] if named else None,
            "tokens": self._tokens(places[0][0], places[0][2]) if places else frame.block_size if named else 0,
            "refs": len(places),
            "owners": [
                {"id": holder.number, **_names_of(holder), "place": at, "places": len(holder.tables[group].ids)}
                for holder, group, at in places
            ],
        }

    def table(self, number: int) -> dict[str, Any] | None:
        """An owner's block tables, in the order of its text; None for one that holds nothing."""
        holder = next((one for one in self.holders.values() if one.number == number), None)
        if holder is None:
            return None
        tables = [{"passed": table.passed, "blocks": list(table.ids[table.passed :])} for table in holder.tables]
        return {"id": number, **_names_of(holder), "tables": tables}

    def _tokens(self, holder: Holder, place: int) -> int:
        size = self.known.block_size
        return max(0, min(size, holder.told.num_computed_tokens - place * size))

    def _take_span(self, span: BlockSpan) -> None:
        count = len(span.names) // NAME_BYTES
        self._names[NAME_BYTES * span.first : NAME_BYTES * (span.first + count)] = span.names
        self._hits[span.first : span.first + count] = array("I", span.hits)
        self._touched[span.first : span.first + count] = array("f", span.touched_s)


def _places(table: Table, block_id: int) -> list[int]:
    """Where a block stands in a table: at most once, as long as it is held."""
    try:
        return [table.ids.index(block_id, table.passed)]
    except ValueError:
        return []


def _names_of(holder: Holder) -> dict[str, Any]:
    return {"request_id": holder.told.request_id, "index": holder.told.index}
