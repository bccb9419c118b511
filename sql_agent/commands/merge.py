"""Make a plain Hugging Face folder, which `vllm serve` loads, from a run's checkpoint or from a LoRA adapter.

    agentgrpo merge --checkpoint runs/sql-agent --output outputs/policy
    agentgrpo merge --adapter outputs/sft --output outputs/policy

--checkpoint takes a run directory (its newest whole checkpoint), one global_step_N of it, or the actor folder therein;
the weights come from verl's shards, full or LoRA. --adapter takes a folder of the local trainers or of PEFT. Merging is
done in float32 on the CPU. The command reads the merged model back and compares its logits and a greedy reply with
those before merging; if logits differ, it leaves nothing behind. doc/operate/checkpoints.md describes serving.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.checkpoints import MANIFEST, check_checkpoint, checkpoints
from agentgrpo.checks import UsageError, require
from agentgrpo.commands import interruptible
from agentgrpo.disk_errors import failures_of_the_disk, format_disk_error
from agentgrpo.flags import Parser
from agentgrpo.hub import go_offline, model_folder
from agentgrpo.json_text import parse_json
from agentgrpo.machine import count_gpus, sampling_dtype
from agentgrpo.model_kinds import ADAPTER_FILE, count_weights
from agentgrpo.printed_commands import python_command
from agentgrpo.run_folder import read_start
from agentgrpo.spelling import did_you_mean
from sql_agent.serve_commands import serve_command
from sql_agent.trained_on import TrainedOn, read_trained_on, write_trained_on
from sql_agent.verl_side.checkpoints import newest_verl_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

# Logits before and after may differ by this much. Adding an adapter to its base in float32 changed one by 3e-5,
# rounding the weights to bfloat16 by 0.15 (doc/operate/checkpoints.md).
BOUND = 1e-3
QUESTION = "A table has the columns name, price and stock. Which SQL statement counts the rows that cost more than 5?"
# Few, as a large model writes few tokens a second on a CPU.
REPLY_TOKENS = 96

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainedModel:
    model: Any
    """The model; a `PeftModel` if its adapter is not merged yet."""
    tokenizer: Path
    """The folder with tokenizer and chat template."""
    generation: Path
    """The folder with the generation config, if there is one."""
    served: Path | None = None
    """The folder with weights that the run merged already."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The contents of merge.json."""
    trained_on: TrainedOn = field(default_factory=TrainedOn)
    """What it was trained on, for the merged folder too."""
    sampled_in: str | None = None
    """The dtype in which its run sampled; None: no such run is known."""


