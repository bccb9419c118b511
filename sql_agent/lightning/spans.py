"""What the spans of a rollout hold: its model calls, and in the last one how it ended and what it earned.

A runner writes them, or the LLM proxy those of calls; `sql_agent.lightning.transport` fetches them from the store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from agentgrpo.agl_without_litellm import agl
from dbbench_adapter.datatypes import Score
from sql_agent.credit.row import Turn
from sql_agent.datatypes import Reward, RolloutRecord, ScorerResult
from sql_agent.model_servers.turns import AGENT, ASKED_AGAIN, WEIGHTS
from sql_agent.source.datatypes import Rollout

# Span of one model call; agent-lightning's `LlmProxyTraceToTriplet` reads the same name and attributes.
TURN_SPAN = "litellm_request"
# Attribute of the reward span the runner writes last, the text of `outcome_text`.
OUTCOME = "agentgrpo.outcome"
# The number of a rollout's last span, higher than that of any call.
OUTCOME_SEQUENCE_ID = 1_000_000_000
_IDS = agl.semconv.LightningResourceAttributes
_AS_THEY_ARE = ("scorer_down_s", "one_conversation")


class UntrainableCallError(ValueError):
    """The model server left something out of a call, without which the rollout cannot be trained on."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """`no_token_ids` or `no_log_probs`, under which the rollout is lost."""


class SpanLike(Protocol):
    name: str
    sequence_id: int
    attributes: dict[str, Any]


def turn_span(
    turn: dict[str, Any], rollout_id: str, attempt_id: str, number: int, *, started: float | None = None
) -> Any:
    """The span of a model call that has just ended.

    Args:
        turn: its attributes (`sql_agent.model_servers.turns`).
        number: of the call in its rollout, counted from 1; without one agent-lightning would ask the store for it.
        started: Unix time; None: it is not known.
    """
    now, status = time.time(), agl.TraceStatus(status_code="OK")
    fields = agl.SpanCoreFields(name=TURN_SPAN, attributes=turn, start_time=started or now, end_time=now, status=status)
    return agl.Span.from_core_fields(fields, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=number)


def outcome_text(rollout: Rollout) -> str:
    """What was played and earned as JSON, without what the judge compared, because no span holds a solution."""
    record = replace(rollout.record, comparison=None)
    parts = {"record": record, "reward": rollout.earned, "scorer": rollout.scorer}
    fields = {name: asdict(part) if part else None for name, part in parts.items()}
    return json.dumps(fields | {name: getattr(rollout, name) for name in _AS_THEY_ARE})


def outcome_span(rollout: Rollout, rollout_id: str, attempt_id: str) -> Any:
    """The last span of a rollout."""
    attributes, value = {OUTCOME: outcome_text(rollout)}, rollout.earned.value
    if value is None:
        fields = agl.emit_annotation(attributes, propagate=False)
    else:
        fields = agl.emit_reward(float(value), attributes=attributes, propagate=False)
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    return agl.Span.from_core_fields(fields, **ids, sequence_id=OUTCOME_SEQUENCE_ID)


def packed(spans: Iterable[Any]) -> bytes:
    """The body of a request with these spans, in their order.

    Raises:
        TypeError, ValueError: an attribute is nothing that OTLP can hold.
    """
    request = ExportTraceServiceRequest()
    for span in spans:
        entry = request.resource_spans.add()
        ids = {_IDS.ROLLOUT_ID: span.rollout_id, _IDS.ATTEMPT_ID: span.attempt_id}
        ids[_IDS.SPAN_SEQUENCE_ID] = span.sequence_id
        entry.resource.attributes.extend(_key_value(name.value, value) for name, value in ids.items())
        entry.scope_spans.add().spans.add(
            trace_id=bytes.fromhex(span.trace_id),
            span_id=bytes.fromhex(span.span_id),
            name=span.name,
            start_time_unix_nano=_nanoseconds(span.start_time),
            end_time_unix_nano=_nanoseconds(span.end_time),
            attributes=[_key_value(name, value) for name, value in span.attributes.items()],
            status=Status(code=Status.StatusCode.Value(f"STATUS_CODE_{span.status.status_code}")),
        )
    return request.SerializeToString()


def _key_value(name: str, value: Any) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    if isinstance(value, str):
        return KeyValue(key=name, value=AnyValue(string_value=value))
    raise TypeError(f"attribute {name} is {type(value).__name__}; a span holds texts and numbers, lists as JSON")


def _nanoseconds(seconds: float | None) -> int:
    return int(1e9 * seconds) if seconds else 0


def read_turns(spans: Sequence[SpanLike], *, one_conversation: bool = True) -> list[Turn]:
    """The model calls of one attempt, ordered by sequence id; other spans are ignored.

    A call that the client repeated has a span for each try, and the client used the last reply. An agent of several
    conversations may ask the same twice on purpose, so all its calls are kept.

    Raises:
        UntrainableCallError: a model call came back without token ids, or not with one log-probability for each.
    """
    turns = []
    for span in sorted((s for s in spans if s.name == TURN_SPAN), key=lambda s: s.sequence_id):
        prompt_ids, sampled_ids, log_probs = (
            tuple(json.loads(span.attributes.get(name) or "[]"))
            for name in ("prompt_token_ids", "response_token_ids", "response_log_probs")
        )
        if not prompt_ids or not sampled_ids:
            what = "a model call came back without token ids; the server needs return_token_ids"
            raise UntrainableCallError("no_token_ids", what)
        if len(log_probs) != len(sampled_ids):
            what = f"a model call came back with {len(log_probs)} log-probabilities for {len(sampled_ids)} sampled ids"
            raise UntrainableCallError("no_log_probs", f"{what}; the server needs logprobs")
        if one_conversation and turns and turns[-1].prompt_ids == prompt_ids:
            turns.pop()
        turns.append(
            Turn(
                prompt_ids,
                sampled_ids,
                log_probs,
                bool(span.attributes.get("agentgrpo.has_tool_calls", False)),
                span.attributes.get(AGENT),
                span.attributes.get(WEIGHTS),
                span.attributes.get(ASKED_AGAIN, 0),
            )
        )
    return turns


def read_outcome(spans: Sequence[SpanLike], rollout: Rollout) -> bool:
    """Fill in what the runner reported; False if it has not reported yet."""
    text = next((span.attributes[OUTCOME] for span in spans if OUTCOME in span.attributes), None)
    if text is None:
        return False
    fields = json.loads(text)
    record, scorer = fields["record"], fields["scorer"]
    rollout.played = RolloutRecord(**record | {"score": Score(**record["score"])})
    rollout.scorer = ScorerResult(**scorer) if scorer else None
    for name in _AS_THEY_ARE:
        setattr(rollout, name, fields[name])
    rollout.earn(Reward(**fields["reward"]))
    return True


def all_there(turns: Sequence[Turn], record: RolloutRecord) -> bool:
    """Whether `turns` begin with the replies that the agent got.

    If the agent's last request was sent twice, the span of the reply that it used may be missing. The number of turns
    is right then, but the number of tokens is not, so both are compared.
    """
    sampled = sum(len(turn.sampled_ids) for turn in turns[: record.num_turns])
    return len(turns) >= record.num_turns and sampled == record.completion_tokens
