"""The weights with which some checkpoints predict several tokens at once: found by name, and left out.

Owns how they are told from the model's own. Knows no shapes. Invariant: nothing that the model needs for one token is
among them: a layer beyond the model's last one counts only where config.json says that such layers are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NAMED = re.compile(r"(^|\.)mtp(_\w+)?\.")  # Qwen, MiMo, ERNIE
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")  # DeepSeek and GLM append them to the model's layers
COUNT = "num_nextn_predict_layers"


def multi_token_tensors(names: Iterable[str], num_layers: int, metadata: dict[str, Any]) -> set[str]:
    """Those of `names` that predict tokens beyond the next one. metadata: config.json."""
    said = metadata.get(COUNT)
    beyond = range(num_layers, num_layers + (said if type(said) is int and said > 0 else 0))
    return {name for name in names if _NAMED.search(name) or _layer(name) in beyond}


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return -1 if found is None else int(found[1])
