"""Checks from its files whether a model folder can be trained and served, before anything expensive starts.

It checks the config and the tokenizer, that the chat template renders what the run's protocol needs and can be
continued from sampled ids, and that the weights are complete and fit the config. Leaves out whether vLLM knows the
architecture, which tool parser reads the model's calls, and whether the model fits into memory. It imports no torch
into this process, and only the standard library before it tries a template.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.chat.continuity import Continuity, play
from agentgrpo.chat.template import CALLING, CALLING_PARTS, ChatTemplate, Message, render, training_template
from agentgrpo.checks import Problem
from agentgrpo.json_text import parse_json
from agentgrpo.limited_fork import LimitError, forked
from agentgrpo.machine import IS_CLONE
from agentgrpo.model_kinds import other_kind, safetensors_header, vocabulary_fault
from agentgrpo.printed_commands import agentgrpo_command, install_command, program_command

if TYPE_CHECKING:  # `agentgrpo doctor` uses this module on machines with broken packages
    from tokenizers import Tokenizer

    from dbbench_adapter.protocols import ProtocolName

SETUP = "bash scripts/setup.sh" if IS_CLONE else install_command("agentgrpo[train] @ file://WHEEL")
TEMPLATE_FILE = "chat_template.jinja"
# Where transformers keeps the templates of a model that has several.
TEMPLATE_FOLDER = "additional_chat_templates"
OF_ONE_MODEL = "take config.json and weights of one language model, e.g. fetch the folder again"
# Limit of CPU seconds for importing torch and matching the names of all shards; it usually takes two.
FIT_S = 120.0


class ModelFileError(ValueError):
    """A file of the folder cannot be read in its expected form; the message says which and why."""


def check_model_dir(path: Path, protocol: ProtocolName = "fc") -> list[Problem]:
    """If none of them blocks, a run can start from the model.

    Args:
        protocol: the run's; `fc` for every environment that offers tools.
    """
    if not path.exists():
        make = f"make a small policy with `{agentgrpo_command('tiny-policy')}`"
        fetch = f"fetch a model with `{program_command('hf', 'download', 'ORG/NAME', '--local-dir', path)}`"
        return [Problem(f"model folder {path} does not exist", f"{make}, or {fetch}")]
    if other := other_kind(path):
        return [other]
    found = (
        *check_config(path),
        *check_tokenizer(path),
        *try_template(path, protocol),
        *check_weights(path),
    )
    if not any(problem.blocks for problem in found):
        found = (*found, *check_fit(path))
    return list(dict.fromkeys(found))  # two checks may report the same about config.json


def fetch_again(path: Path) -> str:
    return f"fetch the folder again: `{program_command('hf', 'download', 'ORG/NAME', '--local-dir', path)}`"


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        ModelFileError: the file is missing, is not JSON, or does not hold an object.
    """
    if not file.is_file():
        raise ModelFileError(f"{file} is missing")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(f"{file} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{file} holds a {type(content).__name__}, expected an object")
    return content


def check_config(path: Path) -> Iterator[Problem]:
    try:
        if not read_json(path / "config.json").get("architectures"):
            name = path / "config.json"
            yield Problem(f"{name} names no architectures, expected e.g. ['Qwen3ForCausalLM']", fetch_again(path))
    except ModelFileError as error:
        yield Problem(str(error), fetch_again(path))


def check_tensor_parallel(path: Path, size: int) -> Iterator[Problem]:
    """Problems that keep `size` GPUs from sharing the model by vLLM's rules (model_executor/layers/linear.py).

    Each GPU needs the same number of attention heads and feed-forward rows, and of key-value heads or a copy of one.
    """
    config = read_json(path / "config.json")
    config = config.get("text_config", config)  # a vision model nests its text model's
    heads = config.get("num_attention_heads", 0)
    kv_heads = config.get("num_key_value_heads", heads)
    uneven = [
        f"{value} {name}"
        for name, value in (("attention heads", heads), ("feed-forward rows", config.get("intermediate_size", 0)))
        if value % size
    ]
    if kv_heads and max(kv_heads, size) % min(kv_heads, size):
        uneven.append(f"{kv_heads} key-value heads")
    if uneven:
        what = f"engine.tensor_parallel_size is {size}, which does not divide the {', '.join(uneven)} of {path}"
        yield Problem(what, "choose one that does; 1 always works")


