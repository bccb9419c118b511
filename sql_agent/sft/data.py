"""Demonstrations to learn from, and their tokens with a mask over what the policy has to say.

Three sources: DB-Bench tasks played by the scripted oracle, GSM8K solutions with calculator calls, JSONL of messages. A
conversation is cut into tokens where generation would begin and end, so what is trained is what will be sampled. Leaves
out the training (`sql_agent.sft.run`), packing and truncation: what is too long is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from core.conversations import Problem as Fault
from core.conversations import legal, read_conversation, read_tools
from core.conversations import short_repr as shown
from core.json_text import parse_json
from dbbench_adapter.backends import Backend, TableError
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols import PROTOCOLS, Message, ProtocolName, open_episode
from sql_agent.environments.gsm8k import Gsm8k
from sql_agent.gsm8k.datatypes import Problem
from sql_agent.gsm8k.expert import expert_messages
from sql_agent.local.conversation import ChatTemplateError
from sql_agent.oracle import solution

NOT_TRAINED = "weight"
"""A message's field, 0 on what an assistant says inside a prompt: OpenAI's name for it in fine-tuning files."""


class DataError(ValueError):
    """There is nothing to train on, or a row cannot be used; the message names file and line, and what to do."""


@dataclass(frozen=True)
class Demonstration:
    """A conversation in which every assistant message is one to imitate, unless its `weight` is 0."""

    messages: list[Message]
    """In chat-completions form; arguments of calls as JSON text or as an object."""
    tools: list[dict[str, Any]]
    where: str
    """What to call it in a message: file and line, or a task's id."""


@dataclass
class Demonstrations:
    """What a source gave."""

    kept: list[Demonstration] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """How many were not, by reason."""
    notes: Counter[str] = field(default_factory=Counter)
    """What else to say of it, such as fields of a file that are not read, and how often."""


@dataclass(frozen=True)
class Encoded:
    """A conversation in tokens, up to the end of its last reply."""

    ids: list[int]
    mask: list[int]
    """1 on the tokens that the policy has to say, the token that ends a reply included; as long as `ids`."""

    @property
    def labels(self) -> list[int]:
        """As transformers and TRL take them: -100 where nothing is learnt."""
        return [token if said else -100 for token, said in zip(self.ids, self.mask, strict=True)]


# Sources --------------------------------------------------------------------------------------------------------------


def dbbench_demonstrations(tasks: Iterable[Task], backend: Backend, protocol: ProtocolName = "fc") -> Demonstrations:
    """The oracle's replies, played through a real episode of each task and kept where the strict judge calls it right.

    Left out by reason: `no_reference` (the oracle would have to guess what its statement shows), what the judge said,
    `table_error`, and `history_cut` where the protocol would show the policy less than the whole conversation.

    Raises:
        BackendUnavailable: the database server is gone.
    """
    found = Demonstrations()
    for task in tasks:
        if task.gold.sql is None:
            found.left_out["no_reference"] += 1
            continue
        try:
            messages, verdict = _played(task, backend, protocol)
        except TableError:
            found.left_out["table_error"] += 1
            continue
        if verdict is not None:
            found.left_out[verdict] += 1
        elif PROTOCOLS[protocol].history(messages) != messages:
            found.left_out["history_cut"] += 1
        else:
            found.kept.append(Demonstration(messages, PROTOCOLS[protocol].tools, f"task {task.id!r}"))
    return found


def _played(task: Task, backend: Backend, protocol: ProtocolName) -> tuple[list[Message], str | None]:
    """The conversation, and why the judge does not call it right; None where it does."""
    messages = [
        {**message, NOT_TRAINED: 0} if message["role"] == "assistant" else message
        for message in PROTOCOLS[protocol].messages(task)
    ]
    with open_episode(task, backend, protocol) as episode:
        for reply in solution(task, protocol):
            messages += [reply, *episode.step(reply if protocol == "fc" else reply["content"])]
            if episode.done:
                break
        score = episode.judge("strict")
    return messages, None if score.value == 1.0 else score.reason


