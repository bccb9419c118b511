"""Stops a run that would train on too little: too many rollouts have no reward, no score, or a broken prefix.

Without a stop such a run trains for hours on the few rollouts that are left. Each error names the setting that is the
limit, and what to do. Alarms that only warn are in `metrics` and `sql_agent.verl_side.tracking`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.source.datatypes import Rollout, StopError
from sql_agent.source.metrics import SCORER_LOST
from sql_agent.source.scoring import start_command

SHOWN_CHARS = 300
"""An error is cut to so many characters where it is printed."""
STEPS = 3
"""So many train steps in a row have to be above `max_broken_fraction`; one unlucky task may break a whole group."""

MAIN_JOB = {
    "max_lost_fraction": "rollout.max_lost_fraction",
    "rollout_timeout_s": "agent.rollout_timeout_s",
    "reward_timeout_s": "rollout.reward_timeout_s",
    "reward_model_url": "reward_model.url",
    "reward_model_give_up_s": "reward_model.give_up_s",
    **{f"judge_{name}": f"judge.{name}" for name in ("url", "concurrency", "timeout_s", "max_tokens", "max_calls")},
    "model": "The model server",
    "fewer": "play fewer at once (rollout.n_runners, rollout.runner_concurrency)",
    "trajectories": "trajectories/",
    "logs": "the runners' logs",
    "look": "The logs are in the run directory.",
    "again": "then start the same command again",
}
"""What the messages below call settings and files; another trainer replaces what is called otherwise there."""

_BREAK_ADVICE = {
    "template": "The history itself changed: "
    f"`{agentgrpo_command('doctor', '--model', 'MODEL', '--protocol', 'PROTOCOL')}` tries the model's chat "
    "template; protocol text also cuts histories that are longer than AgentBench's limit.",
    "other": "The model server did not continue from the ids that it sampled: logs/driver.log in the run directory "
    "says whether it loaded sql_agent.verl_side.plugin.",
}
LOST_ADVICE = {
    "step_deadline": "Raise rollout.step_timeout_s, or start more runners (rollout.n_runners); are any up?",
    "rollout_failed": "The runner's log in the run directory has the exception.",
    "missing_spans": "The LLM proxy did not write its spans; its log is in the run directory.",
    "no_token_ids": "The model server has to answer return_token_ids (vLLM 0.10 or newer).",
    "no_log_probs": "The model server has to answer logprobs, one for each sampled token.",
    "db_unavailable": f"Is the database server up? `{agentgrpo_command('doctor')}` checks it.",
    "mcp_unavailable": "An MCP server of your agent does not start, or died; each rollout in {trajectories} says which "
    "(`error`), and what the server printed is in the runner's log.",
    "model_deadline": "{model} was too slow for {rollout_timeout_s}; raise it, or {fewer}.",
    "db_deadline": "The database was too slow for {rollout_timeout_s}; raise it, or play fewer at once.",
    "rollout_deadline": "The machine was too busy for {rollout_timeout_s}, or an agent of your own too slow; raise "
    "it, or play fewer at once.",
    "agent_error": "Your agent raised; trajectories/ has the traceback of each rollout (`error`). Catch errors that "
    "the policy can cause, and return a reward for them.",
    "no_call": "Your agent never asked the policy: give its client the address that it gets, llm.endpoint.",
    "no_trained_agent": "No turn was one of rollout.train_agents. The names come from openai-agents' tracing, which "
    "must not be disabled then (doc/guides/agent.md).",
    "no_reward": "Nothing rewards the rollouts: return a number, or give a function, --reward FILE.py:NAME.",
    "model_unavailable": "The model server or the LLM proxy did not answer; their logs are in the run directory.",
    "scorer_unavailable": "The reward model ({reward_model_url}) did not answer; {logs} say how.",
    "scorer_refused": "The reward model takes no such conversations; {logs} name the field.",
    "reward_error": "A reward function failed; {trajectories} has the traceback of each rollout (`reward_error`).",
    "reward_none": "A reward function returned None; {trajectories} says which one (`reward_error`).",
    "reward_deadline": "A reward function was slower than {reward_timeout_s}; raise it, or play fewer at once.",
    "judge_unavailable": "The LLM as judge ({judge_url}) did not answer in time; {logs} say how. If many "
    "rollouts wait for it at once, raise {judge_concurrency} or {judge_timeout_s}.",
    "judge_refused": "The LLM as judge refused the request; {logs} have its answer. Its key is read from "
    "JUDGE_API_KEY.",
    "judge_nonsense": "The LLM as judge did not reply with the JSON object that it was asked for; {logs} have its "
    "reply. Say in the rubric what it may leave out, or raise {judge_max_tokens}.",
    "judge_budget": "The run has made {judge_max_calls} calls of the judge; raise it and start the run again.",
    **dict.fromkeys(
        ("reset_error", "reset_deadline", "tool_error", "tool_deadline", "get_reward_error", "judge_error"),
        "The environment's own code raised or hung; each rollout in {trajectories} has the traceback as its `error`; "
        f"`{agentgrpo_command('check-env', 'FILE.py:NAME')}` finds such faults without a model.",
    ),
    "other": "{look}",
}


class TooManyLostError(StopError):
    """Says that a step lost more of its rollouts than `rollout.max_lost_fraction` allows."""


class ScorerDownError(StopError):
    """Says that the reward model has given no score for `reward_model.give_up_s` seconds."""


def check_lost(results: Sequence[Rollout], max_fraction: float, names: Mapping[str, str] = MAIN_JOB) -> None:
    """Stop a step that lost too many of its rollouts.

    Args:
        names: see `MAIN_JOB`.
    Raises:
        TooManyLostError: more than `max_fraction` of the rollouts have no reward, were refused a score, or lack a
            reward function that was unavailable for their group. A reward model that does not answer does not count
            here, because it may come back; `check_scorer_down` limits the wait for it.
    """
    reasons = Counter(why for result in results if (why := result.lost or _refused(result)))
    lost = reasons.total()
    if lost > max_fraction * len(results):
        reason, count = reasons.most_common(1)[0]
        raise TooManyLostError(
            f"{lost} of {len(results)} rollouts were lost or refused a score, more than "
            f"{names['max_lost_fraction']}={max_fraction} allows; the most frequent reason is {reason!r} ({count} "
            f"times{_example(results, reason)}). {LOST_ADVICE.get(reason, LOST_ADVICE['other']).format(**names)}"
        )


def _example(results: Sequence[Rollout], reason: str) -> str:
    """Return the error of the first rollout that was lost for that reason, with the line of its traceback, or ""."""
    found = [result for result in results if (result.lost or _refused(result)) == reason]
    told = next((text for r in found if (text := r.earned.error or (r.played and r.played.error))), "")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ")]
    return f"; the first: {': '.join([*places[-1:], last_line(told)])}" if lines else ""


def last_line(error: str) -> str:
    """Return the last line of an error, where a traceback has the exception, cut to `SHOWN_CHARS`."""
    line = next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."


def _refused(result: Rollout) -> str | None:
    why = result.score_failure
    if why is not None and why != "scorer_unavailable":
        return why
    # worth 0, because a policy may cause it; a judge that cannot judge at all would make every reward equal
    if why := next((why for why in result.earned.lacking.values() if why in ("judge_nonsense", "judge_refused")), None):
        return why
    return None if result.unshaped in SCORER_LOST else result.unshaped


def check_scorer_down(results: Sequence[Rollout], cfg: RewardModelConfig, names: Mapping[str, str] = MAIN_JOB) -> None:
    """Stop a step whose reward model has been down for too long.

    Args:
        names: see `MAIN_JOB`.
    Raises:
        ScorerDownError: a runner has had no score for `give_up_s`.
    """
    down_s = max((result.scorer_down_s for result in results), default=0.0)
    if cfg.url is not None and down_s >= cfg.give_up_s:
        raise ScorerDownError(
            f"the reward model at {cfg.url} has given no score for {down_s:.0f} s "
            f"({names['reward_model_give_up_s']}={cfg.give_up_s:g}); start one with `{start_command(cfg.url)}`, "
            f"{names['again']}"
        )


class PrefixBrokenError(StopError):
    """Says that train steps in a row broke more of their rollouts than `rollout.max_broken_fraction` allows."""


class PrefixStop:
    """Watches `prefix/broken_frac` over the train steps of a run.

    A break is a prompt that does not continue the token ids of the turn before it. The turns after it are trained too,
    as a conversation of their own, but the policy was shown another history than it wrote, and the history stands in
    the row once more, which costs compute and space.

    Args:
        max_fraction: share of a step's rollouts that may break.
    """

    def __init__(self, max_fraction: float) -> None:
        self._max_fraction, self._steps = max_fraction, 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the rollout metrics of one train step.

        Raises:
            PrefixBrokenError: this is the last of `STEPS` steps in a row above the limit.
        """
        broken = metrics.get("prefix/broken_frac")
        if broken is None:  # no rollout was judged in this step
            return
        self._steps = self._steps + 1 if broken > self._max_fraction else 0
        if self._steps < STEPS:
            return
        counts = {
            name.removeprefix("prefix/break/"): n for name, n in metrics.items() if name.startswith("prefix/break/")
        }
        cause = max(counts, key=lambda name: counts[name])
        raise PrefixBrokenError(
            f"{broken:.0%} of the rollouts broke, for {STEPS} train steps in a row more than "
            f"rollout.max_broken_fraction={self._max_fraction} allows: the policy is shown other histories than it "
            f"wrote, and each break puts a whole prompt more into its row; the most frequent cause is {cause!r} "
            f"({counts[cause]:.0f} times in the last step). {_BREAK_ADVICE.get(cause, _BREAK_ADVICE['other'])}"
        )
