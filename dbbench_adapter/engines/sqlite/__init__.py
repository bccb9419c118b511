"""Runs each episode on an SQLite database in memory, inside this process and within limits."""
