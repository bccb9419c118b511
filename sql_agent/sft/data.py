"""Demonstrations to train on, made or read.

They are DB-Bench tasks played by the scripted oracle, references in the rows of an environment (a question's query is
one), GSM8K solutions with calculator calls, or JSONL of messages. Leaves out the training (`sql_agent.sft.run`),
packing and truncation: conversations that are too long are left out and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.data_utils import common_prefix_length

from agentgrpo.chat.calls import repair_tool_calls
from agentgrpo.chat.conversations import (
    TOOL_COLUMNS,
    RowError,
    is_context,
    normalize_tool_call_ids,
    read_conversation,
    read_text,
    take_mark,
    tools_of,
    without_json_texts,
)
from agentgrpo.chat.conversations import short_repr as shown
from agentgrpo.chat.messages import medium_in, why_no_medium, why_rendered
from agentgrpo.chat.replies import EncodedReplies, encode_conversation, is_imitated
from agentgrpo.chat.template import NOT_TRAINED, ChatTemplateError
from agentgrpo.columns import Columns, check_unread, columns_flag, known_columns, no_form, parse_columns
from agentgrpo.row_files import RowFileError, iter_rows
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.interaction import Message
from sql_agent.datatypes import OWN_REWARD, success_of
from sql_agent.environments.base import Environment
from sql_agent.play.scripted import ScriptedPlay, play_scripted
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig
from sql_agent.trained_on import TrainedOn


class DataError(ValueError):
    """There is nothing to train on, or a row cannot be used; the message has file, line and what to do."""


@dataclass(frozen=True)
class Demonstration:
    """A conversation; every assistant message is trained on, unless its `weight` is 0."""

    messages: list[Message]
    """Messages in chat-completions form; arguments of calls are JSON text or an object."""
    tools: list[dict[str, Any]]
    where: str
    """Its name in error messages: file and line, or a task's id."""


@dataclass(frozen=True)
class PlainText:
    """A text that is learnt without a chat template."""

    prompt: str
    """The part that is not learnt; empty for a row of `text`."""
    completion: str
    where: str


@dataclass
class Demonstrations:
    kept: list[Demonstration | PlainText] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of those left out, by reason."""
    notes: Counter[str] = field(default_factory=Counter)
    """Further notes, such as fields of a file that are not read, with the number of times each applies."""
    trained_on: TrainedOn = field(default_factory=TrainedOn)
    """The record of the model that has learnt them."""
    split: str | None = None
    """How the rows of a task file were split, for the person who starts the run."""


# Sources --------------------------------------------------------------------------------------------------------------


def dbbench_demonstrations(tasks: Sequence[Task], environment: Environment) -> Demonstrations:
    """Play the oracle's replies through a real episode of each task, and keep those that the judge finds right.

    The others are left out by reason: `no_reference` (the task has no statement, so the oracle would have to guess),
    the judge's reason, `table_error`, or `history_cut` (the protocol would not show the policy the whole conversation).

    Raises:
        BackendUnavailable: the database server does not answer.
    """
    known = [task for task in tasks if task.gold.sql is not None]
    found = reference_demonstrations(known, environment)
    if unknown := len(tasks) - len(known):
        found.left_out["no_reference"] = unknown
    return found


def reference_demonstrations(tasks: Iterable[Any], environment: Environment) -> Demonstrations:
    """Play the reference of each task through a real episode, and keep those that the environment does not find wrong.

    The others are left out by reason: `no_reference`; `too_many_replies` for the environment's own limit; the judge's
    reason, or `not_solved` if the environment gives the reward itself; why the episode was lost; `history_cut`. If the
    environment never says what is solved, references are kept without a verdict, and the notes say so.

    Args:
        environment: one that has been entered.
    Raises:
        BackendUnavailable: the database does not answer.
    """
    found = Demonstrations()
    for task in tasks:
        replies = environment.reference_replies(task)
        if not replies:
            found.left_out["no_reference"] += 1
            continue
        if len(replies) > environment.max_replies(AgentConfig()):
            found.left_out["too_many_replies"] += 1
            continue
        rollout = play_scripted(environment, task, "reference", replies)
        if rollout.stop == "db_unavailable":
            raise BackendUnavailable(rollout.error)
        assert rollout.score is not None
        if rollout.lost:
            if rollout.stop == "environment_error" and not found.left_out[rollout.lost]:
                found.notes[
                    f"first reference that was lost under {rollout.lost}: task {task.id!r}, {rollout.error}"
                ] = 1
            found.left_out[rollout.lost] += 1
            continue
        score, messages = rollout.score, _learnt(rollout)
        success = success_of(score)
        unknown = success is None and score.reason in (OWN_REWARD, NO_JUDGE)
        if success != 1.0 and not unknown:
            found.left_out["not_solved" if score.reason == OWN_REWARD else score.reason] += 1
        elif environment.history(messages) != messages:
            found.left_out["history_cut"] += 1
        else:
            found.notes.update(["a reference was kept without a verdict"] if unknown else [])
            found.kept.append(Demonstration(messages, environment.tools, f"task {task.id!r}"))
    return found


def _learnt(rollout: ScriptedPlay) -> list[Message]:
    """The conversation up to the last reply; replies of the first prompt are not trained on."""
    messages = [
        {**message, NOT_TRAINED: 0} if place < rollout.num_prompt and message["role"] == "assistant" else message
        for place, message in enumerate(rollout.messages)
    ]
    while rollout.stop is not None and messages[-1]["role"] != "assistant":
        messages.pop()  # the policy never reads what answers its last reply
    return messages


def read_messages(path: Path, limit: int | None = None, columns: str | None = None) -> Demonstrations:
    """Read JSON, JSONL or parquet in TRL's forms for fine-tuning: `messages`, `prompt` and `completion`, or `text`.

    ShareGPT's `conversations` are messages. `tools` may be missing, or a string of JSON. Messages are read as by the
    reward model's converter, with the field names of OpenAI and ShareGPT; ids of calls are numbered anew. Other changes
    are noted.

    Args:
        limit: number of rows to take, from the top.
        columns: the user's names of the columns (`parse_columns`).
    Raises:
        DataError: there is no row, or a row cannot be used; the message names its line.
    """
    found, given = Demonstrations(), parse_columns(columns)
    try:
        for row in iter_rows(path):
            if limit is not None and len(found.kept) >= limit:
                break
            where = f"{path}, {row.place}"
            try:
                demonstration = _read_row(row.value, where, found, given)
                if demonstration is None:
                    continue
                if found.kept and type(demonstration) is not type(found.kept[0]):
                    raise RowError("row", "plain text and messages in one file; give them as two files")
                found.kept.append(demonstration)
            except RowError as fault:
                raise DataError(f"{where}, {fault}") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: {error}; expected a JSON object with messages") from None
    except RowFileError as error:
        raise DataError(f"--dataset {error}") from None
    if found.left_out and not found.kept:
        raise DataError(f"{path} holds nothing to learn: {_counted(found.left_out)}")
    if not found.kept:
        raise DataError(
            f'{path} holds no row; expected {{"messages": [...]}}, prompt and completion, or text, on each line'
        )
    return found


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())


FORMS = (("messages",), ("prompt", "completion"), ("text",))
"""Fields of TRL's forms for fine-tuning; the first form whose fields a row has is read."""
_KNOWN = ("messages", "prompt", "completion", "text", "system", "label", *TOOL_COLUMNS)


