"""Reports each micro-batch of a training worker, on a CPU as on a GPU, to `sql_agent.verl_side.micro_batch_file`.

verl computes log-probs and updates in one loop (workers/engine/fsdp/transformer_impl.py, `forward_backward_batch`),
which goes over the list that `prepare_micro_batches` returns. On a GPU a micro-batch counts as computed when its
kernels are queued.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sql_agent.verl_side.micro_batch_file import MicroBatches, write


class Reported(list):
    """
    Args:
        progress: the report before the first one.
    """

    def __init__(self, micro_batches: list[Any], progress: MicroBatches) -> None:
        super().__init__(micro_batches)
        self._progress = progress

    def __iter__(self) -> Iterator[Any]:
        for done, micro_batch in enumerate(super().__iter__()):
            write(self._progress._replace(done=done))
            yield micro_batch
        write(self._progress._replace(done=len(self)))


def _report(module: ModuleType) -> None:
    prepare, compute = module.prepare_micro_batches, module.FSDPEngine.forward_backward_batch
    now = MicroBatches(forward_only=True, updates=0, done=0, of=0)

    @functools.wraps(prepare)
    def prepare_micro_batches(*args: Any, **kwargs: Any) -> Any:
        micro_batches, indices = prepare(*args, **kwargs)
        first = module.torch.distributed.get_rank() == 0  # all workers have equally many
        return (Reported(micro_batches, now._replace(of=len(micro_batches))) if first else micro_batches), indices

    @functools.wraps(compute)
    def forward_backward_batch(self: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        nonlocal now
        now = MicroBatches(forward_only, now.updates + (not forward_only), 0, 0)
        return compute(self, data, loss_function, forward_only)

    module.prepare_micro_batches = prepare_micro_batches  # type: ignore[attr-defined]
    module.FSDPEngine.forward_backward_batch = forward_backward_batch  # type: ignore[attr-defined]
