"""Braid: async hybrid retrieval over Postgres."""

__version__ = "0.1.0"
