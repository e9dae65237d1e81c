"""A routing store over one SQLite file."""
