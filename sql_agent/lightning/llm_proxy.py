"""Runs the LLM proxy in a process of its own: it forwards the calls of rollouts (`rollout_route`) and records each
answered one as a span with the name and attributes that agent-lightning's `LlmProxyTraceToTriplet` reads.

It takes the place of agent-lightning's own proxy, which is LiteLLM's: that imports for 7 s of CPU time, holds 350 MiB,
takes 9 to 14 ms of CPU a call (measured) and has nothing to translate between two OpenAI-compatible ends. Sequence ids
are counted here, without asking the store. Leaves out what belongs to no rollout, which nothing could train on.

    python -m sql_agent.lightning.llm_proxy --store http://127.0.0.1:9999 --port 0

The command accepts the token in AGENTGRPO_TOKEN and sends it to the model servers. It reads one JSON line from standard
input, `{"model": NAME, "backends": [URL, ...]}`, so its imports overlap with the start of those servers. Then it writes
one line, `{"url": ...}`, and ends when standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys

from agentgrpo.flags import Parser
from agentgrpo.http_protocol import GuardedHttpProtocol
from agentgrpo.machine import port_number
from agentgrpo.processes import Events, end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before the imports below, which take a second or two

import uvicorn
import uvloop
from starlette.applications import Starlette

from sql_agent.lightning.spans import turn_span
from sql_agent.lightning.store import RetryingStore
from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
from sql_agent.model_address.request_limits import UNKNOWN_CONTEXT, RequestLimits
from sql_agent.model_address.rollout_route import ProxyRequestGuard, RecordedCall, RolloutRoute
from sql_agent.model_servers.turns import turn_of

logger = logging.getLogger(__name__)

# Seconds that an idle connection stays open: longer than clients keep theirs, or a call could meet its end, be asked
# again and be counted twice. openai's client keeps one for 5 s, which is uvicorn's default too.
KEEP_ALIVE_S = 60
# Seconds that calls may take that are open when the run has ended.
END_S = 1


async def serve_proxy(
    store_url: str, host: str, port: int, timeout_s: float, context_tokens: int, events: Events
) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:
        return
    order = json.loads(line)
    store = RetryingStore(store_url)

    async def write(turn: RecordedCall) -> None:
        try:
            ids = turn.rollout_id, turn.attempt_id, turn.sequence_id
            attributes = turn_of(turn.answer, agent=turn.agent, asked_again=turn.asked_again)
            await store.add_span(turn_span(attributes, *ids, started=turn.started))
        except Exception:  # the rollout manager will miss the span and count the rollout as lost
            logger.exception("the span of rollout %s, call %d is lost", turn.rollout_id, turn.sequence_id)

    # each server has its own name, so that a rollout can stay with one
    RolloutRoute.servers = {f"policy-{i}": f"{url}/v1" for i, url in enumerate(order["backends"])}
    RolloutRoute.served_model, RolloutRoute.timeout_s = order["model"], timeout_s
    RolloutRoute.headers, RolloutRoute.write = authorization(RUN_TOKEN), write
    RolloutRoute.limits = RequestLimits(context_tokens)
    route = RolloutRoute(Starlette())
    config = uvicorn.Config(
        ProxyRequestGuard(route),
        http=GuardedHttpProtocol,
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=END_S,
    )
    with socket.create_server((host, port)) as listener:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        events.emit({"url": f"http://{host}:{listener.getsockname()[1]}"})  # connections wait until they are accepted
        parent_is_gone = asyncio.create_task(stdin.read())
        await asyncio.wait({serving, parent_is_gone}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    await route.close()
    await store.close()


def main() -> None:
    events = Events()
    parser = Parser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", required=True, help="address of the agent-lightning store")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default loopback)")
    parser.add_argument("--port", type=port_number, default=0, help="port; 0 picks a free one")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest model call")
    parser.add_argument("--context-tokens", type=int, default=UNKNOWN_CONTEXT, help="context length of the policy")
    args = parser.parse_args()
    # asyncio's own loop leaves TCP_NODELAY off where it is given a socket, which costs a call 40 ms
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_proxy(args.store, args.host, args.port, args.timeout_s, args.context_tokens, events))


if __name__ == "__main__":
    main()
