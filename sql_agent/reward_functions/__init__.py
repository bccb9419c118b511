"""Rewards of your own: functions from the record of a rollout to a number (doc/training.md, "A reward of your own").

`RewardRecord` and `RewardUnavailable` are the public interface. `load` finds the functions before a run, `ask` calls
them when a rollout has ended, `judge` is one of ours: an LLM behind an OpenAI-compatible address. Leaves out what is
made of their numbers (`sql_agent.rewards.summed_reward`).
"""

from sql_agent.reward_functions.datatypes import RewardRecord, RewardUnavailable

__all__ = ["RewardRecord", "RewardUnavailable"]
