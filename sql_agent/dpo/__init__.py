"""Runs direct preference optimisation (DPO) on pairs of conversations."""
