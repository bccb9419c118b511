"""The checks that commands make before anything expensive."""

from __future__ import annotations

from agentgrpo.checks import CHECKS
from scripts.pages.tables import code, table

HEAD = """# Checks before a run

Every command names what it is about to use. AgentGRPO then makes all checks that need nothing else, in the order of
the table. A training command ends at the first problem. `agentgrpo doctor` prints all of its checks, each problem
with the line that mends it:

```
.venv/bin/agentgrpo doctor --model MODEL --database FILE.sqlite --train-file FILE
```

Its exit status is 0 if a run can start, warnings included, and 1 if it cannot. [Its flags](commands.md#doctor) say
what a run would use.
"""


def page() -> str:
    rows = [(check.name, check.looks_at, code(*check.needs), check.cost) for check in CHECKS]
    return f"{HEAD}\n{table(('check', 'looks at', 'made where a command uses', 'time'), rows)}\n"
