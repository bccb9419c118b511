"""Starts a local run, and ends its command with one line when something fails.

It checks the model, sets seeds, and loads the policy. Importing this module is instant, because torch and transformers
are imported where they are used.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.checkpoints import CHECKPOINTS, how_to_go_on
from agentgrpo.checks import UsageError, require
from agentgrpo.commands import INTERRUPTED
from agentgrpo.disk_errors import format_disk_error
from agentgrpo.run_folder import SETTINGS
from sql_agent.local.datatypes import DivergedError
from sql_agent.local.memory import Workload, choose_pass, give_back_freed_memory
from sql_agent.local.model_files import check_model_weights, whole_model
from sql_agent.settings.local import AdapterConfig, ModelConfig
from sql_agent.source.datatypes import StopError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agentgrpo.chat.replies import Conversation
    from sql_agent.local.policy import LocalPolicy

log = logging.getLogger(__name__)


@contextmanager
def report_failures(run_dir: Path, again: str, spelt: Callable[[str], str] = str) -> Iterator[None]:
    """End the command with one line if it fails in a known way, and with status 130 if it is interrupted.

    Args:
        again: the start that goes on with the run in `run_dir`; it is printed if the run had begun.
        spelt: rewrites a message in this command's names of settings (`message_formatter`).
    """
    try:
        yield
    except (ValueError, OSError, DivergedError, StopError) as error:
        raise SystemExit(f"error: {spelt(format_disk_error(error))}") from error
    except RuntimeError as error:
        raise SystemExit(f"error: {'; '.join([spelt(out_of_memory(error)), *_go_on(run_dir, again)])}") from error
    except KeyboardInterrupt:
        print("\n" + "; ".join(["interrupted", *_go_on(run_dir, again)]), file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def _go_on(run_dir: Path, again: str) -> list[str]:
    return [how_to_go_on(run_dir / CHECKPOINTS, again)] if (run_dir / SETTINGS).is_file() else []


def trained_here(model: ModelConfig) -> dict[str, Any]:
    """The model as the table of checks takes one that plays and learns in this process."""
    return {"policy": model.model_path, "trained": model.model_path, "trainer": "local", "row_tokens": 0}


def load_libraries() -> None:
    """Do the imports that take seconds, before anything starts that Ctrl-C would have to end properly."""
    import sql_agent.local.learner
    import sql_agent.local.rollouts  # noqa: F401


def out_of_memory(error: RuntimeError) -> str:
    """A line about torch's out-of-memory error and what to lower; every other error is raised again."""
    first = str(error).split("\n")[0]
    if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in first:
        raise error
    return (
        f"out of memory ({first[:200]}); add --gradient-checkpointing and --micro-batch-tokens 1, which change no "
        "result, then lower --max-tokens or the number of episodes sampled together"
    )


def load_conversation(model_path: str, tools: Sequence[dict[str, Any]]) -> tuple[PreTrainedTokenizerBase, Conversation]:
    """Load a model's tokenizer, and try its chat template on the tools.

    Raises:
        UsageError: the template does not end a reply.
        ChatTemplateError: see `Conversation`.
    """
    from transformers import AutoTokenizer

    from agentgrpo.chat.replies import Conversation
    from agentgrpo.chat.tokenizer import endless_template

    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    if fault := endless_template(tokenizer):
        raise UsageError(fault)
    return tokenizer, Conversation(tokenizer, tools)


def start_policy(
    model: ModelConfig,
    adapter: AdapterConfig,
    *,
    tools: Sequence[dict[str, Any]],
    seed: int,
    reference_path: str | None = None,
    workload: Workload | None = None,
) -> LocalPolicy:
    """Load the policy from this machine's files; nothing random happens before `seed` is set.

    Args:
        tools: the environment's tools; the chat template is tried on them before the weights are read.
        workload: for a training run; a warning is logged before the weights are read if memory may not suffice.
    Raises:
        UsageError: the model is missing, not whole or not a language model, or 4-bit loading is not possible.
        ChatTemplateError: see `Conversation`.
    """
    model = model.model_copy(update={"model_path": whole_model(model.model_path)})
    reference_path = whole_model(reference_path) if reference_path else None
    import torch

    device = ("cuda" if torch.cuda.is_available() else "cpu") if model.device == "auto" else model.device
    require(device=device, load_in_4bit=model.load_in_4bit, has_gpu=torch.cuda.is_available())
    check_model_weights(model.model_path)
    if reference_path:
        check_model_weights(reference_path)
    from transformers.utils import logging

    from sql_agent.local.policy import load_policy
    from sql_agent.packed_rows import shared_beginning

    logging.disable_progress_bar()
    if device == "cpu":
        give_back_freed_memory()
    tokenizer, conversation = load_conversation(model.model_path, tools)
    pass_tokens = None
    if workload is not None:
        prompts = [conversation.first_prompt(messages) for messages in workload.first_prompts]
        pass_tokens, warnings = choose_pass(
            model,
            adapter,
            workload,
            device=device,
            prompt_tokens=max(map(len, prompts)),
            common_tokens=len(shared_beginning(prompts)),
            reference=bool(reference_path),
        )
        for warning in warnings:
            log.warning("%s", warning)
    torch.manual_seed(seed)
    return load_policy(
        model.model_path,
        adapter=adapter,
        device=device,
        reference_path=reference_path,
        load_in_4bit=model.load_in_4bit,
        gradient_checkpointing=model.gradient_checkpointing,
        precision=model.precision,
        tokenizer=tokenizer,
        pass_tokens=pass_tokens,
        shared_prompts=model.shared_prompts,
    )