def merge(source: TrainedModel, output: Path, say: Say) -> None:
    """Write the merged model to `output`, which exists afterwards only if it computes the same as `source`.

    Raises:
        UsageError: the merged model computes something else.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    before = reply_logits(source.model, source.tokenizer)
    apart = hasattr(source.model, "merge_and_unload")
    merged = source.model.merge_and_unload(safe_merge=True) if apart else source.model
    kept = (source.generation / "generation_config.json").is_file()
    merged.generation_config = (
        GenerationConfig.from_pretrained(source.generation)
        if kept
        else GenerationConfig.from_model_config(merged.config)
    )
    if source.served is not None:
        say(compare_weights(merged, source.served))
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=f".{output.name}-") as scratch,
        failures_of_the_disk(output),
    ):
        folder = Path(scratch) / output.name
        merged.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.tokenizer, trust_remote_code=False).save_pretrained(folder)
        merged.to("meta")  # a large model is in memory only once
        after = reply_logits(
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False),
            folder,
            ids=before.ids,
        )
        difference = float((before.logits - after.logits).abs().max())
        if not difference <= BOUND:
            raise UsageError(
                f"logits before and after differ by up to {difference:.2e}, more than {BOUND:.0e}; {output} was not "
                "written. Take another checkpoint, and report this one"
            )
        say(f"logits over {len(before.ids)} tokens: up to {difference:.1e} apart before and after, bound {BOUND:.0e}")
        same = before.reply == after.reply
        say(f"greedy reply of {len(before.reply)} tokens: {'the same' if same else 'another one'} afterwards")
        facts = source.facts | {"dtype": "float32", "max_logit_difference": difference, "same_greedy_reply": same}
        (folder / "merge.json").write_text(json.dumps(facts, indent=2) + "\n")
        if source.trained_on != TrainedOn():
            write_trained_on(folder, source.trained_on)
        os.replace(folder, output)


@dataclass(frozen=True)
class ReplyLogits:
    """What a model says to `QUESTION`."""

    ids: list[int]
    """The tokens of the question and of a greedy reply."""
    logits: Tensor
    """The logits at each of the ids, shape (T, V)."""
    reply: tuple[int, ...]


def reply_logits(model: Any, tokenizer_folder: Path, *, ids: list[int] | None = None) -> ReplyLogits:
    """Ask a question, which any chat template writes, and compute the logits of it and the reply, or of `ids`."""
    import torch
    from transformers import AutoTokenizer

    from agentgrpo.chat.template import ChatTemplate
    from sql_agent.local.datatypes import GREEDY
    from sql_agent.local.policy import LocalPolicy

    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, trust_remote_code=False)
    try:
        prompt = ChatTemplate.of(tokenizer).first_prompt([{"role": "user", "content": QUESTION}])
    except ValueError:  # no template, or one that refuses it
        prompt = tokenizer.encode(QUESTION)
    (reply,) = LocalPolicy(model, tokenizer).generate([prompt], [GREEDY], max_new_tokens=REPLY_TOKENS)
    ids = [*prompt, *reply.ids] if ids is None else ids
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    return ReplyLogits(ids, logits, reply.ids)


def compare_weights(merged: Any, served: Path) -> str:
    """Describe how the weights differ from those in the folder that verl wrote beside its shards."""
    from safetensors.torch import load_file

    ours = merged.state_dict()
    theirs = {name: tensor for file in served.glob("*.safetensors") for name, tensor in load_file(file).items()}
    if not theirs.keys() <= ours.keys():
        return f"{served} holds other tensors ({', '.join(sorted(theirs.keys() - ours.keys()))}); the shards are taken"
    difference = max((float((ours[name] - tensor.float()).abs().max()) for name, tensor in theirs.items()), default=0.0)
    same = f"the same {len(theirs)} tensors as" if difference == 0 else f"up to {difference:.1e} from"
    return f"weights: {same} {served}"


# A checkpoint of the training command ---------------------------------------------------------------------------------


def open_checkpoint(path: Path, say: Say) -> TrainedModel:
    """Load verl's shards of an actor as a model.

    Raises:
        ValueError: there is no checkpoint, or none that is unchanged since it was written.
    """
    checkpoint = find_checkpoint(path, say)
    manifest = parse_json((checkpoint / MANIFEST).read_text())
    facts = {name: manifest.get(name, "unknown") for name in ("train_step", "run_id", "commit")}
    say(f"{checkpoint}: step {facts['train_step']} of run {facts['run_id']}, every file as it was written")
    files = checkpoint / "actor" / "huggingface"
    served = files if any(files.glob("*.safetensors")) else None
    sampled_in = read_start(checkpoint.parents[1]).get("precision")
    return TrainedModel(
        load_actor(checkpoint / "actor"), files, files, served, facts, read_trained_on(files), sampled_in
    )


def find_checkpoint(path: Path, say: Say) -> Path:
    """The `global_step_N` that a path means: itself, its parent, or the newest complete one below it."""
    if not (path / "checkpoints").is_dir():
        while path.name in ("huggingface", "actor"):
            path = path.parent
    if (path / "actor").is_dir():
        if fault := check_checkpoint(path):
            raise UsageError(f"{path} is not as it was written: {fault}; take another checkpoint of the run")
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not checkpoints(folder):
        hint = "it is an adapter, give it as --adapter" if (path / ADAPTER_FILE).is_file() else "give a run directory"
        raise UsageError(f"{path} holds no checkpoint of the training command; {hint}")
    newest = newest_verl_checkpoint(folder, say)
    assert newest is not None
    return newest


def load_actor(actor: Path) -> Any:
    """Load the trained model; an adapter is not merged yet."""
    from accelerate import init_empty_weights
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    weights = join_shards(actor)
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(actor / "huggingface", trust_remote_code=False), trust_remote_code=False
        )
        adapted = [match[1] for name in weights if (match := re.match(r"base_model\.model\.(.*)\.lora_A\.", name))]
        if adapted:
            lora = parse_json((actor / "lora_train_meta.json").read_text())
            model = get_peft_model(
                model, LoraConfig(r=lora["r"], lora_alpha=lora["lora_alpha"], target_modules=adapted)
            )
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model.float()


def join_shards(actor: Path) -> dict[str, Tensor]:
    """Join each worker's parts to complete tensors, in the precision in which they were saved.

    verl's own merger (verl/model_merger/fsdp_model_merger.py) rounds them to bfloat16 and does not merge an adapter.
    """
    import torch
    from torch.distributed.tensor import DTensor

    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # its warnings concern compiling
    workers = parse_json((actor / "fsdp_config.json").read_text())["world_size"]
    shards = [
        torch.load(actor / f"model_world_size_{workers}_rank_{rank}.pt", map_location="cpu", mmap=True)
        for rank in range(workers)
    ]

    def whole(name: str) -> Tensor:
        parts = [shard[name] for shard in shards]
        if not isinstance(parts[0], DTensor):
            return parts[0]
        if len(parts[0].placements) != 1:
            raise UsageError(
                f"{name} is sharded over {len(parts[0].placements)} dimensions of workers, expected one; "
                f"merge it with `{python_command('verl.model_merger', 'merge', '--backend', 'fsdp')}`"
            )
        (placement,) = parts[0].placements
        local = [part.to_local() for part in parts]
        return torch.cat(local, placement.dim) if placement.is_shard() else local[0]  # pyright: ignore[reportAttributeAccessIssue]

    return {name: whole(name) for name in shards[0]}


# An adapter -----------------------------------------------------------------------------------------------------------


def open_adapter(adapter: Path, base: Path | None) -> TrainedModel:
    """Load an adapter that the local trainers, or PEFT, wrote.

    Args:
        base: its base, if it is not the one that the adapter names.
    Raises:
        ValueError: the adapter or its base is missing or incomplete.
    """

    if not (adapter / ADAPTER_FILE).is_file():
        whole = (adapter / "config.json").is_file()
        hint = "it is a whole model, which is served as it is" if whole else "give the folder that holds it"
        raise UsageError(f"{adapter} has no {ADAPTER_FILE}; {hint}")
    if base is None:
        require(policy=str(adapter))
        base = Path(parse_json((adapter / ADAPTER_FILE).read_text())["base_model_name_or_path"])
    try:
        require(policy=str(base))
        base = model_folder(base)
    except ValueError as error:
        raise UsageError(f"--base: {error}") from error
    import torch
    from peft import PeftModel
    from transformers.utils.logging import disable_progress_bar

    from agentgrpo.weights import check_adapter_weights, check_weights_fit
    from sql_agent.local.policy import load_model

    if fault := check_weights_fit(base, "ForCausalLM") or check_adapter_weights(adapter, base, "ForCausalLM"):
        raise UsageError(f"{fault}; give the base that the adapter was trained on as --base")
    disable_progress_bar()
    model = PeftModel.from_pretrained(load_model(base, device="cpu"), str(adapter))
    own = any((adapter / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    record = read_trained_on(adapter)
    return TrainedModel(model.to(torch.float32), adapter if own else base, base, trained_on=record)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, metavar="PATH", help="run directory or checkpoint")
    parser.rename_flag("--checkpoint", "--local-dir")
    source.add_argument("--adapter", type=Path, metavar="FOLDER", help="LoRA adapter, or its id on the hub")
    parser.add_argument(
        "--base",
        type=Path,
        metavar="FOLDER",
        help="the adapter's base or its id on the hub; default: the one that the adapter names",
    )
    parser.add_argument(
        "--output",
        "--target-dir",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder to write, which must not exist",
    )
    args = parser.parse_args(argv)
    if args.base and not args.adapter:
        parser.error("--base belongs to --adapter; a checkpoint has its base inside")
    go_offline()
    try:
        if os.path.lexists(args.output):
            raise UsageError(f"{args.output} is there already; name another --output")
        args.adapter = args.adapter and model_folder(args.adapter)
        path = args.adapter or args.checkpoint
        if not path.is_dir():
            raise UsageError(
                f"{path} is no folder; give a run directory, a checkpoint or an adapter{did_you_mean(path)}"
            )
        opened = open_adapter(args.adapter, args.base) if args.adapter else open_checkpoint(args.checkpoint, print)
        merge(opened, args.output, print)
    except (ValueError, OSError) as error:
        print(f"error: {format_disk_error(error)}", file=sys.stderr)
        return 1
    cpu = not count_gpus()
    dtype = opened.sampled_in or sampling_dtype("auto", count_weights(args.output) or 0, cpu=cpu)
    print(f"merged policy: {args.output}\nnext: {serve_command(args.output, args.output.name, cpu=cpu, dtype=dtype)}")
    return 0
