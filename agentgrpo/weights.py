"""Whether the weights of a folder fit its config, before they are read.

transformers' own loader reads the files with a model on torch's meta device, so names are matched as in the real load,
with shards, tied embeddings and renamed layers. Only the headers of safetensors are read. torch's loader of plain
tensors reads `pytorch_model.bin`; a pickle of anything else is refused.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from agentgrpo.hub import ModelError
from agentgrpo.json_text import parse_json

Head = Literal["ForCausalLM", "ForSequenceClassification"]
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
HEAD = "score"
# A reward model does not need these layers of a language model.
LANGUAGE_HEADS = ("lm_head", "output", "embed_out")
# A message names this many tensors of each kind.
MAX_NAMED = 3
FETCH = "`hf download NAME --local-dir FOLDER` fetches one"


def check_weights_fit(
    folder: Path, head: Head, *, num_labels: int | None = None, new: str | None = None, unused: Collection[str] = ()
) -> str | None:
    """None if the weights fit.

    Args:
        num_labels: the number of labels of a classifier, if the config does not say it.
        new: a layer that training adds, so that it may be missing.
        unused: layers that training removes, so that they may be there.
    """
    more = {} if num_labels is None else {"num_labels": num_labels}
    try:
        with _quiet(), _Shapes():
            model, found = _kind(head).from_pretrained(
                str(folder),
                device_map="meta",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **more,
                trust_remote_code=False,
            )
    except pickle.UnpicklingError:
        return f"the weights of {folder} (*.bin) are no pickle of plain tensors: it may run a program, or is damaged"
    except Exception as error:  # a broken config or weight file may raise any error
        return f"{folder} cannot be loaded as a model {head} ({in_a_line(error)})"
    named = _architectures(folder)[0]
    if head == "ForCausalLM" and named != type(model).__name__:
        return f"{folder}/config.json names a {named}, and its model_type makes a {type(model).__name__}"
    shapes = [f"{name}: {_shape(own)}, expected {_shape(wanted)}" for name, own, wanted in found["mismatched_keys"]]
    faults = _faults(
        missing=[name for name in found["missing_keys"] if name.split(".")[0] != new],
        unexpected=[name for name in found["unexpected_keys"] if name.split(".")[0] not in unused],
        shapes=shapes,
    )
    return faults and f"the weights of {folder} do not fit its config.json as a {type(model).__name__}: {faults}"


def wrong_head(folder: Path) -> str | None:
    named = _architectures(folder)[0]
    if named.endswith(LANGUAGE_MODELS):
        return None
    rewards = named.endswith("ForSequenceClassification")
    what = "a reward model or another classifier" if rewards else "a model without a language model's head"
    return f"{folder} is {what} ({named}), expected a language model (...ForCausalLM)"


def check_adapter_weights(adapter: Path, base: Path, head: Head, *, num_labels: int | None = None) -> str | None:
    # The base's own weights are not read.
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
    from safetensors import safe_open
    from transformers import AutoConfig

    more = {} if num_labels is None else {"num_labels": num_labels}
    try:
        with torch.device("meta"), _quiet():
            config = PeftConfig.from_pretrained(str(adapter))
            config.base_model_name_or_path = None  # PEFT would warn if the base has moved
            plain = _kind(head).from_config(
                AutoConfig.from_pretrained(str(base), **more, trust_remote_code=False), trust_remote_code=False
            )
            whole = set(plain.state_dict())  # PEFT saves embeddings whole if they were enlarged
            expected = get_peft_model_state_dict(get_peft_model(plain, config), save_embedding_layers=False)
        with safe_open(adapter / "adapter_model.safetensors", framework="pt") as file:
            own = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except Exception as error:  # a broken file may raise any error
        return f"the adapter in {adapter} cannot be put on {base} ({in_a_line(error)})"
    wanted = {name: tuple(weight.shape) for name, weight in expected.items()}
    faults = _faults(
        missing=[name for name in wanted if name not in own],
        unexpected=[name for name in own if name not in wanted and name.removeprefix("base_model.model.") not in whole],
        shapes=[
            f"{name}: {_shape(own[name])}, expected {_shape(wanted[name])}"
            for name in wanted
            if name in own and own[name] != wanted[name]
        ],
    )
    return faults and f"the adapter in {adapter} does not fit {base}: {faults}"


def _kind(head: Head) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForCausalLM if head == "ForCausalLM" else AutoModelForSequenceClassification


def _architectures(folder: Path) -> list[str]:
    return parse_json((folder / "config.json").read_text("utf-8")).get("architectures") or ["no architecture"]


def in_a_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}" if lines else type(error).__name__


def _faults(*, missing: Sequence[str], unexpected: Sequence[str], shapes: Sequence[str]) -> str | None:
    parts = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    return "; ".join(f"{len(names)} {what} ({_some(names)})" for what, names in parts if names) or None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(sorted(names)[:MAX_NAMED]) + more


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"


def weight_files(path: Path) -> list[Path]:
    """Raises ModelError: the folder has no weights."""
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{path} has no weights (*.safetensors); {FETCH} whole")
    return files


def weights_sha256(path: Path) -> str:
    # Names count too, so that exchanged shards change the digest.
    digest = hashlib.sha256()
    for file in weight_files(path):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


class _Shapes(TorchFunctionMode):
    # The loader compares tied weights that are both in the files; the meta device has only their shapes.

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.equal:
            return args[0].shape == args[1].shape
        return func(*args, **(kwargs or {}))


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(50)  # the level of critical messages
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
