"""Control plane: HTTP API, CLI, engine supervision, recording. Never imports torch, triton, gradio or ui."""