def check_tokenizer(path: Path) -> Iterator[Problem]:
    if not (path / "tokenizer.json").is_file():
        yield Problem(f"{path} has no tokenizer.json", f"{fetch_again(path)}, or save its tokenizer as a fast one")
    if too_large := vocabulary_fault(path, path):
        yield too_large


def chat_template(path: Path, protocol: ProtocolName) -> str | None:
    """The chat template that transformers and vLLM take for a protocol's prompts; None if there is none.

    Of several templates it is `tool_use` for prompts with tools if there is one, and otherwise `default`
    (`PreTrainedTokenizerBase.get_chat_template`).

    Raises:
        ModelFileError: see `chat_templates`.
    """
    found = chat_templates(path)
    with_tools = found.get("tool_use") if protocol == "fc" else None
    return with_tools or found.get("default")


def chat_templates(path: Path) -> dict[str, str]:
    """The chat templates of a folder by their names; one that stands alone has the name `default`.

    As in transformers, files go before tokenizer_config.json: `chat_template.jinja`, which is `default`, and
    `additional_chat_templates/NAME.jinja`.

    Raises:
        ModelFileError: tokenizer_config.json exists and cannot be read, or its templates have another form.
    """
    files = {"default": path / TEMPLATE_FILE} if (path / TEMPLATE_FILE).is_file() else {}
    files |= {file.name.removesuffix(".jinja"): file for file in sorted((path / TEMPLATE_FOLDER).glob("*.jinja"))}
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    if not (path / "tokenizer_config.json").is_file():
        return {}
    template = read_json(path / "tokenizer_config.json").get("chat_template")
    named: Any
    try:
        named = {each["name"]: each["template"] for each in template} if isinstance(template, list) else template
    except (KeyError, TypeError):
        named = [template]
    named = named if isinstance(named, dict) else {} if named is None else {"default": named}
    if not all(isinstance(text, str) for text in named.values()):
        expected = "a text, or a list of objects with `name` and `template`"
        raise ModelFileError(f"chat_template in {path / 'tokenizer_config.json'} has another form, expected {expected}")
    return named


def no_template(path: Path, protocol: ProtocolName, write: str) -> Problem:
    """The message says what the folder has instead."""
    prompts = "prompts with tools" if protocol == "fc" else "prompts without tools"
    taken = "`tool_use` or `default`" if protocol == "fc" else "`default`"
    if found := chat_templates(path):
        what = f"{path} has chat templates named {', '.join(found)}, and for {prompts} transformers takes {taken}"
        return Problem(what, write)
    if (path / "chat_template.json").is_file():
        what = f"{path} has a chat_template.json, which transformers reads for models of images and not for tokenizers"
        return Problem(what, f"write its text `chat_template` to {path / TEMPLATE_FILE}, or take another model")
    places = f"neither {TEMPLATE_FILE}, {TEMPLATE_FOLDER}/ nor tokenizer_config.json"
    return Problem(f"{path} has no chat template ({places})", write)


PROBE: list[Message] = [{"role": "system", "content": "probe_system"}, *CALLING]
PROBE_PARTS = {"probe_system": "the system message", **CALLING_PARTS}
TEXT_PARTS = {"probe_question": "the user's messages", "probe_reply": "the replies"}


def check_template(path: Path, protocol: ProtocolName = "fc") -> Iterator[Problem]:
    """Render a short conversation with transformers' renderer, look for its parts, and continue it as a rollout.

    A template that leaves out the tools' schemas passes, because a policy may know its tools from training.
    """
    file, what = path / TEMPLATE_FILE, "a tool call" if protocol == "fc" else "a conversation"
    write = f"write one that can to {file}, or take a model that has one"
    if protocol == "fc":
        write = (
            f"write a template that renders tool calls to {file}, take a model that has one, or set "
            "agent.protocol=text, which needs no tools"
        )
    try:
        template, tokens = chat_template(path, protocol), special_tokens(path)
        if template is None:
            yield no_template(path, protocol, write)
            return
        missing = unrendered(template, tokens, protocol)
    except ModelFileError as error:
        yield Problem(str(error), fetch_again(path))
        return
    except ImportError as error:
        yield Problem(f"a package cannot be imported ({error}), so the chat template was not tried", SETUP)
        return
    except Exception as error:  # a template is a program and may raise anything
        yield Problem(f"the chat template of {path} cannot render {what} ({type(error).__name__}: {error})", write)
        return
    if missing:
        yield Problem(f"the chat template of {path} leaves out {' and '.join(missing)}", write)
    elif (path / "tokenizer.json").is_file():
        yield from check_continuation(path, protocol)


