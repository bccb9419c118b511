"""Connects the MCP servers of agents of openai-agents: a runner starts each of them once, and again if it has died.

openai-agents runs an agent whose servers are connected, and its examples connect them around one run. Here many runs
share them. Each server is entered and left by a task of its own (`agents.mcp.MCPServerManager`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from weakref import WeakSet

from agents import Agent, Handoff, RunContextWrapper
from agents.mcp import MCPServer, MCPServerManager, MCPServerStdio, MCPServerStreamableHttp
from agents.mcp._logging import get_mcp_server_log_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgrpo.processes import RUN_ID
from agentgrpo.user_files import UserFileError

START_S = 60.0
"""How long a server may take to start."""
END_S = 5.0
STARTS = 2
"""Servers that start at a time in a runner. Each is a process; of 32 that were started for a row each, twelve ran into
openai-agents' 5 s on two cores."""
ANSWER_S = 60.0
"""How long a server of a file may take to answer."""


class McpServerError(RuntimeError):
    """An MCP server does not start, or died while a rollout used it."""


@dataclass
class _Connection:
    manager: MCPServerManager
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    uses: int = 0
    up: bool = False
    starts: int = 0
    silent: int = 0
    """Requests in a row that nobody answered in time."""


class McpServers:
    """The servers that one event loop connects. Those that the user's own code connected stay as they are."""

    def __init__(self) -> None:
        self._connections: dict[MCPServer, _Connection] = {}
        self._used_before: WeakSet[MCPServer] = WeakSet()
        self._starting = asyncio.Semaphore(STARTS)

    @asynccontextmanager
    async def connected(self, agent: Agent[Any], *, keep: bool) -> AsyncIterator[None]:
        """
        Args:
            keep: whether the servers stay until `close`; else those stay that a second agent names.
        Raises:
            McpServerError: one does not start, has died meanwhile, or does not answer.
        """
        used: list[tuple[MCPServer, _Connection, int]] = []
        raised: Exception | None = None
        try:
            for server in servers_of(agent):
                if server in self._connections or getattr(server, "session", None) is None:
                    used.append((server, *await self._connect(server)))
            try:
                yield
            except Exception as error:  # the user's code may raise anything
                raised = error
            for server, connection, start in used:
                if start != connection.starts or not await _lives(server, connection):
                    raise McpServerError(f"the MCP server {_name(server)} died during the rollout") from raised
                if raised is not None and connection.silent:
                    raise McpServerError(f"the MCP server {_name(server)} did not answer in time") from raised
            if raised is not None:
                raise raised
        finally:
            for server, connection, _ in used:
                await self._let_go(server, connection, keep)

    async def _connect(self, server: MCPServer) -> tuple[_Connection, int]:
        """Start the server unless it lives; return how often it was started, too."""
        if server not in self._connections:
            _mark(server)
            self._connections[server] = _Connection(
                MCPServerManager(
                    [server],
                    connect_timeout_seconds=START_S,
                    cleanup_timeout_seconds=END_S,
                    strict=True,
                    suppress_cancelled_error=False,
                    connect_in_parallel=True,  # or this task would have to end it, too
                )
            )
        connection = self._connections[server]
        connection.uses += 1
        try:
            async with connection.lock:
                if not connection.up or not await _lives(server, connection):
                    connection.up = False
                    async with self._starting:
                        await connection.manager.reconnect(failed_only=False)
                    connection.up, connection.silent = True, 0
                    connection.starts += 1
        except BaseException as error:  # a cancelled rollout lets go of it, too
            await self._let_go(server, connection, keep=False)
            if isinstance(error, Exception):
                raise McpServerError(_not_started(server, error)) from error
            raise
        return connection, connection.starts

    async def _let_go(self, server: MCPServer, connection: _Connection, keep: bool) -> None:
        connection.uses -= 1
        if connection.uses or keep or (connection.up and server in self._used_before):
            return
        self._used_before.add(server)
        async with connection.lock:  # who names the server meanwhile waits, and starts it again
            if not connection.uses:
                await connection.manager.cleanup_all()
                connection.up = False
            if not connection.uses:
                self._connections.pop(server, None)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(each.manager.cleanup_all() for each in connections.values()))


