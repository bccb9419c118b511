"""Runs agent-lightning's APO on the agent's instructions: critiques and edits by a model, judged by rollouts.

The search is upstream's own (`agentlightning.algorithm.apo`, 0.3.0). This subclass reads what our runners report, and
changes three things: a rollout without a reward is left out of a score, where upstream counts it as 0; an edit that
cannot be played is rejected, and a failed call of the model costs one edit, not the run; instructions are measured on
held-out tasks, which the search itself never sees, before and after it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.agl_without_litellm import agl  # first, or agent-lightning would be imported with LiteLLM

# isort: split
from agentlightning.algorithm.apo.apo import APO, RolloutResultForAPO, VersionedPromptTemplate
from openai import AsyncOpenAI, OpenAIError

from agentgrpo.outputs import written
from sql_agent.apo.candidates import Candidates, Purpose, success_rate_of, summarize_results
from sql_agent.apo.lit_agent import INSTRUCTIONS
from sql_agent.environments.base import InstructionsError, Taskset
from sql_agent.lightning.algorithm import first_of, heartbeat, tell_store, until_no_runner_is_left
from sql_agent.lightning.spans import read_outcome
from sql_agent.lightning.store import UNFINISHED
from sql_agent.model_servers.ask import failure_text
from sql_agent.model_servers.chat_client import ChatClient
from sql_agent.report.reading import ValidationChange
from sql_agent.settings.groups import MAX_RETRIES
from sql_agent.settings.main_job import ApoConfig, RolloutConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.run_context import TrainingFailedError
from sql_agent.source.stops import TooManyLostError, check_lost

Json = dict[str, Any]

OPTIMISER_KEY = "OPENAI_API_KEY"
# Edits in a row that fail because the model does not answer; then the search ends.
MOST_FAILURES = 3


@dataclass(frozen=True)
class SearchTasks:
    """The tasks of a search as JSON; no task is in two of these lists."""

    gradient: list[Json]
    """Critiques are written from rollouts of these."""
    selection: list[Json]
    """Instructions are compared on these."""
    held_out: list[Json]
    """Instructions are measured on these before and after the search."""


class InstructionsSearch(APO[Json]):
    """
    Args:
        environment: its instructions are those that the search begins with.
        say: called with each line of progress.
    """

    def __init__(
        self,
        apo: ApoConfig,
        rollout: RolloutConfig,
        run_dir: Path,
        seed: int,
        environment: Taskset,
        tasks: SearchTasks,
        run_id: str,
        say: Callable[[str], None],
    ) -> None:
        self.key = os.environ.get(OPTIMISER_KEY) or ""
        self.requests = 0
        client = AsyncOpenAI(
            base_url=apo.base_url,
            api_key=self.key or "-",
            timeout=apo.timeout_s,
            max_retries=MAX_RETRIES,
            http_client=ChatClient(event_hooks={"request": [self._count]}),
        )
        super().__init__(
            client,
            gradient_model=str(apo.gradient_model),
            apply_edit_model=str(apo.apply_edit_model or apo.gradient_model),
            diversity_temperature=apo.diversity_temperature,
            gradient_batch_size=apo.gradient_batch_size,
            val_batch_size=apo.val_batch_size,
            beam_width=apo.beam_width,
            branch_factor=apo.branch_factor,
            beam_rounds=apo.beam_rounds,
            rollout_batch_timeout=rollout.step_timeout_s,
        )
        self.apo, self.rollout, self.run_dir, self.random_seed = apo, rollout, run_dir, seed
        self.environment, self.tasks, self.run_id, self.say = environment, tasks, run_id, say
        self.seed = VersionedPromptTemplate("v0", template(environment.instructions.strip()))
        self.set_initial_resources({INSTRUCTIONS: self.seed.prompt_template})
        self.candidates = Candidates(run_dir / "candidates.json", self.seed.prompt_template.template)
        self.finished = False
        self._purpose: Purpose | None = None
        self._results: list[Rollout] = []
        self._failures = 0

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store: Any = self.get_store()
        beat = asyncio.create_task(heartbeat(store, self.run_id))
        try:
            await self._cancel_unfinished()  # of an earlier run that was killed
            await first_of(self._search(), until_no_runner_is_left(self.run_dir))
            self.finished = True
        finally:
            beat.cancel()
            await self.async_openai_client.close()
            await self._cancel_unfinished()
            await tell_store(store, {"state": "finished"})
            if isinstance(store, agl.LightningStoreClient):
                await store.close()

    async def _search(self) -> None:
        random.seed(self.random_seed)  # upstream draws tasks and the forms of its requests from it
        before = await self._measure(self.seed)
        self.say(f"held-out success before  {success_rate_of(before)}")
        await super().run(train_dataset=self.tasks.gradient, val_dataset=self.tasks.selection)
        best = VersionedPromptTemplate(self._history_best_version or "v0", self.get_best_prompt())
        after = before if best.version == self.seed.version else await self._measure(best)
        self._save_best()
        self._conclude(before, after, best)

    def _conclude(self, before: Sequence[Rollout], after: Sequence[Rollout], best: VersionedPromptTemplate) -> None:
        rejected = ", ".join(f"{reason} {n}" for reason, n in self.candidates.rejected.items()) or "none"
        self.say(f"requests to the optimiser {self.requests}; rejected edits: {rejected}")
        if best.version == self.seed.version:
            self.say("no edit was better on the selection tasks: the best instructions are those it began with")
            return
        pairs = [
            (a.success == 1.0, b.success == 1.0)
            for a, b in zip(before, after, strict=True)
            if not a.lost and not b.lost and None not in (a.success, b.success)
        ]
        change = ValidationChange(len(pairs), sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs))
        self.say(f"held-out success after   {success_rate_of(after)}")
        self.say(f"change                   {change}")
        self.say(f"best instructions        {self.run_dir / 'prompt.txt'} ({best.version})")

    async def _measure(self, prompt: VersionedPromptTemplate) -> list[Rollout]:
        self._purpose = "held-out"
        await self.evaluate_prompt_on_batch(prompt, INSTRUCTIONS, self.tasks.held_out, "val")
        self._purpose = None
        by_task = {result.task_id: result for result in self._results}
        return [by_task[str(task["id"])] for task in self.tasks.held_out]

    async def evaluate_prompt_on_batch(
        self, prompt: Any, resource_name: str, dataset: Any, mode: Any, *, prefix: str | None = None
    ) -> tuple[list[RolloutResultForAPO], float]:
        """Play the tasks with these instructions.

        Returns:
            The rollouts that have a reward, and the mean of their rewards.
        Raises:
            TrainingFailedError: more than `rollout.max_lost_fraction` of the rollouts have none.
        """
        started, self._results = time.monotonic(), []
        judged, score = await super().evaluate_prompt_on_batch(prompt, resource_name, dataset, mode, prefix=prefix)
        ended = {result.task_id for result in self._results}
        if late := [task for task in dataset if str(task["id"]) not in ended]:
            await self._cancel_unfinished()
            self._results += [Rollout("", task, lost="step_deadline") for task in late]
        purpose: Purpose = self._purpose or ("gradient" if mode == "train" else "selection")
        self.candidates.add_result(prompt.version, prompt.prompt_template.template, purpose, self._results)
        try:
            check_lost(self._results, min(self.rollout.max_lost_fraction, 0.99))
        except TooManyLostError as lost:
            raise TrainingFailedError(str(lost)) from None
        self.say(self._line(prompt, purpose, score, time.monotonic() - started))
        return judged, score

    def _line(self, prompt: VersionedPromptTemplate, purpose: Purpose, score: float, seconds: float) -> str:
        parent, found = self.candidates.parent(prompt.prompt_template.template), summarize_results(self._results)
        lost = sum(found["lost"].values())
        return (
            f"{prompt.version}{f' (from {parent})' if parent else ''}: {purpose} reward {score:.3f}, solved "
            f"{found['solved']} of {found['judged']}{f', lost {lost}' if lost else ''}, {seconds:.0f} s"
        )

    async def get_rollout_results(  # pyright: ignore[reportIncompatibleMethodOverride]  upstream's is decorated
        self, rollout: Sequence[Any], *, prefix: str | None = None
    ) -> list[RolloutResultForAPO]:
        """Read what the runners reported; only rollouts with a reward are returned, in upstream's form."""
        self._results = [await self._read(each) for each in rollout]
        return [
            RolloutResultForAPO(
                status="succeeded",
                final_reward=result.reward,
                spans=[experience(result)],
                messages=[{"messages": result.record.messages, "tools": self.environment.tools}],
            )
            for result in self._results
            if result.reward is not None
        ]

    async def _read(self, rollout: Any) -> Rollout:
        result = Rollout("", rollout.input)
        if rollout.status != "succeeded":
            result.lost = f"rollout_{rollout.status}"
            return result
        if not read_outcome(await self.get_store().query_spans(rollout.rollout_id, attempt_id="latest"), result):
            result.lost = "missing_spans"
        return result

    async def textual_gradient_and_apply_edit(
        self, current_prompt: VersionedPromptTemplate, rollout: Any, *, prefix: str | None = None
    ) -> str | None:
        """An edit that can be played; None if there is none.

        Raises:
            TrainingFailedError: the model did not answer for `MOST_FAILURES` edits in a row.
        """
        try:
            text = await super().textual_gradient_and_apply_edit(current_prompt, rollout, prefix=prefix)
        except OpenAIError as failure:
            self._fail(current_prompt.version, failure_text(failure, hide=self.key))
            return None
        self._failures = 0
        text = (text or "").strip()
        if fault := self._fault(text):
            self.candidates.reject(text, current_prompt.version, *fault)
            self.say(f"an edit of {current_prompt.version} is rejected: {fault[1]}")
            return None
        self.candidates.add(text, current_prompt.version)
        return text

    def _fault(self, text: str) -> tuple[str, str] | None:
        """Reason and words why a text is not played; None if it is."""
        if not text:
            return "empty", "the model wrote nothing"
        if text in self.candidates:  # also where the critique was empty: upstream returns the parent then
            return "known", "the search had these instructions before"
        if len(text) > self.apo.max_chars:
            return "too_long", f"it has {len(text)} characters, more than apo.max_chars={self.apo.max_chars}"
        try:
            self.environment.with_instructions(text)
        except InstructionsError as fault:
            return "lacks_marks", str(fault)
        return None

    def _fail(self, parent: str, error: str) -> None:
        self._failures += 1
        self.candidates.reject(None, parent, "no_answer", error)
        self.say(f"an edit of {parent} is lost: {error}")
        if self._failures == MOST_FAILURES:
            raise TrainingFailedError(
                f"the model at {self.apo.base_url} failed for {MOST_FAILURES} edits in a row, the last time with "
                f"{error}; its key is read from {OPTIMISER_KEY}. If its context is too short, lower "
                "apo.gradient_batch_size; if it is too slow, raise apo.timeout_s"
            )

    async def _update_best_prompt(self, *args: Any, **kwargs: Any) -> None:
        await super()._update_best_prompt(*args, **kwargs)
        self._save_best()  # what a killed run leaves

    def _save_best(self) -> None:
        with written(self.run_dir / "prompt.txt") as part:
            part.write_text(self.get_best_prompt().template + "\n", "utf-8")

    async def _cancel_unfinished(self) -> None:
        store = self.get_store()
        for rollout in await store.query_rollouts(status_in=UNFINISHED):
            await store.update_rollout(rollout.rollout_id, status="cancelled")

    async def _count(self, _request: Any) -> None:
        self.requests += 1


def template(text: str) -> Any:
    return agl.PromptTemplate(template=text, engine="f-string")


def experience(result: Rollout) -> Json:
    # Upstream gives a critique all spans; ours hold token ids or JSON text.
    return {
        "messages": result.record.messages,
        "end": result.record.stop_reason,
        "verdict": result.record.score.reason,
        "reward": result.reward,
    }
