"""Replaces verl's load balancer by a list of the model servers' addresses (`rollout.router_config_path`).

verl's load balancer serves its token-level client, which is not used here. It would be one more Ray actor, which needs
16 s of CPU to import verl and vLLM before it can receive the servers' handles.
"""

from __future__ import annotations

from typing import Any

import ray


class ServerList:
    def __init__(self, servers: dict[str, Any]) -> None:
        self.addresses = sorted(servers)


Router: Any = ray.remote(ServerList)
# verl (workers/rollout/router.py) creates the actor class that it is given with `.remote(servers, config)`.
Router.remote = lambda servers, _config: ServerList(servers)
