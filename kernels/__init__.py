"""Ops and their implementations. Imports torch and triton only; knows nothing of models or requests."""
