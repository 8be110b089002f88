"""Alembic's scripts: `env.py` and one file a revision. Owns how an older file becomes a newer one."""