def try_template(path: Path, protocol: ProtocolName) -> list[Problem]:
    """Run `check_template` with a time limit, because a template is a program and may never end."""
    with contextlib.suppress(ImportError):  # which the fork says
        import transformers.utils.chat_template_utils  # noqa: F401  what is imported in a fork is imported again later
    try:
        return forked(lambda: list(check_template(path, protocol)))
    except LimitError as error:
        what = f"the chat template of {path} does not end: a short conversation {error}"
        return [Problem(what, f"write one that does to {path / 'chat_template.jinja'}, or take a model that has one")]


def check_continuation(path: Path, protocol: ProtocolName) -> Iterator[Problem]:
    """Check that rollouts can continue from the sampled ids, with the template that a run would use."""
    try:
        _, played = template_of_run(path, protocol)
    except ModelFileError as error:
        yield Problem(str(error), fetch_again(path))
        return
    except Exception as error:  # as above
        what = f"the chat template of {path} cannot render several turns ({type(error).__name__}: {error})"
        yield Problem(what, f"write one that can to {path / 'chat_template.jinja'}")
        return
    if played.broken is not None:
        yield Problem(
            f"rollouts of protocol {protocol} cannot be trained whole with the chat template of {path}: after "
            f"{played.broken} it writes no token that ends the turn, so the next prompt cannot continue what was "
            "sampled",
            f"end every assistant turn in {path / 'chat_template.jinja'} with the tokenizer's eos_token, or name the "
            "token that ends it in eos_token_id of generation_config.json",
        )
    elif played.rewritten is not None:
        yield Problem(
            f"the chat template of {path} rewrites earlier turns (seen after {played.rewritten}), and TRL has no "
            "version of it for training; rollouts are trained whole all the same, as they were sampled, but another "
            "server would show the trained policy a history that it was not trained on",
            f"write every assistant turn in {path / 'chat_template.jinja'} the same wherever it stands",
            blocks=False,
        )


def template_of_run(path: Path, protocol: ProtocolName) -> tuple[str, Continuity]:
    """The chat template that a run uses (`choose_template`), and the result of the scripted conversation.

    Raises:
        ModelFileError: the folder has no template, or no readable tokenizer.
        Exception: any error of the template.
    """
    from tokenizers import Tokenizer

    own, tokens = chat_template(path, protocol), special_tokens(path)
    if own is None:
        raise ModelFileError(f"{path} has no chat template")
    try:
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{path / 'tokenizer.json'} cannot be read ({error})") from None
    return choose_template(own, tokens, tokenizer, end_ids(path, tokenizer), protocol)


def choose_template(
    own: str, tokens: dict[str, Any], tokenizer: Tokenizer, ends: frozenset[int], protocol: ProtocolName
) -> tuple[str, Continuity]:
    """The template of a run and the result of the scripted conversation with it.

    It is the model's own template, or TRL's version of it for training if the own one rewrites earlier turns, so that a
    server without exact prompts shows the trained policy the same history as in training.

    Args:
        tokens: the special tokens that the template may use, e.g. `bos_token`.
        ends: ids of the tokens that end a reply.
    """
    first, tools = opening(protocol)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    def played_with(text: str) -> Continuity:
        return play(ChatTemplate(text, tools or None, tokens, encode, ""), first, tokenizer.decode, ends)

    played, better = played_with(own), training_template(own)
    if played.rewritten is not None and better is not None:
        with_better = played_with(better)
        if with_better == Continuity(None, None):
            return better, with_better
    return own, played


