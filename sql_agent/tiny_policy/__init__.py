"""A small policy to start from: one million parameters, its own tokenizer, made on the machine in minutes, no hub.

`scripts/make_tiny_policy.py` puts the parts together. What it can do is call the two tools of the function-calling
protocol on tables and words it has never seen, right about half of the time: enough for GRPO to have something to
improve on a CPU. It knows no world, no joins and no groups.
"""
