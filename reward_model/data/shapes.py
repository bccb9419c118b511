"""The forms of a row that a pair can be read from, by name, and the way from a row to a `Preference`.

A form reads prompt and sides; what holds for all of them comes after: the prompt is taken out of sides that repeat it,
or is what both sides begin with; conversations are made legal; two equal sides are no pair. Adding a form is a function
and an entry in `FORMS`. Leaves out files (`files`) and what concerns several rows (`summary`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from core.conversations import (
    Problem,
    in_text,
    legal,
    read_conversation,
    read_text,
    read_tools,
    short_repr,
    without_tools,
)
from core.messages import Message
from reward_model.datatypes import Preference

Row = dict[str, Any]
Conversation = list[Message]


@dataclass
class Draft:
    """A pair as a form has read it."""

    chosen: Conversation
    rejected: Conversation
    prompt: Conversation | None = None
    """None: what both sides begin with."""


@dataclass(frozen=True)
class Form:
    needs: str
    """For people: the fields that the form is known by."""
    fits: Callable[[Row], bool]
    read: Callable[[Row, Counter[str]], Draft]
    fields: frozenset[str]
    """Fields that are read; others are left out and counted."""
    system: str | None = None
    """The field of a system message of its own."""


@dataclass
class Converter:
    """Turns rows into preferences one at a time and counts what it changes on the way.

    Args:
        form: the name of the form that all rows have; None finds out for each row.
        drop_tools: leave calls, results and schemas of tools out.
    """

    form: str | None = None
    drop_tools: bool = False
    changes: Counter[str] = field(default_factory=Counter)
    """What was changed or left out of rows that were kept, by name; messages or rows, as the name says."""
    forms: Counter[str] = field(default_factory=Counter)
    """Rows kept, by form."""

    def __call__(self, row: Any, metadata: dict[str, Any]) -> Preference:
        """Read one row.

        Args:
            metadata: goes into the preference as it is.
        Raises:
            Problem: the row is no pair; `changes` and `forms` stay as they were.
        """
        name = self.form or form_of(row)
        if self.form is None:
            _check_one_prompt(row, name)
        changes: Counter[str] = Counter()
        try:
            preference = _preference(row, FORMS[name], changes, metadata, self.drop_tools)
        except RecursionError:
            raise Problem("row", "nested too deep", name) from None
        except Problem as problem:
            raise Problem(problem.field, problem.reason, name) from None
        self.changes += changes
        self.forms[name] += 1
        return preference


def form_of(row: Any) -> str:
    """The name of the first form that fits.

    Raises:
        Problem: none does.
    """
    if not isinstance(row, dict):
        raise Problem("row", f"expected an object, found {short_repr(row)}")
    for name, form in FORMS.items():
        if form.fits(row):
            return name
    if "preferred_output" in row:
        fields = "input.messages to prompt, preferred_output to chosen, non_preferred_output to rejected"
        raise Problem("row", f"fits no known form: it has OpenAI's form; rename {fields}, input.tools to tools")
    known = "; ".join(f"{name} ({form.needs})" for name, form in FORMS.items())
    found = ", ".join(map(short_repr, list(row)[:12])) or "no field"
    raise Problem("row", f"fits no known form: found {found}, known are {known}")


def _check_one_prompt(row: Row, form: str) -> None:
    """Refuse a row with two different prompts. Beside a side of its own, `messages` is what UltraFeedback adds."""
    no_prompt = {"messages"} if form != "agent" else set()
    no_prompt |= {"input"} if form == "instruction" else set()
    names = ("input", "instruction", "conversations", "messages", "prompt")
    filled = [name for name in names if row.get(name) and name not in no_prompt]
    other = next((name for name in filled if row[name] != row[filled[0]]), None)
    if other is not None:
        raise Problem(filled[0], f"beside {other}, and another one; --format says which of them is the prompt", form)


def _preference(row: Any, form: Form, changes: Counter[str], metadata: dict[str, Any], drop_tools: bool) -> Preference:
    if not isinstance(row, dict):
        raise Problem("row", f"expected an object, found {short_repr(row)}")
    for name in _MEDIA:
        if row.get(name):
            raise Problem(name, "pictures and sound are not read")
    draft = form.read(_unpacked(row, form.fields, changes), changes)
    tools = read_tools(row.get("tools"), "tools", changes)
    for name in row.keys() - form.fields - {"tools", "metadata", form.system}:
        if row[name] is not None:
            changes[f"field {name!r} left out"] += 1
    if form.system and row.get(form.system) not in (None, ""):
        _add_system(draft, read_text(row[form.system], form.system, changes))
    prompt, whole = _joined(draft, changes)
    if drop_tools:
        changes["tools' schemas dropped"] += tools is not None
        tools, touched = None, any(m.tool_calls or m.role == "tool" for side in whole.values() for m in side)
        for name, side in whole.items():
            if side[-1].tool_calls:
                raise Problem(name, "ends with a tool call; without it nothing is left of what was answered")
        if touched:
            prompt, whole = None, {name: without_tools(side, changes) for name, side in whole.items()}
    whole = {name: legal(side, name, num_prompt=prompt or 0) for name, side in whole.items()}
    for name, side in whole.items():
        _check_end(side, name)
    if _without_last_blanks(whole["chosen"]) == _without_last_blanks(whole["rejected"]):
        raise Problem("rejected", "says the same as chosen")
    cut = _common_prompt(whole["chosen"], whole["rejected"]) if prompt is None else prompt
    if not any(message.role == "user" for message in whole["chosen"][:cut]):
        raise Problem("prompt", "chosen and rejected do not begin with the same user message")
    try:
        return Preference(
            prompt=tuple(whole["chosen"][:cut]),
            chosen=tuple(whole["chosen"][cut:]),
            rejected=tuple(whole["rejected"][cut:]),
            tools=tools,
            metadata=metadata,
        )
    except ValidationError as error:
        raise Problem("row", error.errors()[0]["msg"]) from None


def _unpacked(row: Row, fields: frozenset[str], changes: Counter[str]) -> Row:
    """The row with conversations that are JSON in a text, as exports of tables have them, as lists."""
    read = dict(row)
    for name in fields & _CONVERSATIONS:
        held = row.get(name)
        if isinstance(held, str) and (messages := in_text(held, name)) is not None:
            changes["conversations that were JSON in a text"] += 1
            read[name] = messages
    return read


def _without_last_blanks(side: Conversation) -> Conversation:
    return [message.model_copy(update={"content": message.content.rstrip()}) for message in side]


def _check_end(side: Conversation, name: str) -> None:
    if not side:
        raise Problem(name, "holds no reply")
    last = side[-1]
    if last.role != "assistant":
        raise Problem(name, f"ends with a {last.role} message; what is scored has to end with the assistant")
    if not last.content.strip() and not last.tool_calls:
        raise Problem(name, "ends with an empty reply")


def _common_prompt(chosen: Conversation, rejected: Conversation) -> int:
    """Messages that both begin with, up to where the assistant speaks next, so that a reply is left to both."""
    shorter = min(len(chosen), len(rejected)) - 1
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)
    while cut > 0 and chosen[cut - 1].role == "assistant":
        cut -= 1
    return cut


def _add_system(draft: Draft, text: str) -> None:
    """Put a system message of its own in front, unless the messages have it already.

    Raises:
        Problem: they have another one.
    """
    system = Message(role="system", content=text)
    for name, messages in (("prompt", draft.prompt), ("chosen", draft.chosen), ("rejected", draft.rejected)):
        first = messages[0] if messages else None
        if first is not None and first.role == "system":
            if first != system:
                raise Problem(f"{name}.0", "a system message other than the row's own")
            assert messages is not None
            del messages[0]
            if not messages and name != "prompt":
                raise Problem(name, "holds no reply")
    draft.prompt = [system, *(draft.prompt or [])] if draft.prompt is not None else None
    if draft.prompt is None:
        draft.chosen.insert(0, system)
        draft.rejected.insert(0, system)


def _joined(draft: Draft, changes: Counter[str]) -> tuple[int | None, dict[str, Conversation]]:
    """Length of the prompt (None: what both sides begin with) and both sides as whole conversations."""
    sides = {"chosen": draft.chosen, "rejected": draft.rejected}
    if draft.prompt is None:
        return None, sides
    replies = all(side[0].role in ("assistant", "tool") for side in sides.values())
    whole = {name: _whole(draft.prompt, side, name, changes) for name, side in sides.items()}
    return len(draft.prompt) if replies else None, whole


def _whole(prompt: Conversation, side: Conversation, name: str, changes: Counter[str]) -> Conversation:
    """The prompt and a side, which may be the replies alone or repeat the prompt or the question in it."""
    if side[0].role in ("assistant", "tool"):
        return [*prompt, *side]
    (system, asked), (own_system, said) = _system_apart(prompt), _system_apart(side)
    if system and own_system and system != own_system:
        raise Problem(f"{name}.0", "a system message other than the prompt's")
    question_alone = len(asked) == 1 and any(_same(message, asked[0]) for message in said)
    if question_alone or (asked and len(said) > len(asked) and all(map(_same, said, asked))):
        changes["sides that repeated the prompt"] += 1
    elif prompt[-1].role == "user":
        raise Problem("prompt", f"{name} is a conversation of its own, which does not hold it")
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


def _side(value: Any, name: str, changes: Counter[str]) -> Conversation:
    """A side: a reply as text, or messages."""
    if isinstance(value, list | dict):
        return read_conversation(value, name, changes)
    if not isinstance(value, str):
        raise Problem(name, f"expected a text or messages, found {short_repr(value)}")
    return [Message(role="assistant", content=_filled(value, name, changes))]


def _filled(value: Any, name: str, changes: Counter[str]) -> str:
    text = read_text(value, name, changes)
    if not text.strip():
        raise Problem(name, "is empty")
    return text


def _sides(row: Row, changes: Counter[str]) -> tuple[Conversation, Conversation]:
    return _side(row.get("chosen"), "chosen", changes), _side(row.get("rejected"), "rejected", changes)


_REPEATED_CHARS = 20
"""A shorter prompt at the head of both answers may be chance ("Yes")."""


def _explicit(row: Row, changes: Counter[str]) -> Draft:
    """`prompt`, `chosen`, `rejected`: texts or messages, each on its own."""
    given = row.get("prompt")
    if not isinstance(given, str):
        prompt = read_conversation(given, "prompt", changes)
        return Draft(*_sides(row, changes), prompt)
    text = _filled(given, "prompt", changes)
    sides = {name: row.get(name) for name in SIDES}
    cut = {name: _without(side, text) for name, side in sides.items()} if len(text.strip()) >= _REPEATED_CHARS else {}
    repeated = sum(side is not None for side in cut.values())
    changes["sides that repeated the prompt"] += repeated if repeated == 2 else 0
    changes["prompts that one side alone repeats, left in it"] += repeated == 1
    chosen, rejected = _sides(cut if repeated == 2 else sides, changes)
    return Draft(chosen, rejected, [Message(role="user", content=text)])


def _without(side: Any, prompt: str) -> str | None:
    """What follows the prompt and at most one blank or line break; None where the side does not repeat the prompt."""
    if not isinstance(side, str) or not side.startswith(prompt):
        return None
    rest = side[len(prompt) :]
    if not prompt[-1].isspace():
        if not rest[:1].isspace():
            return None
        rest = re.sub(r"^(\r?\n|\s)", "", rest)
    return rest if rest.strip() else None


def _implicit(row: Row, changes: Counter[str]) -> Draft:
    """`chosen`, `rejected`: whole conversations."""
    return Draft(*(read_conversation(row.get(name), name, changes) for name in ("chosen", "rejected")))


def _agent(row: Row, changes: Counter[str]) -> Draft:
    """`messages` and another way: the log is the better one beside `rejected_messages`, the worse one beside
    `chosen_messages`. A way is a whole conversation or replies to the log's last user message. Beside both the log is
    the prompt, without an answer of its own.
    """
    log = read_conversation(row.get("messages"), "messages", changes)
    ways: dict[str, Conversation] = {}
    replies = []
    for side in ("chosen", "rejected"):
        name = next((n for n in (f"{side}_messages", f"{side}_response") if row.get(n) is not None), None)
        if name is None:
            continue
        ways[side] = _side(row[name], name, changes)
        if ways[side][0].role in ("assistant", "tool"):
            replies.append(side)
            if any(message.role == "user" for message in ways[side]):
                raise Problem(name, "begins with a reply and holds user messages: from where in the log is not said")
    if not ways:
        raise Problem("rejected_messages", "missing, and no chosen_messages either")
    asked = log[: max((i + 1 for i, message in enumerate(log) if message.role == "user"), default=0)]
    if len(ways) == 2 and (log[-1].role != "assistant" or any(way[0].role == "tool" for way in ways.values())):
        asked = log
    if len(replies) == 2:
        return Draft(ways["chosen"], ways["rejected"], asked)
    whole = {side: [*asked, *way] if side in replies else _with_system(log, way) for side, way in ways.items()}
    for side, way in whole.items():
        first = {side: next(filter(_asks, way), None) for side, way in (("log", log), (side, way))}
        if len(ways) == 2 and first["log"] not in (None, first[side]):
            raise Problem(f"{side}_messages", "does not begin with the log's first question")
    return Draft(**({"chosen": log, "rejected": log} | whole))


def _asks(message: Message) -> bool:
    return message.role == "user"


def _with_system(log: Conversation, way: Conversation) -> Conversation:
    """A whole conversation under the log's system message, unless it has its own."""
    return [*(log[:1] if log[0].role == "system" != way[0].role else []), *way]


