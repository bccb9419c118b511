"""The forms that a row with a pair can have, by name.

A form reads prompt and sides. Then all forms share these steps: the prompt is removed from sides that repeat it, or is
taken from the common beginning of both sides; conversations are checked; equal sides are refused. A new form is a
function and an entry in `FORMS`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agentgrpo.chat.calls import repair_tool_calls
from agentgrpo.chat.conversations import (
    CONVERSATIONS,
    TOOL_COLUMNS,
    RowError,
    is_context,
    normalize_tool_call_ids,
    read_conversation,
    read_message,
    read_text,
    short_repr,
    take_mark,
    tools_of,
    without_json_texts,
    without_tools,
)
from agentgrpo.chat.messages import Message
from agentgrpo.columns import Columns, check_unread, known_columns, no_form
from reward_model.datatypes import ROLLOUTS, Preference, rendered_part

Row = dict[str, Any]
Conversation = list[Message]


@dataclass
class RawPair:
    chosen: Conversation
    rejected: Conversation
    prompt: Conversation | None = None
    """The prompt; None stands for the messages with which both sides begin."""


@dataclass(frozen=True)
class PairForm:
    needs: str
    """The fields that identify the form, for help and error messages."""
    fits: Callable[[Row], bool]
    read: Callable[[Row, Counter[str]], RawPair]
    fields: frozenset[str]
    """The fields that are read; other fields are left out and counted."""
    system: str | None = "system"
    """The field with a separate system message."""


@dataclass
class Converter:
    """
    Args:
        form: the name of the form that all rows have; None detects the form of each row.
        columns: the user's names of the columns.
        drop_tools: whether calls, results and schemas of tools are left out.
    """

    form: str | None = None
    drop_tools: bool = False
    columns: Columns = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    """The changes and omissions in kept rows, by name, counted in messages or rows as the name says."""
    forms: Counter[str] = field(default_factory=Counter)
    """The number of kept rows by form."""

    def __call__(self, raw: Any, metadata: dict[str, Any]) -> Preference:
        """Raises RowError: the row is not a pair; `changes` and `forms` stay as they were."""
        changes: Counter[str] = Counter()
        row = without_json_texts(known_columns(raw, _KNOWN, self.columns), changes)
        name = self.form or pair_form(row, raw)
        form = FORMS[name]
        try:
            if self.form is None and not self.columns:
                # Whoever names the form or the columns has said that these are all that is meant.
                _check_unread(raw, row, form)
            if not self.columns:
                read = form.fields | _OTHER_READ | {form.system}
                left = (name for name in raw if raw[name] is not None and str(name).lower() not in read)
                changes.update(f"field {name!r} left out" for name in left)
            preference = _preference(raw, row, form, changes, metadata, self.drop_tools)
        except RecursionError:
            raise RowError("row", "nested too deeply", name) from None
        except RowError as problem:
            raise RowError(problem.field, problem.reason, name) from None
        self.changes += changes
        self.forms[name] += 1
        return preference


def pair_form(row: Row, raw: Row | None = None) -> str:
    """
    Args:
        row: under the known names; `raw` is under the user's own.
    Raises:
        RowError: no form fits.
    """
    for name, form in FORMS.items():
        if form.fits(row):
            return name
    raise no_form(row if raw is None else raw, _NEEDED, ("system",))


def _check_unread(raw: Row, row: Row, form: PairForm) -> None:
    read = form.fields | _OTHER_READ | ({form.system} if form.system else set())
    known = read | {"messages", *_CONTINUATIONS}
    check_unread(raw, [name for name in row if name in form.fields], known, ("prompt", "system", "tools"))


def _preference(
    raw: Row, row: Row, form: PairForm, changes: Counter[str], metadata: dict[str, Any], drop_tools: bool
) -> Preference:
    mark = take_mark(raw, "")[1]
    if mark is not None and not mark[1]:
        raise RowError(mark[0], "says that the row is not to be learnt; leave the row out, or remove the field")
    unmarked, context = _unmarked(row, form.fields, changes)
    pair = form.read(unmarked, changes)
    tools = tools_of(row, changes)
    if form.system and row.get(form.system) not in (None, ""):
        _add_system(pair, read_text(row[form.system], form.system, changes))
    if not (isinstance(row.get("metadata"), dict) and row["metadata"].keys() == ROLLOUTS):
        # what the policy wrote in a rollout is what is scored
        if (fault := rendered_part(prompt=pair.prompt or (), chosen=pair.chosen, rejected=pair.rejected)) is not None:
            raise RowError(*fault)
        for messages in (pair.prompt or [], pair.chosen, pair.rejected):
            messages[:] = repair_tool_calls(messages, tools, changes)
    prompt, whole = _joined(pair, changes)
    if drop_tools:
        changes["tools' schemas dropped"] += tools is not None
        tools, touched = None, any(m.tool_calls or m.role == "tool" for side in whole.values() for m in side)
        for name, side in whole.items():
            if side[-1].tool_calls:
                raise RowError(name, "ends with a tool call, of which nothing would be left; leave out --drop-tools")
        if touched:
            prompt, whole = None, {name: without_tools(side, changes) for name, side in whole.items()}
    whole = {name: normalize_tool_call_ids(side, name, num_prompt=prompt or 0) for name, side in whole.items()}
    for name, side in whole.items():
        _check_end(side, name)
    if _without_last_blanks(whole["chosen"]) == _without_last_blanks(whole["rejected"]):
        raise RowError("rejected", "says the same as chosen")
    cut = _common_prompt(whole["chosen"], whole["rejected"]) if prompt is None else prompt
    if not any(message.role == "user" for message in whole["chosen"][:cut]):
        raise RowError("prompt", "chosen and rejected do not begin with the same user message")
    for name, side in whole.items():
        if any(_is_among(message, context) for message in side[cut:]):
            raise RowError(name, "holds a reply that is marked as not to be learnt; put it into prompt, or unmark it")
    try:
        return Preference(
            prompt=tuple(whole["chosen"][:cut]),
            chosen=tuple(whole["chosen"][cut:]),
            rejected=tuple(whole["rejected"][cut:]),
            tools=tools,
            metadata=metadata,
        )
    except ValidationError as error:
        raise RowError("row", error.errors()[0]["msg"]) from None


def _unmarked(row: Row, fields: frozenset[str], changes: Counter[str]) -> tuple[Row, Conversation]:
    """The row without marks of what is learnt, and the messages that are marked as context."""
    read, context = dict(row), []
    for name in fields & {*CONVERSATIONS}:
        held = row.get(name)
        held = [held] if isinstance(held, dict) else held
        if isinstance(held, list):
            read[name] = [_without_mark(raw, f"{name}.{n}", context, changes) for n, raw in enumerate(held)]
    return read, context


def _without_mark(raw: object, field: str, context: Conversation, changes: Counter[str]) -> object:
    unmarked, mark = take_mark(raw, field)
    if mark is not None:
        message = read_message(unmarked, field, Counter())
        if is_context(mark, message.role, field, changes):
            context.append(message)
    return unmarked


def _is_among(message: Message, context: Conversation) -> bool:
    # A reply may have been joined with what followed it.
    calls = [call.function for call in message.tool_calls]  # without ids, which are new
    return any(
        f"\n\n{one.content}\n\n" in f"\n\n{message.content}\n\n"
        if one.content
        else calls and calls == [call.function for call in one.tool_calls]
        for one in context
    )


def _without_last_blanks(side: Conversation) -> Conversation:
    return [message.model_copy(update={"content": message.content.rstrip()}) for message in side]


def _check_end(side: Conversation, name: str) -> None:
    if not side:
        raise RowError(name, "holds no reply")
    if side[-1].role != "assistant":
        raise RowError(name, f"ends with a {side[-1].role} message; what is scored has to end with the assistant")
    if side[-1].is_empty:
        raise RowError(name, "ends with an empty reply")


def _common_prompt(chosen: Conversation, rejected: Conversation) -> int:
    # Only up to where the assistant speaks, so that both sides keep a reply.
    shorter = min(len(chosen), len(rejected)) - 1
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)
    while cut > 0 and chosen[cut - 1].role == "assistant":
        cut -= 1
    return cut


def _add_system(pair: RawPair, text: str) -> None:
    """Raises RowError: the messages begin with another system message."""
    system = Message(role="system", content=text)
    for name, messages in (("prompt", pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)):
        if messages and messages[0].role == "system":
            if messages[0] != system:
                raise RowError(f"{name}.0", "differs from the row's separate system message; keep one of them")
            messages.pop(0)
            if not messages and name != "prompt":
                raise RowError(name, "holds no reply")
    for messages in (pair.chosen, pair.rejected) if pair.prompt is None else (pair.prompt,):
        messages.insert(0, system)


def _joined(pair: RawPair, changes: Counter[str]) -> tuple[int | None, dict[str, Conversation]]:
    """Length of the prompt (None: what both sides begin with), and both sides as whole conversations."""
    sides = {"chosen": pair.chosen, "rejected": pair.rejected}
    if pair.prompt is None:
        return None, sides
    replies = all(side[0].role in ("assistant", "tool") for side in sides.values())
    whole = {name: _whole(pair.prompt, side, name, changes) for name, side in sides.items()}
    return len(pair.prompt) if replies else None, whole


def _whole(prompt: Conversation, side: Conversation, name: str, changes: Counter[str]) -> Conversation:
    # A side may be replies alone, or may repeat the prompt or the question.
    if side[0].role in ("assistant", "tool"):
        return [*prompt, *side]
    (system, asked), (own_system, said) = _system_apart(prompt), _system_apart(side)
    if system and own_system and system != own_system:
        raise RowError(f"{name}.0", "differs from the prompt's system message; keep one of them")
    question_alone = len(asked) == 1 and any(_same(message, asked[0]) for message in said)
    if question_alone or (asked and len(said) > len(asked) and all(map(_same, said, asked))):
        changes["sides that repeated the prompt"] += 1
    elif prompt[-1].role == "user":
        raise RowError("prompt", f"{name} is a whole conversation that does not contain it")
    else:
        said = [*asked, *said]
    return [*(system or own_system), *said]


def _system_apart(messages: Conversation) -> tuple[Conversation, Conversation]:
    cut = int(messages[0].role == "system")
    return messages[:cut], messages[cut:]


def _same(one: Message, other: Message) -> bool:
    return one.role == other.role and one.content.strip() == other.content.strip()


# Forms ----------------------------------------------------------------------------------------------------------------

SIDES = frozenset({"chosen", "rejected"})


def _side(value: object, name: str, changes: Counter[str]) -> Conversation:
    if isinstance(value, list | dict):
        return read_conversation(value, name, changes)
    if not isinstance(value, str):
        raise RowError(name, f"expected a text or messages, found {short_repr(value)}")
    return [Message(role="assistant", content=_filled(value, name, changes))]


def _filled(value: object, name: str, changes: Counter[str]) -> str:
    text = read_text(value, name, changes)
    if not text.strip():
        raise RowError(name, "is empty")
    return text


def _sides(row: Row, changes: Counter[str]) -> tuple[Conversation, Conversation]:
    return _side(row.get("chosen"), "chosen", changes), _side(row.get("rejected"), "rejected", changes)


# A shorter prompt may stand at the start of both answers by chance ("Yes").
_REPEATED_CHARS = 20


def _explicit(row: Row, changes: Counter[str]) -> RawPair:
    given = row.get("prompt")
    if not isinstance(given, str):
        prompt = read_conversation(given, "prompt", changes)
        return RawPair(*_sides(row, changes), prompt)
    text = _filled(given, "prompt", changes)
    sides = {name: row.get(name) for name in SIDES}
    cut = {name: _without(side, text) for name, side in sides.items()} if len(text.strip()) >= _REPEATED_CHARS else {}
    repeated = sum(side is not None for side in cut.values())
    changes["sides that repeated the prompt"] += repeated if repeated == 2 else 0
    changes["prompts that one side alone repeats, left in it"] += repeated == 1
    chosen, rejected = _sides(cut if repeated == 2 else sides, changes)
    return RawPair(chosen, rejected, [Message(role="user", content=text)])


def _without(side: object, prompt: str) -> str | None:
    """The side after the prompt and one blank or line break; None if it does not repeat the prompt."""
    if not isinstance(side, str) or not side.startswith(prompt):
        return None
    rest = side[len(prompt) :]
    if not prompt[-1].isspace():
        if not rest[:1].isspace():
            return None
        rest = re.sub(r"^(\r?\n|\s)", "", rest)
    return rest if rest.strip() else None


def _implicit(row: Row, changes: Counter[str]) -> RawPair:
    # Two whole conversations, or two texts that begin with their prompt.
    if isinstance(row.get("chosen"), str) and isinstance(row.get("rejected"), str):
        return _implicit_texts(*(read_text(row[name], name, changes) for name in ("chosen", "rejected")))
    return RawPair(*(read_conversation(row.get(name), name, changes) for name in ("chosen", "rejected")))


def _implicit_texts(chosen: str, rejected: str) -> RawPair:
    """Cut at the last white space before the texts differ, so that no word is cut; TRL's `extract_prompt` cuts at the
    character.

    Raises:
        RowError: the texts do not begin with the same word, or one of them ends where the other goes on.
    """
    shorter = min(len(chosen), len(rejected))
    alike = chosen[: next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)]
    prompt = re.sub(r"\S*\Z", "", alike)
    if not prompt.strip():
        raise RowError("prompt", "missing, and chosen and rejected do not begin with the same word; give the prompt")
    sides = {"chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}
    if empty := next((name for name, side in sides.items() if not side.strip()), None):
        raise RowError(empty, "holds nothing after what both texts begin with")
    better, worse = ([Message(role="assistant", content=side)] for side in sides.values())
    return RawPair(better, worse, [Message(role="user", content=prompt.strip())])


def _agent(row: Row, changes: Counter[str]) -> RawPair:
    # With `rejected_messages` alone the log (`messages`) is the chosen side, with `chosen_messages` alone the rejected
    # one. An alternative is a whole conversation, or replies to the log's last user message. With both, the log is the
    # prompt; an answer at its end is ignored.
    log = read_conversation(row.get("messages"), "messages", changes)
    others: dict[str, Conversation] = {}
    replies = []
    for side in ("chosen", "rejected"):
        name = next((n for n in (f"{side}_messages", f"{side}_response") if row.get(n) is not None), None)
        if name is None:
            continue
        others[side] = _side(row[name], name, changes)
        if others[side][0].role in ("assistant", "tool"):
            replies.append(side)
            if any(message.role == "user" for message in others[side]):
                raise RowError(
                    name,
                    "begins with a reply and holds user messages; give the whole conversation",
                )
    if not others:
        raise RowError("rejected_messages", "missing, and no chosen_messages either; give one of them")
    asked = log[: max((i + 1 for i, message in enumerate(log) if message.role == "user"), default=0)]
    if len(others) == 2 and (log[-1].role != "assistant" or any(other[0].role == "tool" for other in others.values())):
        asked = log
    if len(replies) == 2:
        return RawPair(others["chosen"], others["rejected"], asked)
    whole = {side: [*asked, *other] if side in replies else _with_system(log, other) for side, other in others.items()}
    for side, other in whole.items():
        first, own = (next((m for m in messages if m.role == "user"), None) for messages in (log, other))
        if len(others) == 2 and first not in (None, own):
            raise RowError(f"{side}_messages", "does not begin with the log's first question")
    return RawPair(**({"chosen": log, "rejected": log} | whole))


def _with_system(log: Conversation, other: Conversation) -> Conversation:
    return [*(log[:1] if log[0].role == "system" != other[0].role else []), *other]


def _instruction(row: Row, changes: Counter[str]) -> RawPair:
    texts = [_filled(row.get("instruction"), "instruction", changes)]
    if row.get("input") not in (None, ""):
        texts.append(read_text(row["input"], "input", changes))
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise RowError("history", f"expected a list of [question, answer], found {short_repr(history)}")
    prompt: Conversation = []
    for number, turn in enumerate(history):
        question, answer = (_filled(text, f"history.{number}", changes) for text in turn)
        prompt += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    return RawPair(*_sides(row, changes), [*prompt, Message(role="user", content="\n".join(texts))])


def _sharegpt(row: Row, changes: Counter[str]) -> RawPair:
    return RawPair(*_sides(row, changes), read_conversation(row.get("conversations"), "conversations", changes))


_SPEAKER = re.compile(r"(?:^\s*|\n\n)(Human|Assistant):")


def _hh(row: Row, changes: Counter[str]) -> RawPair:
    # Anthropic's transcripts: `chosen` and `rejected` are one text each, which follows `prompt`, if any.
    prompt = read_text(row.get("prompt") or "", "prompt", changes)
    return RawPair(*(_transcript(prompt, row.get(name), name, changes) for name in ("chosen", "rejected")))


def _transcript(prompt: str, value: object, name: str, changes: Counter[str]) -> Conversation:
    text = read_text(value, name, changes)
    parts = _SPEAKER.split(prompt + text if not _is_transcript(text) else text)
    if parts[0].strip() or len(parts) < 3:
        raise RowError(name, f"expected a text that begins with 'Human:', found {short_repr(text)}")
    return [
        Message(role="user", content=_filled(said.strip(), name, changes))
        if speaker == "Human"
        else Message(role="assistant", content=said.strip())
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _is_transcript(value: object) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("Human:")


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: row.keys() >= SIDES and all(row.get(name) is not None for name in names)


_HISTORY = frozenset({"instruction", "input", "history"})
_CONTINUATIONS = frozenset({"chosen_messages", "rejected_messages", "chosen_response", "rejected_response"})
_OTHER_READ = frozenset({*TOOL_COLUMNS, "metadata"})
FORMS: dict[str, PairForm] = {
    "sharegpt": PairForm(
        "conversations, chosen, rejected", _has("conversations"), _sharegpt, SIDES | {"conversations"}
    ),
    "agent": PairForm(
        "messages and rejected_messages or chosen_messages",
        lambda row: row.get("messages") is not None and any(row.get(name) is not None for name in _CONTINUATIONS),
        _agent,
        _CONTINUATIONS | {"messages"},
    ),
    "instruction": PairForm("instruction, chosen, rejected", _has("instruction"), _instruction, SIDES | _HISTORY),
    "hh": PairForm(
        "chosen and rejected as transcripts, \\n\\nHuman: ... \\n\\nAssistant: ...",
        lambda row: _has()(row) and (_is_transcript(row.get("prompt")) or _is_transcript(row["chosen"])),
        _hh,
        SIDES | {"prompt"},
        system=None,
    ),
    "explicit": PairForm("prompt, chosen, rejected", _has("prompt"), _explicit, SIDES | {"prompt"}),
    "implicit": PairForm("chosen and rejected as conversations or texts that begin alike", _has(), _implicit, SIDES),
}
_KNOWN = frozenset().union(*(form.fields for form in FORMS.values()), _OTHER_READ, {"system"})
_NEEDED = (("prompt", *sorted(SIDES)), ("chosen", "rejected"), ("messages", "rejected_messages"))