def _read_row(raw: Any, where: str, found: Demonstrations, given: Columns) -> Demonstration | PlainText | None:
    """Read a row; None, which is counted, if the row says that it is not learnt."""
    notes = found.notes
    if isinstance(raw, RowError):
        raise raw
    row = without_json_texts(known_columns(raw, _KNOWN, given, {"conversations": "messages"}), notes)
    form = next((names for names in FORMS if row.keys() >= set(names)), None)
    if form is None:
        raise no_form(raw, FORMS)
    if not given and (mark := _left_out_by(raw, row, form)) is not None:
        found.left_out[f"marked by {mark!r} as not to be learnt"] += 1
        return None
    held: list[Any] = [row[name] for name in form]
    plain = form == ("text",) or (len(form) == 2 and all(isinstance(one, str) for one in held))
    beside = [name for name in ("system", *TOOL_COLUMNS) if row.get(name)]
    if plain and beside:
        raise RowError(beside[0], f"is read beside messages only; to leave it out: {columns_flag(raw, form, ())}")
    read = [*form, *beside]
    if not given:
        passed = {name for name in _KNOWN if name not in ("system", *TOOL_COLUMNS)} | {*read, "conversations"}
        check_unread(raw, read, passed, ("prompt", "system", "tools"))
        for name in raw.keys() - {*read, "conversations"}:
            if raw[name] is not None and str(name).lower() not in read:
                notes[f"field {name!r} left out"] += 1
    if plain:
        texts = [read_text(one, name, notes) for name, one in zip(form, held, strict=True)]
        if not texts[-1].strip():
            raise RowError(form[-1], "is empty")
        for name, text in zip(form, texts, strict=True):
            if (medium := medium_in(text)) is not None:
                raise RowError(name, why_no_medium(medium))
        return PlainText(*texts, where=where) if len(texts) == 2 else PlainText("", texts[0], where)
    for name, one in zip(form, held, strict=True):
        if not isinstance(one, list):
            raise RowError(name, f"expected a list of messages, found {shown(one)}")
    if row.get("system"):
        held[0] = [{"role": "system", "content": row["system"]}, *held[0]]
    tools = tools_of(row, notes)
    messages = _read_messages(form, held, tools, notes)
    return Demonstration(messages, json.loads(tools) if tools else [], where)


