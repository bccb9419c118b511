"""The model servers of a run, by address; stands where verl puts its load balancer (`rollout.router_config_path`).

verl's load balancer routes its token-level client, which is not used here: agents go through the LLM proxy. It would
be one more Ray actor, and receiving the servers' handles makes that import verl and vLLM, 16 s of CPU.
"""

from __future__ import annotations

from typing import Any

import ray


class ServerList:
    def __init__(self, servers: dict[str, Any]) -> None:
        self.addresses = sorted(servers)


Router: Any = ray.remote(ServerList)
# verl (workers/rollout/router.py) creates whatever actor class it is given with `.remote(servers, config)`.
Router.remote = lambda servers, _config: ServerList(servers)
