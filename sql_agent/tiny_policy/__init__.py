"""Makes a small policy to start from: one million parameters, its own tokenizer, made locally in minutes, no hub.

`make.py` puts the parts together. The policy can call the two tools of the function-calling protocol on generated
tables and on words it has never seen. When it samples, it is right less than half of the time, so GRPO has something to
improve on a CPU. `measure.py` measures it. It has no knowledge of the world, of joins or of groups. On the tasks of
real benchmarks it calls the tools properly most of the time and is hardly ever right.
"""
