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

from agents import Agent, Handoff, RunContextWrapper
from agents.mcp import MCPServer, MCPServerManager, MCPServerStdio, MCPServerStreamableHttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgrpo.processes import RUN_ID
from agentgrpo.user_files import UserFileError

START_S = 60.0
"""How long a server may take to start."""
END_S = 5.0
STARTS = 2
"""Servers that start at a time in a runner; each is a process that imports its packages."""
ANSWER_S = 60.0
"""How long a server of a file may take to answer; openai-agents' own 5 s end the start of a Python server on a busy
machine."""


class McpServerError(RuntimeError):
    """An MCP server does not start, or died while a rollout used it."""


@dataclass
class _Connection:
    manager: MCPServerManager
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    uses: int = 0
    starts: int = 0


class McpServers:
    """The servers that one event loop connects. Those that the user's own code connected stay as they are."""

    def __init__(self) -> None:
        self._connections: dict[MCPServer, _Connection] = {}
        self._starting = asyncio.Semaphore(STARTS)

    @asynccontextmanager
    async def connected(self, agent: Agent[Any], *, keep: bool) -> AsyncIterator[None]:
        """
        Args:
            keep: whether the servers stay until `close`; else until no run uses them.
        Raises:
            McpServerError: one does not start, or has died meanwhile.
        """
        used: dict[MCPServer, int] = {}
        raised: Exception | None = None
        try:
            for server in servers_of(agent):
                if server in self._connections or getattr(server, "session", None) is None:
                    used[server] = await self._use(server)
            try:
                yield
            except Exception as error:
                raised = error
            for server, start in used.items():
                if start != self._connections[server].starts or not await _lives(server):
                    raise McpServerError(f"the MCP server {server.name} died during the rollout") from raised
            if raised is not None:
                raise raised
        finally:
            for server in used:
                self._connections[server].uses -= 1
                if not keep and not self._connections[server].uses:
                    await self._connections.pop(server).manager.cleanup_all()

    async def _use(self, server: MCPServer) -> int:
        """Return how often it was started."""
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
                if not connection.starts or not await _lives(server):
                    async with self._starting:
                        await connection.manager.reconnect(failed_only=False)
                    connection.starts += 1
        except BaseException as error:
            connection.uses -= 1
            if not connection.uses and not connection.starts:
                await self._connections.pop(server).manager.cleanup_all()
            if isinstance(error, Exception):
                raise McpServerError(_not_started(server, error)) from error
            raise
        return connection.starts

    async def close(self) -> None:
        while self._connections:
            await self._connections.popitem()[1].manager.cleanup_all()


def servers_of(agent: Agent[Any]) -> list[MCPServer]:
    """Return the servers of an agent, and of the agents that it hands off to or has as tools."""
    seen: list[Agent[Any]] = []
    waiting = [agent]
    while waiting:
        if (one := waiting.pop()) in seen:
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


async def _lives(server: MCPServer) -> bool:
    try:
        await server.list_tools()
    except Exception as error:
        return "timed out" in str(error).lower()  # it is busy with the call of another rollout
    return True


def _not_started(server: MCPServer, error: Exception) -> str:
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    words = str(cause) or type(cause).__name__
    return f"the MCP server {server.name} did not start: {words}"


# --agent FILE.json ----------------------------------------------------------------------------------------------------


class _Program(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["stdio"] = "stdio"
    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None

    def made(self, name: str) -> MCPServer:
        params: Any = self.model_dump(include={"command", "args", "env"}) | ({"cwd": self.cwd} if self.cwd else {})
        return MCPServerStdio(params, name=name, client_session_timeout_seconds=ANSWER_S, failure_error_function=_said)


class _Address(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["http", "streamable-http", "streamableHttp"] = "http"
    url: str
    headers: dict[str, str] = {}

    def made(self, name: str) -> MCPServer:
        params: Any = {"url": self.url, "headers": self.headers, "timeout": ANSWER_S}
        return MCPServerStreamableHttp(
            params, name=name, client_session_timeout_seconds=ANSWER_S, failure_error_function=_said
        )


def _said(_: RunContextWrapper[Any], error: Exception) -> str:
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
        read = _File.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UserFileError(f"{file} cannot be read ({error.strerror}); give a JSON file of MCP servers") from None
    except ValidationError as error:
        raise UserFileError(f"{file}: {_first(error)}; {FORM}") from None
    return Agent(name=file.stem, mcp_servers=[each.made(name) for name, each in read.servers.items()])


FORM = (
    'expected {"mcpServers": {"NAME": {"command": "PROGRAM", "args": [], "env": {}}}}, or {"url": "http://..."} for a '
    "server over streamable HTTP"
)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("_"))
    return f"{place}: {first['msg']}" if place else first["msg"]
