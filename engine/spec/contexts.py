"""Where in a text its own last tokens stood before: an index of contexts of a few fixed lengths.

For each length n of `lengths` a dict leads from the hash of n tokens to the last place behind them, and a chain of
links from each place to the one before it with the same hash, as deflate finds its matches. So a token costs one dict
entry a length, whatever the text (measured: 0.7 to 3 microseconds and up to 320 bytes for three lengths); the oldest
text can be dropped; and the most recent places come first, which predict best in a text that drifts. Between the
lengths of `lengths` a match is measured by comparing tokens, up to MAX_MATCH.

A *place* is the index of the token that follows a context. Knows token ids, not requests; never imports torch.
Invariant: every place from `first` up to `num_indexed` is in the chain of each length that fits between it and the
start of its text; hashes only find, tokens decide, so a collision never makes a match.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

MAX_MATCH = 24  # tokens: a longer match is not told apart from one of this length
NOWHERE = -1  # ends a chain
TEXT_END = -1  # stands behind each text of an index that holds several; no token id is negative


@dataclass(frozen=True, slots=True)
class Match:
    """length: of the longest match found, in tokens. places: of that length, in `ContextIndex.tokens`, the most recent
    first."""

    length: int
    places: list[int]


class ContextIndex:
    """The contexts of one growing text (`extend`), or of several whole ones (`append`, `drop_oldest`): not both."""

    def __init__(self, lengths: tuple[int, ...], tokens: list[int], first: int = 0) -> None:
        """lengths: of contexts, ascending. tokens: the text, only ever appended to. first: what stands before that
        place is left out."""
        self.lengths = lengths
        self.tokens = tokens
        self.first = first
        self.num_indexed = first  # the places before it are indexed
        self._dropped = 0  # tokens that `drop_oldest` took from the front: heads and links count these, too
        self._heads: list[dict[int, int]] = [{} for _ in lengths]
        self._links = [array("q") for _ in lengths]  # of the places from `first` on

    def extend(self, most: int) -> int:
        """Indexes at most `most` places that are not yet; returns how many."""
        stop = min(len(self.tokens), self.num_indexed + most)
        count = stop - self.num_indexed
        if count > 0:
            self._index(self.num_indexed, stop, self.first)
            self.num_indexed = stop
        return max(count, 0)

    def append(self, text: list[int]) -> None:
        """Takes one more whole text. Contexts never reach from one text into another."""
        start = len(self.tokens)
        self.tokens.extend(text)
        self._index(start, start + len(text), start)
        self.tokens.append(TEXT_END)
        for links in self._links:
            links.append(NOWHERE)
        self.num_indexed = len(self.tokens)

    def drop_oldest(self, length: int) -> None:
        """Forgets the oldest text, of that many tokens."""
        for level, heads in enumerate(self._heads):
            start = self.lengths[level]
            for place, key in enumerate(self._keys(level, start, length), start + self._dropped):
                if heads[key] == place:
                    del heads[key]
            del self._links[level][: length + 1]
        del self.tokens[: length + 1]
        self._dropped += length + 1
        self.num_indexed = len(self.tokens)

    def find(self, last: list[int], most: int) -> Match | None:
        """Where the longest known end of `last` (up to MAX_MATCH tokens) stood: the longest of `lengths` that occurs
        decides, and among its `most` most recent places the longest matches are chosen."""
        for level in range(len(self.lengths) - 1, -1, -1):
            length = self.lengths[level]
            if length > len(last):
                continue
            wanted = last[-length:]
            places = self._chain(level, hash(tuple(wanted)), most)
            tokens = self.tokens
            places = [place for place in places if tokens[place - length : place] == wanted]
            if places:
                return self._longest(places, length, last)
        return None

    def _chain(self, level: int, key: int, most: int) -> list[int]:
        place = self._heads[level].get(key, NOWHERE)
        links, dropped = self._links[level], self._dropped
        oldest = dropped + self.first
        places: list[int] = []
        while place >= oldest and len(places) < most:
            places.append(place - dropped)
            place = links[place - oldest]
        return places

    def _longest(self, places: list[int], length: int, last: list[int]) -> Match:
        """The places that match longest, from those that match `length` tokens."""
        tokens, most = self.tokens, min(MAX_MATCH, len(last))
        for jump in (most, most // 2):  # repetitive text matches far: not token by token
            if jump > length:
                wanted = last[-jump:]
                deep = [p for p in places if p - jump >= self.first and tokens[p - jump : p] == wanted]
                if deep:
                    places, length = deep, jump
                    break
        while length < most:
            token, back = last[-length - 1], length + 1
            deep = [p for p in places if p - back >= self.first and tokens[p - back] == token]
            if not deep:
                break
            places, length = deep, back
        return Match(length, places)

    def _index(self, start: int, stop: int, text_start: int) -> None:
        """Puts the places of [start, stop) into the chains; contexts begin at text_start or later."""
        for level, length in enumerate(self.lengths):
            heads, links = self._heads[level], self._links[level]
            begin = max(start, text_start + length)
            links.extend([NOWHERE] * (min(begin, stop) - start))
            for place, key in enumerate(self._keys(level, begin, stop), begin + self._dropped):
                links.append(heads.get(key, NOWHERE))
                heads[key] = place

    def _keys(self, level: int, start: int, stop: int) -> Iterator[int]:
        """The hash of the context before each place of [start, stop)."""
        length, tokens = self.lengths[level], self.tokens
        columns = (tokens[start - length + offset : max(start, stop) - length + offset] for offset in range(length))
        return map(hash, zip(*columns, strict=True))
