"""Medical question answering over a read-only SQLite database, a task without a judge (doc/medical.md)."""
