"""Defines two rewards of your own: functions from the record of a rollout to a number. Copy this file and change it."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it declares what `record` has and what it means
    from sql_agent.reward_functions import RewardRecord

BUDGET = 200
"""From this many sampled tokens on, an answer is not concise at all."""


def concise(record: "RewardRecord") -> float:
    """Fall from 1 without a token to 0 at `BUDGET` tokens. Only right answers are paid for being short: otherwise an
    empty answer would be paid."""
    return max(0.0, 1.0 - record.completion_tokens / BUDGET) if record.verdict == 1.0 else 0.0


def looks_first(record: "RewardRecord") -> float:
    """Return 1 if the first statement reads and does not write."""
    statements = [arguments for name, arguments in record.calls if name == "execute_sql"]
    try:
        first = json.loads(statements[0])["query"]
    except (IndexError, ValueError, TypeError, KeyError):
        return 0.0  # this is the policy's own fault: None would leave out only such rollouts
    return float(str(first).lstrip().upper().startswith(("SELECT", "SHOW", "DESCRIBE")))
