"""What the store of finished responses keeps, and what it lets go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.dialects.response_store import ResponseStore, StoredResponse

steps = st.lists(
    st.tuples(st.sampled_from(["put", "get", "pop"]), st.sampled_from("abcdef"), st.integers(0, 12)), max_size=40
)


def of(size: int) -> StoredResponse:
    return StoredResponse(b"b" * (size // 2), b"c" * (size - size // 2))


@given(steps=steps, max_count=st.integers(1, 4), max_bytes=st.integers(1, 20))
def test_it_keeps_within_its_bounds_what_was_used_last(
    steps: list[tuple[str, str, int]], max_count: int, max_bytes: int
) -> None:
    store = ResponseStore(max_count, max_bytes)
    kept: dict[str, int] = {}  # least recently used first
    for what, name, size in steps:
        if what == "put":
            assert store.put(name, of(size)) == (size <= max_bytes)
            if size <= max_bytes:
                kept.pop(name, None)
                kept[name] = size
                while len(kept) > max_count or sum(kept.values()) > max_bytes:
                    del kept[next(iter(kept))]
            continue
        found = store.get(name) if what == "get" else store.pop(name)
        assert (None if found is None else found.num_bytes) == kept.get(name)
        if name in kept:
            kept[name] = kept.pop(name)
            if what == "pop":
                del kept[name]
        assert (len(store), store.num_bytes) == (len(kept), sum(kept.values()))
    assert {name for name in "abcdef" if store.get(name) is not None} == set(kept)