def _instruction(row: Row, changes: Counter[str]) -> Draft:
    """Alpaca's `instruction` and `input`, and LLaMA-Factory's `history` of question and answer."""
    texts = [_filled(row.get("instruction"), "instruction", changes)]
    if row.get("input") not in (None, ""):
        texts.append(read_text(row["input"], "input", changes))
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise Problem("history", f"expected a list of [question, answer], found {short_repr(history)}")
    prompt: Conversation = []
    for number, turn in enumerate(history):
        question, answer = (_filled(text, f"history.{number}", changes) for text in turn)
        prompt += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    return Draft(*_sides(row, changes), [*prompt, Message(role="user", content="\n".join(texts))])


def _sharegpt(row: Row, changes: Counter[str]) -> Draft:
    """`conversations` as the prompt, the sides as a message, messages or a text."""
    return Draft(*_sides(row, changes), read_conversation(row.get("conversations"), "conversations", changes))


_SPEAKER = re.compile(r"(?:^\s*|\n\n)(Human|Assistant):")


def _hh(row: Row, changes: Counter[str]) -> Draft:
    """Anthropic's transcripts: `chosen` and `rejected`, after `prompt` if there is one, as one text each."""
    prompt = read_text(row.get("prompt") or "", "prompt", changes)
    return Draft(*(_transcript(prompt, row.get(name), name, changes) for name in ("chosen", "rejected")))


