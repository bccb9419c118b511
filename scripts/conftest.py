"""Commands are no tests, whatever they are called."""

collect_ignore = ["test_interactive.py"]
