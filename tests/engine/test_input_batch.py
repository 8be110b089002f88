"""A plan as tensors: what every KV group reads and writes, and what it must not see."""

from __future__ import annotations

import pytest
import torch

from engine.core.kv_groups import KVGroup
from engine.core.sampling_params import SamplingParams
from engine.core.step import ScheduledRequest, SchedulerOutput
from engine.runner.input_batch import InputBatch
from engine.runner.recorded_step import StepShapes
from engine.runner.step_buffer import StepBuffer

SIZE = 4
GROUPS = (KVGroup((0,)), KVGroup((1,), 6))


def batch(*, apart: bool = False) -> InputBatch:
    """apart: what the device sees are tensors of their own, as on a GPU."""
    made = InputBatch(32, 8, (3, 10), SIZE, GROUPS, StepShapes(8), torch.device("cpu"))
    if apart:
        for buffer in buffers(made):
            buffer.tensor = torch.full_like(buffer.host, -7)
    return made


def buffers(made: InputBatch) -> list[StepBuffer]:
    return [made._tables.buffer, *(value for value in vars(made).values() if isinstance(value, StepBuffer))]


def share(name: str, start: int, count: int, *tables: tuple[int, ...], first: bool = False) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        first=first,
        token_ids=tuple(range(100, 100 + count)),
        num_computed_tokens=start,
        block_ids=tables,
        samples=True,
        sampling=SamplingParams(),
        seed=0,
        num_prompt_tokens=start + count,
    )


@pytest.mark.parametrize("apart", [False, True])
def test_every_group_has_its_own_slots_and_tables(apart: bool) -> None:
    built = batch(apart=apart).build(
        SchedulerOutput(
            (
                share("a", 0, 6, (1, 2), (3, 4), first=True),
                share("b", 12, 3, (5, 6, 7, 8), (0, 9, 10, 11), first=True),
            ),
            (),
        )
    )
    full, window = built.step.attention
    assert full.positions is window.positions
    assert full.row_request is window.row_request
    assert full.positions.tolist() == [0, 1, 2, 3, 4, 5, 12, 13, 14, *[0] * 7]
    assert full.row_request.tolist() == [0] * 6 + [1] * 3 + [-1] * 7
    assert full.slot_mapping.tolist() == [4, 5, 6, 7, 8, 9, 32, 33, 34, *[-1] * 7]
    assert window.slot_mapping.tolist() == [12, 13, 14, 15, 16, 17, 44, 45, 46, *[-1] * 7]
    assert [table[:4].tolist() for table in full.block_tables] == [[1, 2, 0, 0], [5, 6, 7, 8]]
    assert [table[:4].tolist() for table in window.block_tables] == [[3, 4, 0, 0], [0, 9, 10, 11]]
    assert all(tensor.is_contiguous() for one in (full, window) for tensor in (one.slot_mapping, one.block_tables))


@pytest.mark.parametrize("apart", [False, True])
def test_a_table_loses_what_its_window_passed_also_in_a_line_that_was_anothers(apart: bool) -> None:
    target = batch(apart=apart)
    target.build(
        SchedulerOutput(
            (
                share("gone", 0, 12, (1, 2, 3), (4, 5, 6), first=True),
                share("a", 0, 9, (7, 8, 9), (10, 11, 12), first=True),
            ),
            (),
        )
    )
    plan = SchedulerOutput((share("a", 9, 4, (13,), (14,)),), ("gone",))
    full, window = target.build(plan).step.attention
    assert full.block_tables[:, :4].tolist() == [[7, 8, 9, 13]]
    assert window.block_tables[:, :4].tolist() == [[0, 11, 12, 14]], "token 9 sees tokens 4 to 9"
    assert window.slot_mapping[:4].tolist() == [12 * SIZE + 1, 12 * SIZE + 2, 12 * SIZE + 3, 14 * SIZE]
    _, window = target.build(SchedulerOutput((share("a", 13, 1, (), ()),), ())).step.attention
    assert window.block_tables[:, :4].tolist() == [[0, 0, 12, 14]], "token 13 sees tokens 8 to 13"
