"""What ends a job before or during its work because of what was asked for or found."""

from __future__ import annotations


class Refusal(ValueError):
    """The message names what, where and the remedy."""
