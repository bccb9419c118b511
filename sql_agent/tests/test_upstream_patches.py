"""The table of changes to upstream libraries: each target is there, each change is made, none is left out."""

import ast
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sql_agent import upstream_patches as patches
from sql_agent.upstream_patches import DISTRIBUTIONS, PATCHES, VERSIONS, Patch, PatchError
from sql_agent.upstream_sources import check_signature, find_definition, signature_of
from sql_agent.verl_side.config import worker_environment

ROOT = Path(__file__).parents[2]
TARGETS = [(patch.module, name) for patch in PATCHES for name in patch.names]


@pytest.mark.parametrize("patch", PATCHES, ids=[f"{patch.by}-{patch.module}:{patch.names[0]}" for patch in PATCHES])
def test_the_installed_packages_have_what_we_change_with_the_parameters_of_ours(patch):
    patches.check_sources(patch)


@pytest.mark.parametrize("library", sorted({patch.module.partition(".")[0] for patch in PATCHES}))
def test_what_is_installed_and_pinned_is_what_the_changes_were_written_for(library):
    distribution = DISTRIBUTIONS.get(library, library)
    assert importlib.metadata.version(distribution) == VERSIONS[library][0]
    gpu = re.search(rf"^{distribution}==(\S+)", (ROOT / "requirements-gpu.txt").read_text(), re.MULTILINE)
    assert gpu and gpu[1] == VERSIONS[library][-1]


def test_changes_of_verls_workers_and_servers_stand_in_the_plugin_which_makes_them():
    changes = [patch for patch in PATCHES if patch.process != "own"]
    of_plugin = {patch.by for patch in changes if patch.by.startswith("sql_agent.verl_side.plugin.")}
    assert {patch.by for patch in changes if patch.process in ("trainer", "server")} <= of_plugin
    assert {patch.by for patch in changes if patch.process == "driver"} - of_plugin == {patches._DRIVER}


