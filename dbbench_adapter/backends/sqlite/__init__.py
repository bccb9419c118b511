"""The embedded backend: one SQLite database in memory for each episode, kept within limits."""
