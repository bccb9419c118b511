"""Play scripted replies: `python -m dbbench_adapter.episode --backend sqlite` answers JSON lines on standard input.

In:  {"id", "variant": "text|fc|lab", "task": TASK, "max_round": N, "replies": [...]}
Out: {"id", "status", "correct", "replies_used", "sql_run": [...], "observations": [...]}, or {"id", "error"}

TASK for text and fc: {"table": TABLE or [TABLE, ...], "type", "question", "label": [...]}, with "gold_sql" in place of
"label" for changes; TABLE is {"table_name", "columns": [{"name", "type"}], "rows"}. For lab: {"table_info": {"name",
"column_info_list", "row_list"}, "instruction", "sql", "direct": [...] or null}. Replies are texts, for fc assistant
messages with tool calls. `correct` is the verdict of the variant's own judge; it is null if the status is `running`,
because the replies ended before the episode. `sql_run` holds the model's statements, `observations` its results.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.episode")

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agentgrpo.flags import described_parser
from agentgrpo.json_lines import serve_lines
from agentgrpo.json_text import JsonObject
from dbbench_adapter.datatypes import CHANGE_KINDS, Gold, Row, Task
from dbbench_adapter.engines import Backend, BackendUnavailable, TableError, known_backends, open_backend
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import DatabaseEpisode, Message, ProtocolName, open_episode
from dbbench_adapter.table_hash import AgentBenchTable
from dbbench_adapter.tasks.records import LifelongTable, first_word


class _AgentBenchTask(BaseModel):
    table: AgentBenchTable | list[AgentBenchTable]
    type: str | Annotated[list[str], Field(min_length=1)]
    question: str
    label: list[str] | str | None = None
    gold_sql: str | None = None
    evidence: str = ""
    add_description: str = ""

    def task(self) -> Task:
        tables = self.table if isinstance(self.table, list) else [self.table]
        kind = self.type if isinstance(self.type, str) else self.type[0]
        wanted = "gold_sql" if kind in CHANGE_KINDS else "label"
        if getattr(self, wanted) is None:
            raise ValueError(f"field task.{wanted}: a task of type {kind} needs it; add it to the task")
        label = self.label
        return Task(
            id="-",
            question=self.question,
            kind=kind,
            tables=tuple(table.table() for table in tables),
            gold=Gold(
                answers=tuple(label) if isinstance(label, list) else None,
                label_text=label if isinstance(label, str) else None,
                sql=self.gold_sql,
            ),
            table_note=self.add_description,
            evidence=self.evidence,
        )


class _LifelongTask(BaseModel):
    table_info: LifelongTable
    instruction: str
    sql: str
    direct: list[Row] | None = None

    def task(self) -> Task:
        kind = first_word(self.sql)
        if (kind in CHANGE_KINDS) == (self.direct is not None):
            raise ValueError(f"field task.direct: set for a SELECT and null for a change; the statement is {kind!r}")
        return Task(
            id="-",
            question=self.instruction,
            kind=kind,
            tables=(self.table_info.table(),),
            gold=Gold(rows=None if self.direct is None else tuple(self.direct), sql=self.sql),
            source="lifelong",
            typed=True,
        )


_TaskForm = TypeVar("_TaskForm", _AgentBenchTask, _LifelongTask)


class _Case(BaseModel, Generic[_TaskForm]):
    model_config = ConfigDict(extra="forbid")

    id: Any = None
    variant: Literal["text", "fc", "lab"]
    task: _TaskForm
    max_round: int = Field(ge=1)
    replies: list[Any]


def answer(row: JsonObject, backend: Backend) -> dict[str, object]:
    """Play one case until the episode or the replies end.

    Raises:
        ValueError: a field is missing or has another form than the variant's, or the reference statement does not run.
    """
    case = (_Case[_LifelongTask] if row.get("variant") == "lab" else _Case[_AgentBenchTask]).model_validate(row)
    observations: list[str] = []
    try:
        with open_episode(case.task.task(), backend, case.variant, max_rounds=case.max_round) as episode:
            for reply in case.replies:
                if episode.done:
                    break
                for message in episode.answer(_message(reply, case.variant)):
                    if case.variant == "fc" and episode.done:  # the original does not return a commit's result
                        break
                    observations.append(message["content"])
            return _outcome(episode, case.variant, observations)
    except TableError:  # under fc a failing set-up fails the sample
        return {"status": "task error", "correct": False, "replies_used": 0, "sql_run": [], "observations": []}
    except BackendUnavailable as failure:
        raise ValueError(str(failure)) from failure


def _outcome(episode: DatabaseEpisode, judge: JudgeName, observations: list[str]) -> dict[str, object]:
    correct = None
    if episode.done:
        score = episode.judge(judge)
        if score.value is None:
            raise ValueError(f"field task: nobody can judge it: {score.reason}; does its reference statement run?")
        correct = score.value == 1.0
    return {
        "status": episode.status,
        "correct": correct,
        "replies_used": episode.replies_used,
        "sql_run": episode.sql_run,
        "observations": observations,
    }


def _message(reply: object, variant: ProtocolName) -> Message:
    wanted = dict if variant == "fc" else str
    if not isinstance(reply, wanted) and not (variant == "text" and reply is None):
        expected = "an assistant message" if variant == "fc" else "a text"
        raise ValueError(f"field replies: expected {expected}, found {type(reply).__name__}")
    return reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}


def main() -> None:
    parser = described_parser("python -m dbbench_adapter.episode", __doc__)
    parser.add_argument("--backend", default="sqlite", help=f"{known_backends()}; default sqlite")
    args = parser.parse_args()
    try:
        with open_backend(args.backend) as backend:
            serve_lines(lambda row: answer(row, backend))
    except (BackendUnavailable, ValueError) as failure:
        raise SystemExit(f"--backend: {failure}") from failure
