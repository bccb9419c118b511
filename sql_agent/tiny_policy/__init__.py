"""A small policy to start from: one million parameters, its own tokenizer, made on the machine in minutes, no hub.

`make.py` puts the parts together. The policy can call the two tools of the function-calling protocol on generated
tables and on words it has never seen, and is right less than half of the time when it samples: enough for GRPO to have
something to improve on a CPU. `measure.py` measures it. It knows nothing of the world, no joins and no groups; on the
tasks of real benchmarks it calls the tools properly most of the time and is hardly ever right.
"""
