"""Everything that outlives a restart: chats, requests, samples, jobs, events, settings, in one SQLite file.

Owns the database. Knows nothing of HTTP, the engine or devices: callers hand in plain rows and get plain rows back.
Invariant: exactly one thread writes; no SQLAlchemy object leaves the package.
"""
