"""What the operator sees: Gradio pages as the shell, our own live panes inside.

Talks HTTP and WebSocket to the app; imports nothing of it but `app.server` and `app.schemas`.
Invariant: each button is one documented API call.
"""