def test_no_change_is_entered_twice():
    entries = [(patch.by, patch.module, name) for patch in PATCHES for name in patch.names]
    assert len(set(entries)) == len(entries)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An installed package `upstream` of every kind of definition."""
    (tmp_path / "upstream" / "deep").mkdir(parents=True)
    (tmp_path / "upstream" / "__init__.py").write_text("raise RuntimeError('not to be imported')\n")
    (tmp_path / "upstream" / "deep" / "__init__.py").write_text("if True:\n    from .more import *\n")
    (tmp_path / "upstream" / "deep" / "more.py").write_text(
        "try:\n    from json import dumps as write\nexcept ImportError:\n    write = None\n"
        "class Server:\n    table = {'sdpa': write}\n    async def serve(self, port, *, host): ...\n"
        "    def __init__(self):\n        self._port, self.host = 1, 'h'\n"
        "def answer():\n    inner = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("target", "there"),
    [
        ("upstream.deep.more:answer", True),
        ("upstream.deep.more:write", True),  # under a name of its own, in a try
        ("upstream.deep.more:Server.serve", True),
        ("upstream.deep.more:Server.table.sdpa", True),
        ("upstream.deep.more:Server._port", True),  # set by __init__
        ("upstream.deep.more:Server._ports", False),
        ("upstream.deep:answer", True),  # from .more import *
        ("upstream.deep.more:answers", False),
        ("upstream.deep.more:answer.inner", False),
        ("upstream.deep.more:Server.stop", False),
        ("upstream.deep.more:Server.table.flex", False),
        ("upstream.deeper:answer", False),
        ("upstreams:answer", False),
    ],
)
def test_a_target_is_looked_up_in_sources_that_are_not_run(library, target, there):
    assert (find_definition(*target.split(":")) is not None) is there


TAKES = (
    ("(self, port, host='h')", "(self, port, host)", None),  # as where an extension has a default
    ("(self, port)", "(self, number)", None),  # callers give it by its place
    ("(self, *a, **k)", "(self, port, *, host)", None),
    ("(self, port, new=None)", "(self, port)", None),
    ("(self, model, inputs)", "(self, *args, **kwargs)", None),
    ("(self, *, segments, **k)", "(self, **kwargs)", None),
    ("(self)", "(self, port)", "'port', which its callers give"),
    ("(self)", "(self, port=None)", "'port', which its callers give"),
    ("(self, port)", "(self, port=None)", "'port', which its callers may leave out"),
    ("(self, port)", "(self, port, *, host)", "'host', which its callers give"),
    ("(self, port, host)", "(self, port)", "'host', which its callers do not give"),
    ("(self, host, port)", "(self, port, host)", "'host', which its callers give in another place"),
)


@pytest.mark.parametrize(("ours", "theirs", "parameter"), TAKES)
def test_ours_takes_what_callers_of_theirs_give_and_asks_for_nothing_else(ours, theirs, parameter):
    def signature(parameters):
        return signature_of(ast.parse(f"def f{parameters}: ...").body[0])

    assert check_signature(signature(ours), signature(theirs)) == parameter


def test_a_class_of_ours_whose_method_takes_other_parameters_stops_a_run(library, tmp_path, monkeypatch):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "server.py").write_text("class Mine:\n    async def serve(self, port): ...\n")
    importlib.invalidate_caches()  # the folder was listed within the same tick of its clock
    monkeypatch.setattr(patches, "PATCHES", (entry("Server.serve", "own", by="ours.server:Mine"),))
    monkeypatch.setitem(VERSIONS, "upstream", ("1.2",))
    with pytest.raises(
        PatchError,
        match=r"Server.serve takes \(self, port, \*, host\), and ours, written for upstream 1.2 \(none is installed\), "
        r"takes \(self, port\): they differ in 'host', which its callers give, so ours.server:Mine cannot replace it",
    ):
        patches.check_patch_targets(cpu=True)


def entry(name="answer", process="server", module="upstream.deep.more", by="sql_agent.verl_side.driver"):
    return Patch(process, by, module, (name,), "rollouts stay whole")


def test_a_renamed_target_stops_a_run_before_anything_loads(library, monkeypatch):
    monkeypatch.setattr(patches, "PATCHES", (entry(), entry("reply")))
    monkeypatch.setitem(VERSIONS, "upstream", ("1.2",))
    with pytest.raises(PatchError, match=r"upstream.deep.more:reply .*upstream 1.2 had it .*: rollouts stay whole"):
        patches.check_patch_targets(cpu=True)


@pytest.fixture
def module(monkeypatch):
    module = ModuleType("upstream.deep.more")
    module.answer = lambda: "theirs"  # type: ignore[attr-defined]
    for table in ("_made", "_wanted"):
        monkeypatch.setattr(patches, table, set())
    monkeypatch.setitem(VERSIONS, "upstream", ("1.2",))
    return module


def test_a_change_is_made_and_known_to_be(module, monkeypatch):
    monkeypatch.setattr(patches, "PATCHES", (entry(),))
    monkeypatch.setattr(patches, "_wanted", {entry()})
    with pytest.raises(PatchError, match=r"upstream.deep.more:answer"):
        patches.require_patched("server")  # its module was never imported
    patches.require_patched("trainer")  # which does not need it
    patches.change(module, lambda module: setattr(module, "answer", lambda: "ours"))
    assert module.answer() == "ours"
    patches.require_patched("server")


def test_a_change_that_changes_nothing_is_refused(module, monkeypatch):
    monkeypatch.setattr(patches, "PATCHES", (entry(),))
    with pytest.raises(PatchError, match=r"left upstream.deep.more:answer as it was; rollouts stay whole"):
        patches.change(module, lambda module: setattr(module, "answers", lambda: "ours"))


def test_a_change_that_takes_other_parameters_is_refused(module, monkeypatch):
    monkeypatch.setattr(patches, "PATCHES", (entry(),))
    with pytest.raises(
        PatchError, match=r"answer takes \(\), and ours, .* takes \(port\): they differ in 'port', which"
    ):
        patches.change(module, lambda module: setattr(module, "answer", lambda port: "ours"))


def test_a_change_of_what_is_not_there_is_refused_although_it_could_be_set(module, monkeypatch):
    monkeypatch.setattr(patches, "PATCHES", (entry("reply"),))
    with pytest.raises(PatchError, match=r"upstream.deep.more:reply is not where"):
        patches.change(module, lambda module: setattr(module, "reply", lambda: "ours"))


def derived():
    for patch in PATCHES:
        if patch.process == "own" and ":" in patch.by:
            slow = "verl_side" in patch.by  # imports verl
            yield pytest.param(patch, id=f"{patch.by}-{patch.module}", marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("patch", derived())
def test_our_class_overrides_what_the_table_says(patch):
    if ".apo." in patch.module:
        pytest.importorskip("poml", reason="agent-lightning's APO needs poml, the extra apo of pyproject.toml")
    module, _, name = patch.by.partition(":")
    ours = getattr(importlib.import_module(module), name)
    for target in patch.names:
        base, method = target.split(".")
        assert method in vars(ours) and base in [parent.__name__ for parent in ours.__mro__]


# Nothing beside the table ---------------------------------------------------------------------------------------------

OURS = ("agentgrpo", "bench", "dbbench_adapter", "reward_model", "scripts", "sql_agent")


def assignments(tree: ast.AST) -> set[str]:
    """Names of attributes that are set on what comes from an import of another's module, or is handed in as one."""
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and not (getattr(node, "module", "") or "").startswith(OURS):
            foreign |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        if isinstance(node, ast.arg) and node.annotation is not None:
            foreign |= {node.arg} if re.search("ModuleType|type\\[", ast.unparse(node.annotation)) else set()
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            foreign |= {node.targets[0].id} if is_attribute_of(node.value, foreign) else set()
    targets = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {part.attr for part in flat if isinstance(part, ast.Attribute) and is_attribute_of(part, foreign)}