def gsm8k_demonstrations(problems: Iterable[Problem]) -> Demonstrations:
    """The solutions as conversations with a calculator; `solution_not_played` where one and its annotations disagree,
    the first of them with its reason in the notes."""
    found, tools = Demonstrations(), Gsm8k().tools
    for problem in problems:
        try:
            found.kept.append(Demonstration(expert_messages(problem), tools, f"problem {problem.id!r}"))
        except ValueError as error:
            if not found.left_out["solution_not_played"]:
                found.notes[f"first solution that was not played: {error}"] = 1
            found.left_out["solution_not_played"] += 1
    return found


def read_messages(path: Path, limit: int | None = None) -> Demonstrations:
    """JSONL of {"messages": [...], "tools": [...]}; `tools` may be missing, or JSON in a text.

    Messages are read as the reward model's converter reads them: OpenAI's and ShareGPT's names and spellings, ids of
    calls numbered anew. What is changed beyond spelling is noted.

    Args:
        limit: rows to take, from the top.
    Raises:
        DataError: no such file, no row, or the first row that cannot be used, by its line.
    """
    if not path.is_file():
        raise DataError(f"--dataset {path}: no such file; give dbbench, gsm8k, or a JSONL of messages")
    found = Demonstrations()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() and (limit is None or len(found.kept) < limit):
                where = f"{path}, line {number}"
                try:
                    found.kept.append(_read_row(line, where, found.notes))
                except Fault as fault:
                    raise DataError(f"{where}, {fault}") from None
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{where}: {error}; expected a JSON object with messages") from None
    if not found.kept:
        raise DataError(f'{path} holds no row; expected {{"messages": [...]}} on each line')
    return found


def _read_row(line: bytes, where: str, notes: Counter[str]) -> Demonstration:
    row = parse_json(line)
    if not isinstance(row, dict):
        raise Fault("row", f"expected a JSON object with messages, found {type(row).__name__}")
    raw = row.get("messages")
    if not isinstance(raw, list):
        raise Fault("messages", f"expected a list of messages, found {shown(raw)}")
    weights = [message.pop(NOT_TRAINED, 1) if isinstance(message, dict) else 1 for message in raw]
    messages = [m.to_dict() for m in legal(read_conversation(raw, "messages", notes), "messages")]
    for number, (message, weight) in enumerate(zip(messages, weights, strict=True)):
        if weight not in (0, 1):
            raise Fault(f"messages.{number}.{NOT_TRAINED}", f"expected 0 or 1, found {shown(weight)}")
        if weight == 0:
            message[NOT_TRAINED] = 0
        if _is_imitated(message) and not message["content"] and "tool_calls" not in message:
            raise Fault(f"messages.{number}", "an assistant message that says nothing cannot be imitated")
    if messages[0]["role"] == "assistant":
        raise Fault("messages.0", "the assistant speaks first; expected a system or user message before it")
    if not any(map(_is_imitated, messages)):
        raise Fault("messages", "no assistant message to imitate")
    for name in row.keys() - {"messages", "tools"}:
        notes[f"field {name!r} left out"] += 1
    tools = read_tools(row.get("tools"), "tools", notes)
    return Demonstration(messages, json.loads(tools) if tools else [], where)


def _is_imitated(message: Message) -> bool:
    return message["role"] == "assistant" and message.get(NOT_TRAINED) != 0


