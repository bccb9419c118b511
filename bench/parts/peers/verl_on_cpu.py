"""What of our plugin verl 0.9.1 needs to run on a CPU at all; verl loads it through VERL_USE_EXTERNAL_MODULES.

Four changes, of which verl's GPU users need none but the second: a platform for its registry; TRL hidden, whose class
for critics verl patches and TRL 1.16 no longer has; gloo named once where a process group begins; vLLM's CPU layers
keep the weight that they repack, so that new weights can be loaded. Its own settings do the rest
(`verl_peer.environment`). A fifth is for loopback, not for verl: Ray starts no dashboard and no autoscaler.
"""

from __future__ import annotations

from types import ModuleType

from agentgrpo.imports import after_import
from bench.parts.peers.plugin_parts import part


def _only_ray(module: ModuleType) -> None:
    module.Node.start_api_server = module.Node.start_monitor = lambda *_, **__: None


platform = part("cpu_platform")
platform.install()
after_import("verl.utils.import_utils", part("training_worker")._hide_trl)
after_import("torch.distributed", platform._join_gloo)
after_import("vllm.model_executor.layers.utils", part("vllm_cpu")._keep_weights)
after_import("ray._private.node", _only_ray)
