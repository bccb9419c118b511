"""Holds examples of what users bring. Those with an `__init__.py` are also registered under a name of their own."""