def opening(protocol: ProtocolName) -> tuple[list[Message], list[Any]]:
    from dbbench_adapter.datatypes import Gold, Task
    from dbbench_adapter.protocols import PROTOCOLS

    task = Task(id="", question="probe_question", kind="other", tables=(), gold=Gold())
    return PROTOCOLS[protocol].messages(task), PROTOCOLS[protocol].tools


def end_ids(path: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens at which vLLM ends a reply.

    They are the tokenizer's EOS, and those of generation_config.json or, without that file, of config.json.

    Raises:
        ModelFileError: one of these files cannot be read.
    """
    eos = special_tokens(path).get("eos_token")
    file = next((path / name for name in ("generation_config.json", "config.json") if (path / name).is_file()), None)
    more = read_json(file).get("eos_token_id") if file else None
    ids = [tokenizer.token_to_id(eos) if eos else None, *(more if isinstance(more, list) else [more])]
    return frozenset(i for i in ids if i is not None)


def special_tokens(path: Path) -> dict[str, Any]:
    """Those that a template may use, e.g. `bos_token`.

    Raises:
        ModelFileError: tokenizer_config.json exists and cannot be read.
    """
    if not (path / "tokenizer_config.json").is_file():
        return {}
    config = read_json(path / "tokenizer_config.json")
    tokens = {name: token for name, token in config.items() if name.endswith("_token")}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def unrendered(template: str, tokens: dict[str, Any], protocol: ProtocolName) -> list[str]:
    first, tools = opening(protocol)
    messages, parts = PROBE, PROBE_PARTS
    if not tools:
        reply: Message = {"role": "assistant", "content": "probe_reply"}
        messages, parts = [*first, reply, {"role": "user", "content": "probe"}], TEXT_PARTS
    prompt = render(template, messages, tools or None, special=tokens, prompt=True)
    return [part for mark, part in parts.items() if mark not in prompt]


def check_weights(path: Path) -> Iterator[Problem]:
    indices = [path / f"{name}.index.json" for name in ("model.safetensors", "pytorch_model.bin")]
    index = next((file for file in indices if file.is_file()), indices[0])
    try:
        shards = sorted(set(read_json(index)["weight_map"].values())) if index.is_file() else []
    except (ModelFileError, KeyError, AttributeError) as error:
        yield Problem(f"{index} cannot be read ({error!r})", fetch_again(path))
        return
    for name in shards:
        if not (path / name).is_file():
            yield Problem(f"{path / name} is missing, {index.name} names it", fetch_again(path))
    files = sorted(path.glob("*.safetensors"))
    if not index.is_file() and (parts := sorted(path.glob("*-of-*.safetensors")) + sorted(path.glob("*-of-*.bin"))):
        names = " or ".join(file.name for file in indices)
        yield Problem(f"{path} has parts of weights ({parts[0].name}) without {names}", fetch_again(path))
    if not files and not shards and not list(path.glob("pytorch_model*.bin")):
        yield Problem(f"{path} has no weights, expected *.safetensors", fetch_again(path))
    for file in files:
        expected, actual = safetensors_bytes(file), file.stat().st_size
        if expected != actual:
            header = "its header cannot be read" if expected is None else f"its header promises {expected}"
            yield Problem(f"{file} is damaged: {actual} bytes, {header}", fetch_again(path))


def check_fit(path: Path) -> list[Problem]:
    """Check that the config names a language model and that the weights have that model's names and shapes.

    The check runs in a fork, because it imports torch.
    """

    def fault() -> str | None:
        from agentgrpo.weights import check_weights_fit, wrong_head

        return wrong_head(path) or check_weights_fit(path, "ForCausalLM")

    try:
        found = forked(fault, cpu_s=FIT_S)
    except LimitError as error:
        found = f"the config of {path} makes no model that could be tried: it {error}"
    except RuntimeError as error:
        return [Problem(f"the weights of {path} were not tried ({error})", SETUP)]
    return [Problem(found, OF_ONE_MODEL)] if found else []


def safetensors_bytes(file: Path) -> int | None:
    """The size that a safetensors file should have; None if its header cannot be read, as in a pointer."""
    header = safetensors_header(file)
    if header is None:
        return None
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    try:
        return 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (TypeError, KeyError, IndexError):
        return None
