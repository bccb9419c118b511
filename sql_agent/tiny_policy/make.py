"""Makes a Hugging Face folder from the parts of this package: tokenizer, model and warm start. Importing this module is
instant.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.commands import interruptible
from agentgrpo.outputs import failures_of_the_disk
from sql_agent.names import TINY_POLICY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

    from dbbench_adapter.datatypes import Task

# More steps make a better policy and leave less for GRPO: 320 solved 31 % of 96 held-out tasks, greedy, 400 50 %.
STEPS = 400
BATCH_SIZE = 8
TOKENIZER_TASKS = 2000
# Share of the episodes that are worded like real task files. With a share of 0 and 300 steps, half of the replies to
# such files had no call.
REWORDED_SHARE = 0.5
# Share of the descending sorts that flawed demonstrations sort the other way. Greedy decoding then took the wrong way
# in 47 of 48 held-out tasks that sort downwards, and GRPO found groups with both.
FLAWED_SHARE = 0.7
# What the warm start is measured on at its end: generated tasks with words that it has not seen. Of 192 such tasks a
# policy gave 63.5 % token for token, and solved 65.1 % when they were played.
MEASURED_TASKS = 384
# No run's, so that a run is measured on other tasks.
MEASURED_SEED = 1_000_000_000
# Fixed, because the order of sums, and so the last digits of the weights, depends on it.
THREADS = 1
RECIPE_FILE = "recipe.json"


def make_tiny_policy(
    output: Path,
    *,
    seed: int = 0,
    steps: int = STEPS,
    flawed: bool = False,
    progress: Callable[[str], None] = print,
) -> None:
    """Build, warm-start and save the policy, unless `output` holds it already.

    The folder is written atomically. It is the same for the same arguments on the same machine.

    Args:
        steps: steps of the warm start, each over `BATCH_SIZE` oracle episodes.
        flawed: most descending sorts of the demonstrations are ascending ones.
        progress: receives one line at a time.
    Raises:
        FileExistsError: `output` holds something that was not made here.
    """
    recipe = _recipe(seed, steps, flawed)
    if output.exists():
        if not (output / RECIPE_FILE).is_file():
            raise FileExistsError(f"{output} exists and has no {RECIPE_FILE}; move it away or choose another --output")
        if json.loads((output / RECIPE_FILE).read_text()) == recipe:
            progress(f"{output} is there, made by the same recipe")
            return
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch,
        failures_of_the_disk(output),
    ):
        folder = Path(scratch) / output.name
        _build(folder, seed, steps, flawed, progress)
        (folder / RECIPE_FILE).write_text(json.dumps(recipe, indent=2) + "\n")
        if output.exists():
            shutil.rmtree(output)
        os.replace(folder, output)
    progress(f"small policy: {output}")


def make_if_default(model: Path | str) -> None:
    if Path(model).resolve() == TINY_POLICY and not TINY_POLICY.exists():
        print("the small policy is not there: making it first", flush=True)
        make_tiny_policy(TINY_POLICY)


def _recipe(seed: int, steps: int, flawed: bool) -> dict[str, Any]:
    """What the policy depends on: its settings, and the source of this package, of tasks, prompts and tokens."""
    from agentgrpo.chat import replies
    from dbbench_adapter import generator
    from dbbench_adapter.protocols import fc

    here = Path(__file__).parent
    sources = [Path(module.__file__ or "") for module in (fc, generator, replies)]
    sources.append(Path(generator.__file__ or "").parent / "generate" / "phrasebook.yaml")
    sources += sorted(path for path in here.iterdir() if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    return {"seed": seed, "steps": steps, "flawed": flawed, "source_sha256": digest, "torch": version("torch")}


def _build(folder: Path, seed: int, steps: int, flawed: bool, progress: Callable[[str], None]) -> None:
    import torch
    from transformers import GenerationConfig

    from dbbench_adapter.generator import generate_tasks
    from sql_agent.tiny_policy.copy_circuit import build_model
    from sql_agent.tiny_policy.episodes import batches, encoded_tasks
    from sql_agent.tiny_policy.tokenizer import END_ID, PAD_ID, build_tokenizer, task_texts
    from sql_agent.tiny_policy.train import warm_start

    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    tokenizer = build_tokenizer(task_texts(generate_tasks(TOKENIZER_TASKS, seed=seed)))
    model = build_model(len(tokenizer), seed=seed)
    progress(f"small policy: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    examples = encoded_tasks(tokenizer, _train_tasks(seed, flawed))
    try:
        warm_start(model, batches(examples, batch_size=BATCH_SIZE, seed=seed), steps=steps, progress=progress)
        progress(_measured(model, tokenizer))
    finally:
        torch.set_num_threads(threads)
    model.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=PAD_ID)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _train_tasks(seed: int, flawed: bool) -> Iterator[Task]:
    from dbbench_adapter.generator import task_stream
    from sql_agent.tiny_policy.wording import reworded, sorted_wrongly

    rng, flaws = random.Random(seed), random.Random(seed)
    for task in task_stream(seed=seed):
        worded = reworded(task, rng) if rng.random() < REWORDED_SHARE else task
        yield sorted_wrongly(worded) if flawed and flaws.random() < FLAWED_SHARE else worded


def _measured(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> str:
    from dbbench_adapter.generator import generate_tasks
    from sql_agent.tiny_policy.episodes import encoded_tasks
    from sql_agent.tiny_policy.train import exact_match

    by_kind: dict[str, list[Task]] = {}
    for task in generate_tasks(MEASURED_TASKS, seed=MEASURED_SEED, split="held_out"):
        by_kind.setdefault(task.kind, []).append(task)
    shares = {kind: exact_match(model, list(encoded_tasks(tokenizer, tasks))) for kind, tasks in by_kind.items()}
    said = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items())
    return f"solved of {MEASURED_TASKS} new tasks, greedy: {said}"
