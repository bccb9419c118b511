"""The addresses of a run's model servers, in the place of verl's load balancer (`rollout.router_config_path`).

verl's load balancer serves its token-level client, which is not used here. It would be one more Ray actor, which has to
import verl and vLLM to receive the servers' handles: 16 s of CPU.
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
