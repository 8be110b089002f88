"""Conversations: the list, the thread, the composer and the settings drawer. Filled by assets/js/chat.js.

Not `gr.Chatbot`: that has no branches, no statistics under an answer, and cannot re-attach to a running answer.
"""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; answers arrive over the live topic `conversation:{id}`."""
    pane("chat")
