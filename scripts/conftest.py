"""Keeps pytest from collecting the commands in this folder, whatever they are called."""

collect_ignore = ["test_interactive.py"]
