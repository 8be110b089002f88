"""The revisions, oldest first. Invariant: a released one is never edited and imports nothing of ours."""
