"""Offers DB-Bench as an agent, an environment and data sets of rLLM 0.2.1.post1; rLLM itself is optional."""
