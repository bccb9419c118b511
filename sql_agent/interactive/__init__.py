"""Lets a person talk with a policy in a terminal, over their own database."""
