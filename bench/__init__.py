"""Whole-system measurements: scripts, never timed tests, each with the memory bandwidth of the same run."""