def _left_out_by(raw: dict[str, Any], row: dict[str, Any], form: Sequence[str]) -> str | None:
    """Name of the field by which a row says that nothing of it is learnt; TRL's `label` says whether a reply is good.

    Raises:
        RowError: a field of the row looks like a mark, and its meaning is not certain.
    """
    mark = take_mark({name: raw[name] for name in raw if str(name).lower() != "label"}, "")[1]
    if mark is not None and not mark[1]:
        return mark[0]
    label = row.get("label") if form == ("prompt", "completion") else None
    if isinstance(label, int) and not isinstance(label, bool):
        every = "--columns prompt=prompt,completion=completion"
        raise RowError("label", f"expected true or false, found {label}; to learn every row: {every}")
    return "label" if label is False else None


def _read_messages(
    form: Sequence[str], held: Sequence[list[Any]], tools: str | None, notes: Counter[str]
) -> list[Message]:
    """Read the messages of a row; replies of a `prompt`, and those that are marked, get weight 0."""
    places = [f"{name}.{k}" for name, messages in zip(form, held, strict=True) for k in range(len(messages))]
    raw = [message for messages in held for message in messages]
    pairs = [take_mark(message, place) for message, place in zip(raw, places, strict=True)]
    num_prompt = len(raw) - len(held[-1])
    unmarked = [message for message, _ in pairs]
    parts = (unmarked[:num_prompt], unmarked[num_prompt:]) if len(form) == 2 else (unmarked,)
    given = [m for name, messages in zip(form, parts, strict=True) for m in read_conversation(messages, name, notes)]
    given = repair_tool_calls(normalize_tool_call_ids(given, form[-1], num_prompt=num_prompt), tools, notes)
    for place, one in zip(places, given, strict=True):
        if (why := why_rendered(one)) is not None:
            raise RowError(place, why)
    messages = [message.to_dict() for message in given]
    for number, (place, message, (_, mark)) in enumerate(zip(places, messages, pairs, strict=True)):
        marked = is_context(mark, message["role"], place, notes)
        if marked or (number < num_prompt and message["role"] == "assistant"):
            message[NOT_TRAINED] = 0
        if is_imitated(message) and not message["content"] and "tool_calls" not in message:
            raise RowError(place, "an assistant message that says nothing cannot be imitated; give it weight 0")
    if messages[0]["role"] == "assistant":
        raise RowError(places[0], "the assistant speaks first; expected a system or user message before it")
    if not any(map(is_imitated, messages)):
        raise RowError(form[-1], "no assistant message to imitate; leave the row out, or add a reply")
    return messages


# Tokens ---------------------------------------------------------------------------------------------------------------


def encode_all(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration | PlainText], *, max_length: int | None
) -> list[EncodedReplies]:
    """Encode the demonstrations in order, except those with more than `max_length` tokens, if there is a limit.

    Raises:
        ChatTemplateError: the template cannot be used for training, or refuses a conversation, which is named.
        DataError: all are too long, or the tokenizer cannot end a plain text.
    """
    encoded = []
    for demonstration in demonstrations:
        if isinstance(demonstration, PlainText):
            encoded.append(encode_text(tokenizer, demonstration.prompt, demonstration.completion))
            continue
        try:
            encoded.append(encode_conversation(tokenizer, demonstration.messages, demonstration.tools))
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{demonstration.where}: {error}") from None
    fitting = [one for one in encoded if max_length is None or len(one.ids) <= max_length]
    if not fitting:
        shortest = min(len(one.ids) for one in encoded)
        raise DataError(
            f"all {len(encoded)} conversations are longer than --max-length {max_length}; the shortest has {shortest} "
            "tokens: raise --max-length, or take a model with a longer context"
        )
    return fitting


def encode_text(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> EncodedReplies:
    """Encode a plain text without a chat template, as TRL's `SFTTrainer` does; the tokenizer's eos_token ends it.

    Args:
        prompt: the part that is not learnt; it may be empty.
    Raises:
        DataError: the tokenizer has no eos_token.
    """
    if tokenizer.eos_token is None:
        raise DataError(
            f"the tokenizer of {tokenizer.name_or_path} has no eos_token, so nothing would end a plain text; set one "
            "in its tokenizer_config.json, or give rows of messages"
        )
    eos = str(tokenizer.eos_token)
    ids = tokenizer(prompt + completion.removesuffix(eos) + eos)["input_ids"]
    start = common_prefix_length(tokenizer(prompt)["input_ids"], ids) if prompt else 0
    return EncodedReplies(ids, [0] * start + [1] * (len(ids) - start))
