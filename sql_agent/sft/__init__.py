"""Runs supervised fine-tuning on conversations, with the loss on assistant turns only."""
