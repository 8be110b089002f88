"""Scheduling and memory bookkeeping in pure Python: requests, blocks, the scheduler, counters. Never imports torch."""
