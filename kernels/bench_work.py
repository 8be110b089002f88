"""What `kernels.bench` times of products, the paged cache and scores, and the table of all that it times.

Owns the layouts that these ops work on. Knows no clock and no backend. Invariant: as in `kernels.bench_shapes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.bench_shapes import BATCHES, SIMPLE, Place, Work, on_activations
from kernels.group_quant import GroupQuant
from kernels.ops import AttentionMetadata, KVCache, Ops, accumulation_dtype
from kernels.pages import prefer_huge_pages
from kernels.roofs import Call

BLOCK_SIZE = 16
MOST_LOGIT_ROWS = 64  # more rows of a step have no logits
PREFILL_ROWS = 128  # from so many on they are one request's
EXPERTS, TOP_K = 8, 2


# --- products ---


def _linear(place: Place, rows: int) -> Iterator[Work]:
    for name, (outputs, inputs) in place.shape.matrices().items():
        logits = name == "head"
        if logits and rows > MOST_LOGIT_ROWS:
            continue
        weights = _clones(place, place.normal(outputs, inputs))
        kind = accumulation_dtype(place.dtype) if logits else place.dtype

        def make(ops: Ops, weights: Sequence[Tensor] = weights, kind: torch.dtype = kind) -> Sequence[Call]:
            x, out = _rows(place, ops.row_alignment, rows, weights[0], kind)
            return [functools.partial(ops.linear, out, x, weight, None) for weight in weights]

        def beside(weights: Sequence[Tensor] = weights) -> Sequence[Call]:
            x, out = _rows(place, 1, rows, weights[0], place.dtype)
            return [functools.partial(torch.mm, x, weight.t(), out=out) for weight in weights]

        moved = weights[0].nbytes + rows * (inputs * place.dtype.itemsize + outputs * kind.itemsize)
        yield Work("linear", f"{name} {outputs} x {inputs}", rows, moved, 2 * rows * outputs * inputs, make, beside)


def _group_linear(place: Place, rows: int) -> Iterator[Work]:
    for name, (outputs, inputs) in place.shape.matrices().items():
        logits = name == "head"
        if logits and rows > MOST_LOGIT_ROWS:
            continue
        bits = 8 if logits else 4
        weight = codes(place, (outputs, inputs), bits)
        kind = accumulation_dtype(place.dtype) if logits else place.dtype

        def make(ops: Ops, weight: GroupQuant = weight, kind: torch.dtype = kind) -> Sequence[Call]:
            x, out = _rows(place, ops.row_alignment, rows, weight, kind)
            copies = [_cloned(weight).with_activation_bits(8) for _ in range(place.copies(weight.nbytes))]
            prepared = [ops.prepare_group_quant(copy) for copy in copies]
            return [functools.partial(ops.group_linear, out, x, one, None) for one in prepared]

        moved = weight.nbytes + rows * (inputs * place.dtype.itemsize + outputs * kind.itemsize)
        label = f"{name} {outputs} x {inputs}, {bits} bits"
        yield Work("group_linear", label, rows, moved, 2 * rows * outputs * inputs, make)


def _rows(
    place: Place, alignment: int, rows: int, weight: Tensor | GroupQuant, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x and out of a product, padded as its backend wants them."""
    padded, (outputs, inputs) = -(-rows // alignment) * alignment, weight.shape
    return place.normal(padded, inputs), torch.empty(padded, outputs, dtype=kind, device=place.device)


def codes(place: Place, shape: tuple[int, int], bits: int) -> GroupQuant:
    """Random weights in codes: fp16 scales and minima, as GGUF's Q4_1 has them."""
    outputs, inputs = shape
    groups = -(-inputs // place.shape.group_size)
    held = place.integers(256, outputs, -(-inputs * bits // 8)).to(torch.uint8)
    scale = (torch.rand(outputs, groups, device=place.device) + 0.5).div(8 << bits).half()
    minimum = -scale * (1 << bits - 1)
    return GroupQuant(shape, bits, place.shape.group_size, held, scale, minimum)


def _cloned(weight: GroupQuant) -> GroupQuant:
    return weight.with_tensors({name: tensor.clone() for name, tensor in weight.tensors().items()})


def _clones(place: Place, tensor: Tensor) -> list[Tensor]:
    return [tensor, *(tensor.clone() for _ in range(place.copies(tensor.nbytes) - 1))]


def _group_embedding(place: Place, rows: int) -> Work:
    shape = place.shape
    table = codes(place, (shape.vocabulary, shape.hidden), 8)
    ids = [place.integers(shape.vocabulary, rows) for _ in range(BATCHES)]
    out = torch.empty(rows, shape.hidden, dtype=place.dtype, device=place.device)

    def make(ops: Ops) -> Sequence[Call]:
        prepared = ops.prepare_group_quant(table)
        return [functools.partial(ops.group_embedding, out, some, prepared) for some in ids]

    moved = rows * table.nbytes / shape.vocabulary + out.nbytes
    return Work("group_embedding", f"{shape.vocabulary} x {shape.hidden}, 8 bits", rows, moved, 0, make)


def _mixture(place: Place, rows: int) -> Iterator[Work]:
    if rows > MOST_LOGIT_ROWS:
        return
    shape, width = place.shape, max(16, place.shape.inner // 4)
    router = place.normal(EXPERTS, shape.hidden)
    wide, narrow = place.normal(2 * width, shape.hidden), place.normal(shape.hidden, width)
    num = -(-place.copies(wide.nbytes + narrow.nbytes) // EXPERTS)
    gate_up = [[wide.clone() for _ in range(num)] for _ in range(EXPERTS)]
    down = [[narrow.clone() for _ in range(num)] for _ in range(EXPERTS)]

    def make(ops: Ops) -> Sequence[Call]:
        x = place.normal(-(-rows // ops.row_alignment) * ops.row_alignment, shape.hidden)
        out = torch.empty_like(x)
        sets = [([one[copy] for one in gate_up], [one[copy] for one in down]) for copy in range(num)]
        return [functools.partial(ops.mixture_mlp, out, x, router, *weights, TOP_K, True) for weights in sets]

    one = gate_up[0][0].nbytes + down[0][0].nbytes
    moved = min(EXPERTS, rows * TOP_K) * one + router.nbytes
    operations = 2 * rows * TOP_K * 3 * width * shape.hidden
    yield Work("mixture_mlp", f"{EXPERTS} experts of {width}", rows, moved, operations, make)


# --- the paged cache ---


def _paged(place: Place, lengths: Sequence[int], rows_each: int) -> tuple[AttentionMetadata, int]:
    """Requests of so many keys, of which the last rows_each are the step's rows; and how many blocks they need."""
    most = -(-max(lengths) // BLOCK_SIZE)
    order = (torch.randperm(most * len(lengths)) + 1).view(len(lengths), most)
    positions = torch.cat([torch.arange(length - rows_each, length) for length in lengths])
    owner = torch.arange(len(lengths)).repeat_interleave(rows_each)
    slots = order[owner, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = [rows_each * request for request in range(len(lengths) + 1)]
    metadata = AttentionMetadata(
        positions=positions.to(place.device),
        slot_mapping=slots.to(place.device),
        block_tables=order.to(place.device, torch.int32),
        query_start_loc=starts,
        query_starts=torch.tensor(starts, dtype=torch.int32, device=place.device),
        row_request=owner.to(place.device, torch.int32),
    )
    return metadata, order.numel() + 1


def _caches(place: Place, blocks: int) -> list[KVCache]:
    """So many that no hardware cache holds them, in one pool whose pages are an engine's."""
    size = (2, blocks, place.shape.kv_heads, BLOCK_SIZE, place.shape.head_dim)
    both = place.normal(*size)
    pool = both.new_empty((place.copies(both.nbytes), *size))
    prefer_huge_pages(pool)
    pool.copy_(both)
    return [KVCache(keys, values) for keys, values in pool]


def _rotary(place: Place, rows: int) -> Iterator[Work]:
    shape = place.shape
    metadata, blocks = _paged(place, [1000] * rows, 1) if rows < PREFILL_ROWS else _paged(place, [rows], rows)
    cache, qkv = _caches(place, blocks)[0], place.normal(rows, shape.qkv)
    angles = torch.rand(4096, shape.head_dim // 2, device=place.device, dtype=accumulation_dtype(place.dtype))
    cos, sin = angles.cos(), angles.sin()

    def call(ops: Ops) -> None:
        ops.rotary_kv_write(qkv, cos, sin, cache, metadata, shape.heads)

    parts = 2 * shape.heads + 5 * shape.kv_heads  # queries and keys turned in place, keys and values written once more
    moved = rows * shape.head_dim * (parts * place.dtype.itemsize + cos.itemsize)
    yield on_activations(
        "rotary_kv_write", f"{shape.heads} + 2 x {shape.kv_heads} of {shape.head_dim}", rows, moved, call
    )


def _attention(place: Place, rows: int, contexts: Sequence[int]) -> Iterator[Work]:
    """Rows of as many requests; 8 also as drafts of one, and many as a chunk of a prompt."""
    for context in contexts:
        if rows >= PREFILL_ROWS:
            yield _attend(place, f"a chunk, {max(rows, context)} keys", [max(rows, context)], rows)
            continue
        yield _attend(place, f"decode, {context} keys", [context] * rows, 1)
        if rows == 8:
            yield _attend(place, f"verify 8, {context} keys", [context], rows)


def _attend(place: Place, label: str, lengths: Sequence[int], rows_each: int) -> Work:
    shape, rows = place.shape, rows_each * len(lengths)
    metadata, blocks = _paged(place, lengths, rows_each)
    caches, qkv = _caches(place, blocks), place.normal(rows, shape.qkv)
    width = shape.heads * shape.head_dim
    out, scale = qkv.new_empty(rows, width), shape.head_dim**-0.5

    def make(ops: Ops) -> Sequence[Call]:
        return [functools.partial(ops.paged_attention, out, qkv, cache, metadata, scale) for cache in caches]

    def beside() -> Sequence[Call]:
        """Keys and values without pages; rows that see all keys, but those of a chunk, which see what precedes them."""
        size = (len(lengths), shape.kv_heads, max(lengths), shape.head_dim)
        queries = qkv[:, :width].reshape(len(lengths), rows_each, shape.heads, shape.head_dim).transpose(1, 2)
        pairs = [(place.normal(*size), place.normal(*size)) for _ in range(len(caches))]
        mask = None if rows_each == 1 else metadata.positions.unsqueeze(1) >= torch.arange(size[2], device=place.device)
        attend = functools.partial(scaled_dot_product_attention, queries, attn_mask=mask, enable_gqa=True)
        return [functools.partial(attend, keys, values) for keys, values in pairs]

    vector = shape.head_dim * place.dtype.itemsize
    moved = sum(lengths) * 2 * shape.kv_heads * vector + 2 * rows * shape.heads * vector
    seen = int((metadata.positions + 1).sum())
    return Work("paged_attention", label, rows, moved, 4 * width * seen, make, beside)


# --- scores ---


def _soft_cap(place: Place, rows: int) -> Work:
    x = place.scores(rows)
    return on_activations(
        "soft_cap", f"{place.shape.vocabulary}", rows, 2 * x.nbytes, lambda ops: ops.soft_cap(x, 30.0)
    )


def _peaks(place: Place, rows: int) -> Work:
    scores = place.scores(rows)
    values, ids = scores.new_empty(rows), place.integers(1, rows)
    return on_activations(
        "peaks", f"{scores.shape[1]}", rows, scores.nbytes, lambda ops: ops.peaks(values, ids, scores)
    )


def _filter(place: Place, rows: int) -> Work:
    scores = place.scores(rows)
    out = torch.empty_like(scores)
    settings = torch.tensor([[0.7, 50, 0.9, 0.02]] * rows, dtype=torch.float64, device=place.device)
    label = f"{scores.shape[1]}, top 50, 0.9, 0.02"
    return on_activations(
        "filter_scores", label, rows, 2 * scores.nbytes, lambda ops: ops.filter_scores(out, scores, settings)
    )


def _log_probabilities(place: Place, rows: int) -> Work:
    scores, ids, num = place.scores(rows), place.integers(10, rows), 5
    out, top_values = scores.new_empty(rows), scores.new_empty(rows, num)
    top_ids = place.integers(1, rows, num)

    def call(ops: Ops) -> None:
        ops.log_probabilities(out, top_values, top_ids, scores, ids)

    return on_activations("log_probabilities", f"{scores.shape[1]}, top {num}", rows, scores.nbytes, call)


def _addresses(place: Place, rows: int) -> Tensor:
    return torch.tensor([[row, 100 + row, 0, 0] for row in range(rows)], device=place.device)


def _draw(place: Place, rows: int) -> Work:
    scores, out, addresses = place.scores(rows), place.integers(1, rows), _addresses(place, rows)
    return on_activations(
        "draw", f"{scores.shape[1]}", rows, scores.nbytes, lambda ops: ops.draw(out, scores, addresses)
    )


def _requests(place: Place, rows: int) -> Tensor:
    """Of eight rows each, or one row."""
    each = 8 if rows % 8 == 0 else 1
    return torch.arange(0, rows + 1, each, dtype=torch.int32, device=place.device)


def _verify_match(place: Place, rows: int) -> Iterator[Work]:
    drawn, starts = place.integers(place.shape.vocabulary, rows), _requests(place, rows)
    out, accepted = torch.empty_like(drawn), torch.empty_like(starts[1:])

    def call(ops: Ops) -> None:
        ops.verify_match(out, accepted, drawn, drawn, starts)

    yield on_activations("verify_match", f"{len(starts) - 1} requests", rows, 3 * drawn.nbytes, call)


def _verify_rejection(place: Place, rows: int) -> Iterator[Work]:
    if rows > MOST_LOGIT_ROWS:
        return
    scores, near, starts = place.scores(rows), place.scores(rows), _requests(place, rows)
    drafts, addresses = scores.argmax(1), _addresses(place, rows)
    out, accepted = torch.empty_like(drafts), torch.empty_like(starts[1:])

    def call(ops: Ops) -> None:
        ops.verify_rejection(out, accepted, scores, near, drafts, starts, addresses)

    label = f"{len(starts) - 1} requests, {scores.shape[1]}"
    yield on_activations("verify_rejection", label, rows, 2 * scores.nbytes, call)


_SCORES = {
    "soft_cap": _soft_cap,
    "peaks": _peaks,
    "filter_scores": _filter,
    "log_probabilities": _log_probabilities,
    "draw": _draw,
}

_SEVERAL = {
    "linear": _linear,
    "group_linear": _group_linear,
    "mixture_mlp": _mixture,
    "rotary_kv_write": _rotary,
    "verify_match": _verify_match,
    "verify_rejection": _verify_rejection,
}
TIMED = (*SIMPLE, "group_embedding", *_SCORES, *_SEVERAL, "paged_attention")


def works(place: Place, ops: Sequence[str], rows: int, contexts: Sequence[int]) -> Iterator[Work]:
    """Everything to time of `ops` for a step of so many rows. contexts: keys that a row of attention sees."""
    for op in ops:
        if op == "paged_attention":
            yield from _attention(place, rows, contexts)
        elif op in _SEVERAL:
            yield from _SEVERAL[op](place, rows)
        elif op == "group_embedding":
            yield _group_embedding(place, rows)
        elif op in _SCORES:
            if rows <= MOST_LOGIT_ROWS:
                yield _SCORES[op](place, rows)
        else:
            yield SIMPLE[op](place, rows)
