"""`agentgrpo gpu-check`: what works on a machine with a GPU, in ten minutes, as one page to send back.

`probes` are small programs of their own, `stages` runs them and training runs one after the other, each within a limit,
and writes what they found. A stage that fails is reported with the end of its log, and the next one goes on.
"""
