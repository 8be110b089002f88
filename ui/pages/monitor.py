"""Live plots with history. Filled by assets/js/monitor.js with Plotly.js.

Not `gr.Plot`: that builds the figure anew on each change, so that zoom and hover are lost.
"""

from __future__ import annotations

from ui.shell import pane


def build() -> None:
    """One pane; history from /api/samples, the newest second from the live topic `samples`."""
    pane("monitor")
