"""The inference engine. Knows tokens, not conversations. Runs alone: `python -m engine MODEL "prompt"`."""
