"""The keys of verl's own configuration that a run may set."""

from __future__ import annotations

from scripts.pages.tables import code, table
from sql_agent.verl_side.allowed_keys import ALLOWED_KEYS, FIXED_BELOW

HEAD = """# verl's keys

These keys of verl 0.9.1 can be set under `verl:` in a config, or with `--set verl.KEY=VALUE`. They are merged last;
`--dry-run` prints the result:

```
.venv/bin/agentgrpo train --set verl.actor_rollout_ref.actor.clip_ratio_c=10 --dry-run
```

Every other key is refused before a run starts, because many of them silently do nothing here, or harm. Most settings
of [AgentGRPO's own](settings.md) reach a key of verl's; that key is set there alone.
"""


def page() -> str:
    rows = [
        (code(f"{key}NAME" if key.endswith(".") else key), meaning, code(module))
        for key, (module, meaning) in ALLOWED_KEYS.items()
    ]
    fixed = code(*(key.rstrip(".").rpartition(".")[2] for key in FIXED_BELOW))
    refused = f"Arguments of `vllm serve` that stay as the run sets them: {fixed}."
    return f"{HEAD}\n{table(('key, behind `verl.`', 'meaning', 'read by'), rows)}\n\n{refused}\n"
