"""How a local run starts: what is asked for is looked at, then seeds are set, then the model is loaded."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.commands import INTERRUPTED
from core.disk_errors import in_words
from core.hub import ModelNotFoundError, go_offline, model_folder
from dbbench_adapter.protocols import Message
from sql_agent.datatypes import AgentConfig
from sql_agent.local.config import AdapterConfig, ModelConfig, OptimConfig
from sql_agent.local.datatypes import DivergedError, UnjudgedError
from sql_agent.model_check import (
    OF_ONE_MODEL,
    ModelFileError,
    check_config,
    check_tokenizer,
    check_weights,
    read_json,
    safetensors_bytes,
)

if TYPE_CHECKING:
    from sql_agent.local.policy import LocalPolicy

log = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Workload:
    """What a run will ask of the memory."""

    first_prompts: Sequence[Sequence[Message]]
    """Some of them; the longest counts."""
    rows: int
    """Episodes that are sampled side by side."""
    limits: AgentConfig
    optim: OptimConfig


class StartError(ValueError):
    """The run cannot start as asked; the message says what to do."""


@contextmanager
def failures_in_words(resume: str) -> Iterator[None]:
    """Around a command: a failure that has a name ends it with one line, and so does KeyboardInterrupt, with 130.

    Args:
        resume: how to go on, said where work would be lost.
    """
    try:
        yield
    except (ValueError, OSError, DivergedError, UnjudgedError) as error:
        raise SystemExit(f"error: {in_words(error)}") from error
    except RuntimeError as error:
        raise SystemExit(f"error: {out_of_memory(error)}; {resume}") from error
    except KeyboardInterrupt:
        print(f"\ninterrupted; {resume}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def load_libraries() -> None:
    """The imports that take seconds, before anything is begun that Ctrl-C would have to end in order."""
    import sql_agent.local.learner
    import sql_agent.local.rollouts  # noqa: F401


def out_of_memory(error: RuntimeError) -> str:
    """What torch's want of memory comes down to; every other error goes on."""
    first = str(error).split("\n")[0]
    if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in first:
        raise error
    return (
        f"out of memory ({first[:200]}); turn gradient_checkpointing on and set micro_batch_tokens to 1, which changes "
        "no result, then lower max_new_tokens or the number of episodes sampled together"
    )


def start_policy(
    model: ModelConfig,
    adapter: AdapterConfig,
    *,
    tools: Sequence[dict[str, Any]],
    seed: int,
    reference_path: str | None = None,
    workload: Workload | None = None,
) -> LocalPolicy:
    """The policy, loaded from this machine's files; nothing random happened before `seed` was set.

    Args:
        tools: what the environment offers; the chat template has to write them before the weights are read.
        workload: where it is trained; a warning is logged, before the weights are read, if memory will be short.
    Raises:
        StartError: a model that is not there, not whole or no language model, 4 bits without what they need.
        ChatTemplateError: see `Conversation`.
    """
    model = model.model_copy(update={"model_path": check_model(model.model_path)})
    reference_path = check_model(reference_path) if reference_path else None
    import torch

    device = ("cuda" if torch.cuda.is_available() else "cpu") if model.device == "auto" else model.device
    check_device(device, load_in_4bit=model.load_in_4bit, has_gpu=torch.cuda.is_available())
    check_fit(model.model_path)
    if reference_path:
        check_fit(reference_path)
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from core.chat_tokenizer import endless_template
    from sql_agent.local.conversation import Conversation
    from sql_agent.local.memory import give_back_freed_memory, memory_warning
    from sql_agent.local.policy import load_policy

    logging.disable_progress_bar()
    if device == "cpu":
        give_back_freed_memory()
    tokenizer = AutoTokenizer.from_pretrained(model.model_path, trust_remote_code=False)
    if fault := endless_template(tokenizer):
        raise StartError(fault)
    conversation = Conversation(tokenizer, tools)
    if workload is not None:
        warning = memory_warning(
            model,
            adapter,
            workload.optim,
            device=device,
            group_size=workload.rows,
            prompt_tokens=max(len(conversation.first_prompt(messages)) for messages in workload.first_prompts),
            replies=workload.limits.max_turns or 1,
            max_new_tokens=workload.limits.max_tokens,
            reference=reference_path is not None,
        )
        if warning:
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
    )


def check_fit(path: str) -> None:
    """The weights of a model, or of an adapter and its base, are a language model's and have the names and shapes that
    the config gives them. `check_model` found them whole.

    Raises:
        StartError: they are not or have not; names them.
    """
    from core.weights import adapter_misfit, misfit, wrong_head

    base = folder = model_folder(path, fetch=False)
    while (base / ADAPTER_FILE).is_file():
        base = model_folder(read_json(base / ADAPTER_FILE)["base_model_name_or_path"], fetch=False)
    if fault := wrong_head(base) or misfit(base, "ForCausalLM"):
        raise StartError(f"{fault}; {OF_ONE_MODEL}")
    if folder != base and (fault := adapter_misfit(folder, base, "ForCausalLM")):
        raise StartError(f"{fault}; take an adapter of a language model with the base that it was trained on")


def check_device(device: str, *, load_in_4bit: bool, has_gpu: bool) -> None:
    """
    Raises:
        StartError: the device is not there, or cannot hold 4-bit weights.
    """
    if device == "cuda" and not has_gpu:
        raise StartError("--device cuda: torch sees no GPU here; leave the flag out or give cpu")
    if load_in_4bit and device != "cuda":
        raise StartError("--load_in_4bit needs a GPU; leave the flag out, a CPU holds the model in float32")
    if load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise StartError("--load_in_4bit needs bitsandbytes, which is not installed: `uv pip install bitsandbytes`")


def check_model(path: str, _adapters: tuple[str, ...] = ()) -> str:
    """A model's or an adapter's folder is there and whole, or a model of the hub is in the cache or fetched to it.

    Returns:
        What to load: `path`, by which an adapter names its base; of the id of an adapter its folder.
    Raises:
        StartError: it is not, and cannot be had.
    """
    go_offline()
    # read when torch is imported: threads that wait in a loop stand still where something else has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = Path(path)
    if (folder / ADAPTER_FILE).is_file():
        try:
            base = read_json(folder / ADAPTER_FILE).get("base_model_name_or_path")
        except ModelFileError as error:
            raise StartError(str(error)) from error
        weights = folder / "adapter_model.safetensors"
        if not weights.is_file() or safetensors_bytes(weights) != weights.stat().st_size or not base:
            raise StartError(f"{folder} is no whole adapter: expected {weights.name}, undamaged, and its base's name")
        if str(folder.resolve()) in _adapters:
            raise StartError(
                f"the adapter in {folder} names itself as its base; write the model's folder into {ADAPTER_FILE}"
            )
        try:
            check_model(base, (*_adapters, str(folder.resolve())))
        except StartError as error:
            raise StartError(f"the adapter in {folder} needs its base: {error}") from error
        return path
    if folder.is_dir():
        problems = [p for check in (check_config, check_tokenizer, check_weights) for p in check(folder) if p.blocks]
        if problems:
            raise StartError(str(problems[0]))
        return path
    try:
        found = model_folder(path, fetch=not _adapters)  # an adapter's base was named by the adapter, not by the user
    except ModelNotFoundError as error:
        raise StartError(str(error)) from None
    check_model(str(found), _adapters)
    return str(found) if (found / ADAPTER_FILE).is_file() else path