def servers_of(agent: Agent[Any]) -> list[MCPServer]:
    """Return the servers of an agent, and of the agents that it hands off to or has as tools."""
    seen: list[Agent[Any]] = []
    waiting = [agent]
    while waiting:
        one = waiting.pop()
        if any(one is each for each in seen):  # `==` compares the fields of agents, which may be a circle
            continue
        seen.append(one)
        waiting += [found for each in one.handoffs if (found := _target(each)) is not None]
        waiting += [found for tool in one.tools if (found := getattr(tool, "_agent_instance", None)) is not None]
    return list(dict.fromkeys(server for one in seen for server in one.mcp_servers))


def _target(handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | None:
    if isinstance(handoff, Agent):
        return handoff
    reference = getattr(handoff, "_agent_ref", None)
    return reference and reference()


def _mark(server: MCPServer) -> None:
    """Let the end of a run find the server's process, which gets no environment but what its parameters say."""
    if isinstance(server, MCPServerStdio) and (run_id := os.environ.get(RUN_ID)):
        server.params.env = {**(server.params.env or {}), RUN_ID: run_id}


async def _lives(server: MCPServer, connection: _Connection) -> bool:
    """Ask the server itself: `list_tools` of openai-agents answers from a cache, and a filter may need a run."""
    session = getattr(server, "session", None)
    try:
        if session is None:
            return False
        await session.list_tools()
    except Exception as error:  # transports raise errors of their own
        connection.silent += 1  # once it may be busy with a call of another rollout
        return "timed out" in str(error).lower() and connection.silent < 2
    connection.silent = 0
    return True


def _name(server: MCPServer) -> str:
    """The name without what a URL may hold of a secret."""
    return get_mcp_server_log_name(server.name)


def _not_started(server: MCPServer, error: Exception) -> str:
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    words = str(cause) or (f"no answer in {START_S:g} s" if isinstance(cause, TimeoutError) else type(cause).__name__)
    return f"the MCP server {_name(server)} did not start: {words}"


# --agent FILE.json ----------------------------------------------------------------------------------------------------


class _Program(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["stdio"] = "stdio"
    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None

    def to_server(self, name: str) -> MCPServer:
        params: Any = self.model_dump(include={"command", "args", "env"}) | ({"cwd": self.cwd} if self.cwd else {})
        return MCPServerStdio(
            params, name=name, client_session_timeout_seconds=ANSWER_S, failure_error_function=_error_text
        )


class _Address(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["http", "streamable-http", "streamableHttp"] = "http"
    url: str
    headers: dict[str, str] = {}

    def to_server(self, name: str) -> MCPServer:
        params: Any = {"url": self.url, "headers": self.headers, "timeout": ANSWER_S}
        return MCPServerStreamableHttp(
            params, name=name, client_session_timeout_seconds=ANSWER_S, failure_error_function=_error_text
        )


def _error_text(_: RunContextWrapper[Any], error: Exception) -> str:
    """Tell the policy what happened; openai-agents' own words leave that out."""
    return f"Error: {error}"


class _File(BaseModel):
    """The form of desktop clients; keys beside `mcpServers` are theirs."""

    servers: Annotated[dict[str, _Program | _Address], Field(alias="mcpServers", min_length=1)]


def agent_of_file(file: Path) -> Agent[Any]:
    """Return an agent that has the tools of the servers that a JSON file names, and no instructions of its own.

    Raises:
        UserFileError: the file cannot be read, or does not name servers.
    """
    try:
        text = file.expanduser().read_text("utf-8-sig")
        read = _File.model_validate_json(text)
    except OSError as error:
        raise UserFileError(f"{file} cannot be read ({error.strerror}); give a JSON file of MCP servers") from None
    except ValidationError as error:
        raise UserFileError(f"{file}: {_first_fault(error)}; {FORM}") from None
    if "${" in text:
        raise UserFileError(f"{file} holds ${{...}}, which is not filled in here; write the value itself")
    return Agent(
        name=file.stem,
        mcp_servers=[each.to_server(name) for name, each in read.servers.items()],
        mcp_config={"include_server_in_tool_names": len(read.servers) > 1},
    )


FORM = (
    'expected {"mcpServers": {"NAME": {"command": "PROGRAM", "args": [], "env": {}}}}, or {"url": "http://..."} for a '
    "server over streamable HTTP"
)


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("_"))
    return f"{place}: {first['msg']}" if place else first["msg"]
