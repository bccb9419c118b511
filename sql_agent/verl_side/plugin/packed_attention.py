"""Makes the attention of verl's training workers that of packed rows (`sql_agent.shared_prefix`)."""

from __future__ import annotations

from types import ModuleType

from sql_agent.shared_prefix import shared_prefix_attention

# The name of transformers' own implementation, which is replaced in verl's processes. verl writes the name into every
# checkpoint's config, and other processes cannot load a checkpoint with an unknown name.
NAME = "sdpa"


def _attend(module: ModuleType) -> None:
    module.AttentionInterface.register(NAME, shared_prefix_attention)


def _leave_out_mask(module: ModuleType) -> None:
    module.AttentionMaskInterface.register(NAME, lambda *_args, **_kwargs: None)
