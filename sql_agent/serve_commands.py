"""The command that serves a model, and the one that measures what is served, as every command prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentgrpo.printed_commands import agentgrpo_command, program_command

# Without the first two the sampling settings in the model's generation_config.json would be the server's defaults.
SERVE = ("--generation-config", "vllm", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
HOST = "127.0.0.1"


def serve_command(model: Path | str, name: str, *, cpu: bool, dtype: str | None) -> str:
    """
    Args:
        name: the one under which the model is served.
        dtype: the one in which the policy is sampled where it is trained (`agentgrpo.machine.sampling_dtype`), so that
            it answers as it did there; None: not known.
    """
    in_dtype = ("--dtype", dtype) if dtype else ()
    serve = program_command("vllm", "serve", model, "--served-model-name", name, *SERVE, *in_dtype, "--host", HOST)
    return f"VLLM_CPU_KVCACHE_SPACE=1 {serve} --enforce-eager" if cpu else serve


def evaluate_command(name: str, flags: Sequence[str]) -> str:
    """
    Args:
        flags: what says on which tasks, and how they are played.
    """
    return agentgrpo_command("evaluate", "--base-url", f"http://{HOST}:8000/v1", "--model", name, *flags)
