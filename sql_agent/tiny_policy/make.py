"""Makes a Hugging Face folder from the parts of this package: tokenizer, model and warm start.

Leaves out the command line (`scripts.make_tiny_policy`). Importing this module is instant.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.commands import interruptible
from core.outputs import failures_of_the_disk
from sql_agent.model_check import TINY_POLICY

if TYPE_CHECKING:
    from dbbench_adapter.datatypes import Task
    from sql_agent.tiny_policy.ending import Ending

STEPS = 400
"""More steps make a better policy and leave less for GRPO: 320 solved 31 % of 96 held-out tasks, greedy, 400 50 %."""
BATCH_SIZE = 8
SUCCESS = (0.42, 0.48)
"""Bounds of the success on development tasks, for a run that starts from 40 to 55 % of its own held-out tasks. A policy
solves a little more of what it plays than it repeats token for token: 65.1 instead of 63.5 % of 192 tasks."""
DEVELOPMENT_TASKS = 384
"""Their success has a standard error of 2.5 points. Their words are the held-out ones, since a policy never copies some
words: with 210 words of their own the tasks came out 3 to 11 points harder than the held-out ones."""
DEVELOPMENT_SEED = 1_000_000_000
"""Seed of the development tasks, which is no run's, so that a run is measured on other tasks."""
MAX_STEPS = 600
"""Where a warm start that is ended by its success gives up."""
TOKENIZER_TASKS = 2000
REWORDED_SHARE = 0.5
"""Share of the episodes that are worded like real task files. With a share of 0 and 300 steps, half of the replies to
such files had no call."""
THREADS = 1
"""Fixed, because the order of sums, and so the last digits of the weights, depends on it."""
RECIPE_FILE = "recipe.json"


def make_tiny_policy(
    output: Path,
    *,
    seed: int = 0,
    steps: int = STEPS,
    for_skills: Sequence[str] = (),
    progress: Callable[[str], None] = print,
) -> None:
    """Build, warm-start and save the policy, unless `output` holds it already.

    The folder is written atomically. It is the same for the same arguments on the same machine.

    Args:
        steps: steps of the warm start, each over `BATCH_SIZE` oracle episodes; not read with `for_skills`.
        for_skills: the warm start ends when the policy solves `SUCCESS` of development tasks that show one of these.
        progress: receives one line at a time.
    Raises:
        FileExistsError: `output` holds something that was not made here.
        ValueError: no generated task shows one of `for_skills`.
    """
    recipe = _recipe(seed, steps, for_skills)
    if output.exists():
        if not (output / RECIPE_FILE).is_file():
            raise FileExistsError(f"{output} exists and has no {RECIPE_FILE}; move it away or choose another --output")
        made = json.loads((output / RECIPE_FILE).read_text())
        ending = made.pop("ending", None)
        if made == recipe:
            progress(f"{output} is there, made by the same recipe{f': {ending}' if ending else ''}")
            return
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch,
        failures_of_the_disk(output),
    ):
        folder = Path(scratch) / output.name
        ending = _build(folder, seed, steps, for_skills, progress)
        made = recipe | ({"ending": str(ending)} if ending else {})
        (folder / RECIPE_FILE).write_text(json.dumps(made, indent=2) + "\n")
        if output.exists():
            shutil.rmtree(output)
        os.replace(folder, output)
    progress(f"small policy: {output}")


def make_if_default(model: Path | str) -> None:
    """Make the small policy if `model` is its usual folder, and that is not there."""
    if Path(model).resolve() == TINY_POLICY and not TINY_POLICY.exists():
        print("the small policy is not there: making it first (about a minute)", flush=True)
        make_tiny_policy(TINY_POLICY)


def _recipe(seed: int, steps: int, for_skills: Sequence[str]) -> dict[str, Any]:
    """Return what the policy depends on: its settings, and the source of this package, of tasks, prompts and tokens."""
    from dbbench_adapter import generator
    from dbbench_adapter.generate import phrasebook
    from dbbench_adapter.protocols import fc

    here = Path(__file__).parent
    sources = [Path(module.__file__ or "") for module in (fc, generator, phrasebook)]
    sources.append(Path(phrasebook.__file__ or "").with_suffix(".yaml"))
    sources += [here.parent / "sft" / "encoding.py", *sorted(path for path in here.iterdir() if path.is_file())]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    ends = {"for_skills": sorted(for_skills)} if for_skills else {"steps": steps}
    return {"seed": seed, **ends, "source_sha256": digest, "torch": version("torch")}


def _build(
    folder: Path, seed: int, steps: int, for_skills: Sequence[str], progress: Callable[[str], None]
) -> Ending | None:
    import torch
    from transformers import GenerationConfig

    from dbbench_adapter.generator import generate_tasks
    from sql_agent.tiny_policy.copy_circuit import build_model
    from sql_agent.tiny_policy.ending import Bounds, warm_start_until
    from sql_agent.tiny_policy.episodes import batches, encoded_tasks
    from sql_agent.tiny_policy.tokenizer import END_ID, PAD_ID, build_tokenizer, task_texts
    from sql_agent.tiny_policy.train import exact_match, warm_start

    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    tokenizer = build_tokenizer(task_texts(generate_tasks(TOKENIZER_TASKS, seed=seed)))
    model = build_model(len(tokenizer), seed=seed)
    progress(f"small policy: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    learnt = batches(encoded_tasks(tokenizer, _train_tasks(seed)), batch_size=BATCH_SIZE, seed=seed)
    ending = None
    try:
        if for_skills:
            development = list(encoded_tasks(tokenizer, _development_tasks(for_skills)))
            ending = warm_start_until(
                model,
                learnt,
                bounds=Bounds(*SUCCESS),
                measure=lambda policy: exact_match(policy, development),
                max_steps=MAX_STEPS,
                progress=progress,
            )
            progress(str(ending))
        else:
            warm_start(model, learnt, steps=steps, progress=progress)
    finally:
        torch.set_num_threads(threads)
    model.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=PAD_ID)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ending


def _train_tasks(seed: int) -> Iterator[Task]:
    from dbbench_adapter.generator import task_stream
    from sql_agent.tiny_policy.wording import reworded

    rng = random.Random(seed)
    for task in task_stream(seed=seed):
        yield reworded(task, rng) if rng.random() < REWORDED_SHARE else task


def _development_tasks(skills: Sequence[str]) -> list[Task]:
    from sql_agent.environments.dbbench import generated

    return generated(DEVELOPMENT_TASKS, "held_out", skills, DEVELOPMENT_SEED)
