"""Trains with agent-lightning 0.3.0 as it comes, one sample a turn: `python -m bench.parts.peers.agl_peer ORDER.json`.

Its store, its runners and its LLM proxy with LiteLLM are unchanged; verl trains, and `agl_manager` says with what
change.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agentgrpo.processes import end_with_parent, ends_in_order
from bench.parts.children import python, started, store
from bench.parts.peers import verl_peer
from bench.parts.peers.order import Order
from bench.parts.peers.verl_peer import ROLLOUT, STORE


def main() -> None:
    end_with_parent()
    order = Order.read(Path(sys.argv[1]))
    verl_peer.write_files(order)
    own = {
        f"+{ROLLOUT}.agent.agent_loop_manager_class": "bench.parts.peers.agl_manager.TurnManager",
        f"+{ROLLOUT}.engine_kwargs.vllm.enable_auto_tool_choice": True,
        f"+{ROLLOUT}.engine_kwargs.vllm.tool_call_parser": "hermes",
        # sampled as it is trained: not by the folder's generation_config.json
        f"+{ROLLOUT}.engine_kwargs.vllm.generation_config": "vllm",
    }
    with ends_in_order(), store(order.folder / "store.log") as its_store:
        environment = verl_peer.environment(order) | {STORE: its_store.url, "AGL_MANAGED_STORE": "0"}
        runners = python("bench.parts.peers.agl_agent", its_store.url)
        verl = verl_peer.main_ppo(verl_peer.keys(order) | own)
        with (
            started(runners, order.folder / "runners.log", environment | {"AGL_CURRENT_ROLE": "runner"}),
            started(verl, order.folder / "verl.log", environment) as process,
        ):
            code = process.wait()
            if code:
                print((order.folder / "verl.log").read_text()[-4000:], file=sys.stderr)
            sys.exit(code)


if __name__ == "__main__":
    main()
