"""Lists and makes every change to an upstream library, and checks that none is missing and that all fit.

If a library renamed a target, it would silently run without our change: no exact prompts, no merged weights. So a run
looks up every target in the installed sources before anything loads and compares its parameters with ours
(`check_patch_targets`), a change without effect or with other parameters raises where it is made (`install`, `change`),
and a process checks that its changes were made before it begins its work (`require_patched`). What is private and only
used is listed too. The table leaves out upstream's extension points (a policy loss, a platform, a router class): if one
of them is gone, the run fails anyway.

A new change is one entry in `upstream_patches.yaml`, and the function that it names. If two changes replace the same
target, the later one wraps the earlier one. Importing this module is instant.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml

from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.upstream_sources import check_signature, find_definition, signature_of

# Process in which a change has to be active: verl's driver, its training workers, its vLLM servers. `own`: every
# process that imports our module with the change (it derives a class, replaces a module or uses what is private).
# `local`: the same in commands that train without servers, which a main job does not look at.
Process = Literal["driver", "trainer", "server", "own", "local"]

# The pinned versions by top-level module: first that of the CPU requirements, for which the changes were written and
# tested, then that of the GPU requirements if it differs.
VERSIONS: dict[str, tuple[str, ...]] = {
    "agentlightning": ("0.3.0",),
    "agents": ("0.24.0",),
    "openai": ("3.57.0",),
    "pymysql": ("1.2.4",),
    "ray": ("2.60.0",),
    "torch": ("2.13.0+cpu", "2.11.0"),
    "transformers": ("5.10.4", "5.9.0"),
    "trl": ("1.16.0",),
    "uvicorn": ("0.54.0",),
    "verl": ("0.9.1",),
    "vllm": ("0.28.0+cpu", "0.24.0"),
}
# Distributions whose name differs from their module's.
DISTRIBUTIONS = {"agents": "openai-agents"}


@dataclass(frozen=True)
class Patch:
    process: Process
    by: str
    """The code that makes the change: `module:function`, called with the upstream module after its import; without a
    colon, that module's own code."""
    module: str
    """The upstream module."""
    names: tuple[str, ...]
    """The names that are replaced: `function`, `Class.method`, `Class.mapping.key`."""
    why: str
    cpu: bool = False
    """Whether the change is made only on a CPU."""


_PLUGIN = "sql_agent.verl_side.plugin."
_DRIVER = "sql_agent.verl_side.driver"
PATCHES = tuple(
    Patch(process, change["by"], module, tuple(change["names"]), change["why"], change.get("cpu", False))
    for process, modules in yaml.load(Path(__file__).with_suffix(".yaml").read_text("utf-8"), yaml.CSafeLoader).items()
    for module, changes in modules.items()
    for change in changes
)


class PatchError(ValueError):
    """An upstream library is not the version for which one of our changes was written."""


# In the installed sources ---------------------------------------------------------------------------------------------


def check_patch_targets(cpu: bool) -> None:
    """Check every target of a main job in the installed packages; it takes half a second.

    Raises:
        PatchError: see `check_sources`.
    """
    for patch in PATCHES:
        if patch.process != "local" and (cpu or not patch.cpu):
            check_sources(patch)


def check_sources(patch: Patch) -> None:
    """Look up the targets of a change, and compare the parameters of our class's methods with theirs.

    What a function of the plugin makes is compared where it is made (`install`).

    Raises:
        PatchError: a target is missing, or takes other parameters.
    """
    ours, _, kind = patch.by.partition(":")
    for name in patch.names:
        theirs = find_definition(patch.module, name)
        if theirs is None:
            raise _missing(patch, name)
        if patch.process in ("own", "local") and kind:
            method = signature_of(find_definition(ours, f"{kind}.{name.rpartition('.')[2]}"))
            if method is not None and (upstream := signature_of(theirs)) is not None:
                _compare(patch, name, method, upstream)


def _compare(patch: Patch, name: str, ours: inspect.Signature, theirs: inspect.Signature) -> None:
    if (parameter := check_signature(ours, theirs)) is not None:
        pinned, installed = _versions(patch)
        raise _refusal(
            patch,
            f"{name} takes {theirs}, and ours, written for {pinned} ({installed} is installed), takes {ours}: they "
            f"differ in {parameter}",
        )


# In a process ---------------------------------------------------------------------------------------------------------

_made: set[Patch] = set()
_wanted: set[Patch] = set()


def install(*, cpu: bool) -> None:
    """Make the plugin's changes, in imported modules now and in others right after their import."""
    from agentgrpo.imports import after_import

    _wanted.update(patch for patch in PATCHES if patch.process != "own" and (cpu or not patch.cpu))
    for patch in PATCHES:
        if patch in _wanted and patch.by.startswith(_PLUGIN):
            after_import(patch.module, functools.partial(_make_named, patch))


def change(module: ModuleType, make: Callable[[Any], None]) -> None:
    """Call `make(module)` for the change of that module that the driver makes.

    Raises:
        PatchError: a target is missing or unchanged.
    """
    (patch,) = (patch for patch in PATCHES if patch.by == _DRIVER and patch.module == module.__name__)
    _make(patch, make, module)


def require_patched(process: Process) -> None:
    """Check that all changes for this kind of process were made.

    Raises:
        PatchError: a change was not made, because its module was never imported.
    """
    for patch in PATCHES:
        if patch.process == process and patch in _wanted - _made:
            raise PatchError(
                f"{patch.by} did not change {patch.module}:{patch.names[0]} in this process: {patch.why}. The plugin "
                "does that once the module is imported: either it never was, since the library uses another one, or "
                "sql_agent/upstream_patches.yaml names code outside of the plugin. Report it with logs/driver.log"
            )


def _make_named(patch: Patch, module: ModuleType) -> None:
    ours, _, function = patch.by.partition(":")
    _make(patch, getattr(importlib.import_module(ours), function), module)


def _make(patch: Patch, make: Callable[[Any], None], module: ModuleType) -> None:
    before = {name: _look_up(patch, module, name) for name in patch.names}
    make(module)
    for name, upstream in before.items():
        ours = _look_up(patch, module, name)
        if ours is upstream:
            raise PatchError(f"{patch.by} left {module.__name__}:{name} as it was; {patch.why}")
        if inspect.isfunction(ours) and inspect.isfunction(upstream):
            _compare(patch, name, inspect.signature(ours, follow_wrapped=False), inspect.signature(upstream))
    _made.add(patch)


def _look_up(patch: Patch, module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else inspect.getattr_static(found, name)
        except (AttributeError, KeyError):
            raise _missing(patch, path) from None
    return found


def _missing(patch: Patch, name: str) -> PatchError:
    pinned, installed = _versions(patch)
    return _refusal(patch, f"{name} is not where {pinned} had it ({installed} is installed)")


def _versions(patch: Patch) -> tuple[str, str]:
    """The versions that the change was written for, and the one that is installed."""
    library = patch.module.partition(".")[0]
    distribution = DISTRIBUTIONS.get(library, library)
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    return f"{distribution} {' and '.join(VERSIONS[library])}", installed


def _refusal(patch: Patch, what: str) -> PatchError:
    return PatchError(
        f"{patch.module}:{what}, so {patch.by} cannot replace it: {patch.why}. `{agentgrpo_command('doctor')}` says "
        "how to install what is pinned; for another version adapt that code and sql_agent/upstream_patches.yaml"
    )
