"""Bodies of the calls about one model's checkpoint: the doctor's, the quantiser's and the drafter trainer's.

Owns field names, types and ranges at the edge, as app.schemas does. A report goes out as the dataclass that it is.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.schemas import Incoming, Text


class DoctorBody(Incoming):
    """A model folder or file on the server's own disk, as a pull would take it."""

    path: Text = Field(min_length=1, max_length=1000)


class QuantizeBody(Incoming):
    """What to make of a model. `calibration` is a text file's path, `calibration_text` the text itself; without either
    the model writes its own. An absent `method` is the format's; an absent `output_id` is made from the rest."""

    format: Literal["awq", "gptq", "compressed-tensors"]
    method: Literal["awq", "gptq"] | None = None
    bits: int = Field(default=4, ge=2, le=8)
    group_size: int = Field(default=128, ge=-1, le=65536)
    desc_act: bool = False
    symmetric: bool = False
    calibration: Text | None = Field(default=None, min_length=1, max_length=1000)
    calibration_text: Text | None = Field(default=None, min_length=1)
    output_id: Text | None = Field(default=None, min_length=1, max_length=200)


class TrainDrafterBody(Incoming):
    """How to train a drafter. `texts` is a text file's path, `start_from` a drafter's folder, both on the server's own
    disk; `minutes` bounds this stretch, absent it lasts until all passes over the text are made."""

    kind: Literal["eagle", "medusa"] = "eagle"
    tokens: int = Field(default=1_000_000, ge=1000, le=10**9)
    minutes: float | None = Field(default=None, ge=0.01, le=10**5)
    passes: int = Field(default=3, ge=1, le=1000)
    texts: Text | None = Field(default=None, min_length=1, max_length=1000)
    seed: int = Field(default=0, ge=0, le=2**53)
    start_from: Text | None = Field(default=None, min_length=1, max_length=1000)
    output_id: Text | None = Field(default=None, min_length=1, max_length=200)
