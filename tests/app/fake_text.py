"""What the fake engine says, for the tests that compare."""

from __future__ import annotations

TEXT = "The quick brown fox said: ¡hola, niño! 🦊🙂 Then it wrote STOP and went on for a while. "
MAX_MODEL_LEN = 512
