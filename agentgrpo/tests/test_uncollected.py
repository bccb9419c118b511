import subprocess
import sys

PROGRAM = """
import gc
from agentgrpo.imports import uncollected
started = []
gc.callbacks.append(lambda phase, info: started.append(phase))
with uncollected():
    kept = [[number] for number in range(100_000)]
print(len(started), gc.isenabled(), gc.get_freeze_count() > 100_000)
more = [[number] for number in range(100_000)]
print(len(started) > 0)
"""


def test_nothing_is_collected_in_the_block_and_what_it_made_is_never_looked_at_again():
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True", "True"]