# Tokens ---------------------------------------------------------------------------------------------------------------


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
) -> Encoded:
    """Cut where generation begins and ends, found by rendering the conversation up to each reply and after it.

    Up to the first reply the ids are exactly `apply_chat_template(messages[:k], tools=tools,
    add_generation_prompt=True)`; no token spans prompt and reply. What follows the last reply is not encoded.

    Args:
        messages: in chat-completions form; assistant messages with `weight` 0 belong to the prompt.
    Raises:
        ChatTemplateError: the template refuses the conversation, writes earlier messages otherwise once later ones
            follow, or ends a reply with no special token.
        ValueError: nobody has to say anything.
    """
    plain = [_for_template(message) for message in messages]
    ids: list[int] = []
    mask: list[int] = []
    written = end_of_turn = ""
    for turn, message in enumerate(messages):
        if not _is_imitated(message):
            continue
        before = _render(tokenizer, plain[:turn], tools, add_generation_prompt=True)
        after = _render(tokenizer, plain[: turn + 1], tools)
        if not before.startswith(written) or not after.startswith(before):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} does not preserve prefixes: what it wrote before "
                "reads otherwise once a message follows, so no reply can be trained as it will be sampled; give one "
                "that does with --chat_template_path (TRL's folder chat_templates has *_training.jinja for many models)"
            )
        reply = after[len(before) :].rstrip()
        reply_ids = tokenizer.encode(reply, add_special_tokens=False)
        if not reply_ids or tokenizer.decode(reply_ids[-1:], skip_special_tokens=True):
            raise ChatTemplateError(
                f"the chat template of {tokenizer.name_or_path} ends a reply with {reply[-20:]!r}, expected a special "
                "token: a policy could not learn to stop; give a template that writes one with --chat_template_path"
            )
        # behind the token that ended the last reply, as it will stand there when the engine reads it
        between = tokenizer.encode(end_of_turn + before[len(written) :], add_special_tokens=False)
        prompt_ids = between[1:] if written else between
        ids += prompt_ids + reply_ids
        mask += [0] * len(prompt_ids) + [1] * len(reply_ids)
        written, end_of_turn = before + reply, str(tokenizer.convert_ids_to_tokens(reply_ids[-1]))
    if not ids:
        raise ValueError("no assistant message to imitate")
    return Encoded(ids, mask)


def encode_all(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration], *, max_length: int
) -> list[Encoded]:
    """Those that have at most `max_length` tokens, in order; the result is shorter by the others.

    Raises:
        ChatTemplateError: the template cannot be trained on, or refuses a conversation, which is named.
        DataError: all are too long.
    """
    encoded = []
    for demonstration in demonstrations:
        try:
            encoded.append(encode_conversation(tokenizer, demonstration.messages, demonstration.tools))
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{demonstration.where}: {error}") from None
    fitting = [one for one in encoded if len(one.ids) <= max_length]
    if not fitting:
        shortest = min(len(one.ids) for one in encoded)
        raise DataError(
            f"all {len(encoded)} conversations are longer than --max_length {max_length}; the shortest has {shortest} "
            "tokens"
        )
    return fitting


def digest(encoded: Sequence[Encoded]) -> str:
    """sha256 of what is trained on, in order."""
    whole = hashlib.sha256()
    for one in encoded:
        whole.update(json.dumps([one.ids, one.mask]).encode())
    return whole.hexdigest()


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool = False,
) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        )
    except Exception as error:  # a template is a program: it may raise anything
        raise ChatTemplateError(
            f"the chat template of {tokenizer.name_or_path} refuses the conversation ({type(error).__name__}: "
            f"{error}); leave such rows out or give another --chat_template_path"
        ) from None


def _for_template(message: Message) -> Message:
    """Arguments as an object, which templates print (vLLM's chat endpoints do the same), and no content as an empty
    one; arguments that are no object stay text."""
    said = {key: value for key, value in message.items() if key != NOT_TRAINED}
    said["content"] = said.get("content") or ""
    if calls := said.get("tool_calls"):
        said["tool_calls"] = [{**call, "function": _with_object(call["function"])} for call in calls]
    return said


def _with_object(function: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError):
        return function
    return {**function, "arguments": arguments} if isinstance(arguments, dict) else function