def is_attribute_of(node: ast.expr, names: set[str]) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def test_assignments_are_found_however_they_are_written():
    source = (
        "import a.b\nfrom c import d\nx = d.E\na.b.f = 1\nx.g, y = 2, 3\ndef h(m: ModuleType):\n    m.i = 4\ny.j = 5"
    )
    assert assignments(ast.parse(source)) == {"f", "g", "i"}


HARMLESS = {
    "agentgrpo/commands.py": {"excepthook"},  # the standard library's, which documents it
    "agentgrpo/hub.py": {"HF_HUB_OFFLINE"},  # huggingface_hub reads it before each request; its test asks the hub
    "agentgrpo/hub_rows.py": {"HF_HUB_OFFLINE"},  # datasets does too; its test asks the hub
    "agentgrpo/processes.py": {"tempdir"},  # the standard library's, which documents it
    "sql_agent/verl_side/servers.py": {"remote"},  # of our own actor class
    "agentgrpo/agl_without_litellm.py": {"LLMProxy", "__all__"},  # of the module that stands in
}


def test_every_attribute_that_we_set_on_an_upstream_module_or_class_is_in_the_table():
    known = {name.rsplit(".", 1)[-1] for _, name in TARGETS}
    files = [file for package in OURS for file in (ROOT / package).rglob("*.py") if "tests" not in file.parts]
    for file in files:
        name = str(file.relative_to(ROOT))
        # the one puts upstream's own back, the other makes upstream's prototype run, in a process of its own
        if name not in ("bench/parts/update_worker.py", "bench/parts/peers/agl_manager.py"):
            assert assignments(ast.parse(file.read_text())) - HARMLESS.get(name, set()) <= known, name


# In real processes ----------------------------------------------------------------------------------------------------


def in_verl(cfg, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run these lines in a process as verl's are."""
    environment = os.environ | worker_environment(cfg, cpu=True)
    command = [
        sys.executable,
        "-c",
        "\n".join(["import verl", "from sql_agent import upstream_patches as patches", *lines]),
    ]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.slow  # imports verl
def test_verls_processes_have_every_change_once_they_have_imported():
    """A training worker's, a model server's limits on headers and connections, and vLLM's logger, which is imported
    after the plugin and prints no traceback of a malformed call."""
    from sql_agent.settings.train import TrainConfig

    result = in_verl(
        TrainConfig(),
        "import logging, sys",
        "print('vllm.logger' in sys.modules)",
        "import vllm.logger",
        "parser = vllm.logger.init_logger('vllm.tool_parsers.hermes_tool_parser')",
        "print(parser.isEnabledFor(logging.ERROR))",
        "from uvicorn import Config",
        "config = Config(lambda: None)",
        "config.load()",
        "print(config.http_protocol_class.__name__)",
        "from verl.workers import engine_workers",
        "from verl.workers.engine.fsdp import transformer_impl",
        "patches.require_patched('trainer')",
        "from transformers import AttentionInterface",
        "print(AttentionInterface._global_mapping['sdpa'].__module__)",
        "print(transformer_impl.FSDPEngine.initialize.__module__)",
    )
    assert result.stdout.split()[-5:] == [
        "False",
        "False",
        "GuardedHttpProtocol",
        "sql_agent.shared_prefix",
        "sql_agent.verl_side.plugin.training_worker",
    ], result.stderr[-2000:]


@pytest.mark.slow  # imports verl
def test_a_server_without_exact_prompts_does_not_start():
    """As where vLLM serves from another module than the one that we change: that one is never imported."""
    from sql_agent.settings.train import TrainConfig

    result = in_verl(
        TrainConfig(),
        "import asyncio, os",
        "os.environ['VLLM_CPU_KVCACHE_SPACE'] = '40'",
        "from verl.workers.rollout.vllm_rollout import vllm_async_server",
        "from sql_agent.verl_side.plugin.model_server import _check_before_serving",
        "class Server:",
        "    async def run_server(self, args): print('served', 'VLLM_CPU_KVCACHE_SPACE' in os.environ)",
        "vllm_async_server.vLLMHttpServer = Server",
        "_check_before_serving(vllm_async_server)",
        "asyncio.run(Server().run_server(None))",
    )
    assert "served False" in result.stdout  # the run's own setting counts, not what a user has for `vllm serve`
    target = "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat.render_chat_request"
    assert f"did not change {target} in this process" in result.stderr