def _transcript(prompt: str, value: Any, name: str, changes: Counter[str]) -> Conversation:
    text = read_text(value, name, changes)
    parts = _SPEAKER.split(prompt + text if not _is_transcript(text) else text)
    if parts[0].strip() or len(parts) < 3:
        raise Problem(name, f"expected a text that begins with 'Human:', found {short_repr(text)}")
    return [
        Message(role="user", content=_filled(said.strip(), name, changes))
        if speaker == "Human"
        else Message(role="assistant", content=said.strip())
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _is_transcript(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("Human:")


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: row.keys() >= SIDES and all(row.get(name) is not None for name in names)


_HISTORY = frozenset({"instruction", "input", "history"})
_WAYS = frozenset({"chosen_messages", "rejected_messages", "chosen_response", "rejected_response"})
_CONVERSATIONS = SIDES | _WAYS | {"prompt", "messages", "conversations"}
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
FORMS: dict[str, Form] = {
    "sharegpt": Form(
        "conversations, chosen, rejected",
        _has("conversations"),
        _sharegpt,
        SIDES | {"conversations"},
        "system",
    ),
    "agent": Form(
        "messages and rejected_messages or chosen_messages",
        lambda row: row.get("messages") is not None and any(row.get(name) is not None for name in _WAYS),
        _agent,
        _WAYS | {"messages"},
        "system",
    ),
    "instruction": Form(
        "instruction, chosen, rejected",
        _has("instruction"),
        _instruction,
        SIDES | _HISTORY,
        "system",
    ),
    "hh": Form(
        "chosen and rejected as transcripts, \\n\\nHuman: ... \\n\\nAssistant: ...",
        lambda row: _has()(row) and (_is_transcript(row.get("prompt")) or _is_transcript(row["chosen"])),
        _hh,
        SIDES | {"prompt"},
    ),
    "explicit": Form("prompt, chosen, rejected", _has("prompt"), _explicit, SIDES | {"prompt"}, "system"),
    "implicit": Form("chosen and rejected as conversations", _has(), _implicit, SIDES, "system"),
}
