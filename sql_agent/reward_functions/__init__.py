"""Supports your own rewards: functions from a rollout's record to a number (doc/guides/rewards.md).

`RewardRecord` and `RewardUnavailable` are the public interface. `load` finds the functions before a run, `ask` calls
them when a rollout has ended, and `judge` is a function of ours: an LLM behind an OpenAI-compatible address.
"""

from sql_agent.reward_functions.datatypes import RewardRecord, RewardUnavailable

__all__ = ["RewardRecord", "RewardUnavailable"]
