"""A conversation with a policy in a terminal, over a database of the user."""
