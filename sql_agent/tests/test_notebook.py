"""A notebook: which statements of its cells a command reads, and the example's cells in a real kernel."""

import base64
import sys
import types
from pathlib import Path

import pytest

import agentgrpo
from agentgrpo.user_files import load_object
from scripts.tests.report_run import make_run
from sql_agent.interface import command_words
from sql_agent.notebook import module_text

ROOT = Path(__file__).parents[2]


def statements(text: str) -> list[str]:
    """The statements of a module that came from cells, without those that let it import."""
    return [line for line in text.splitlines() if line and not line.startswith(("#", "import pathlib", "sys."))]


@pytest.mark.parametrize(("cells", "needed"), [
    pytest.param(["K = 2", "def f(r):\n    return K", "x = f(1)"], ["K = 2", "def f(r):", "    return K"], id="global"),
    pytest.param(["import json, re", "def f(r): return json.loads(r)"],
                 ["import json, re", "def f(r):", "    return json.loads(r)"], id="import"),
    pytest.param(["def f(r):\n    K = 1\n    return K", "K = 5"], ["def f(r):", "    K = 1", "    return K"],
                 id="a_local_name_is_no_global"),
    # the function reads the value that K has when it is called; its default would have been made of the first
    pytest.param(["K = 1", "def f(r=0): return K", "K = 2"], ["K = 1", "def f(r=0):", "    return K", "K = 2"],
                 id="a_later_value"),
    # T was made of the first K, and f reads the second
    pytest.param(["K = 1", "T = K * 2", "K = 5", "def f(r): return K + T"],
                 ["K = 1", "T = K * 2", "K = 5", "def f(r):", "    return K + T"], id="both_values"),
    pytest.param(["x = 1", "x = x + 1", "x += 1", "def f(r): return x"],
                 ["x = 1", "x = x + 1", "x += 1", "def f(r):", "    return x"], id="a_value_made_of_itself"),
    pytest.param(["d = {}", "d['a'] = 1", "d.update(b=2)", "e = []", "e.append(1)", "def f(r): return d"],
                 ["d = {}", "d['a'] = 1", "d.update(b=2)", "def f(r):", "    return d"], id="changed_in_place"),
    pytest.param(["import os", "os.chdir('/')", "def f(r): return os.sep"],
                 ["import os", "def f(r):", "    return os.sep"], id="a_call_of_a_module_changes_no_name"),
    pytest.param(["def f(r): return 1", "def f(r): return f"], ["def f(r):", "    return f"], id="defined_again"),
    pytest.param(["from math import *", "import math", "def f(r): return pi"],
                 ["from math import *", "def f(r):", "    return pi"], id="star"),
    pytest.param(["import functools", "@functools.cache\ndef g(): return 1", "class A:\n    b = g()",
                  "def f(r) -> A: return A"],
                 ["import functools", "@functools.cache", "def g():", "    return 1", "class A:", "    b = g()",
                  "def f(r) -> A:", "    return A"], id="decorators_classes_annotations"),
    pytest.param(["for n in (1, 2):\n    top = n", "def f(r): return top"],
                 ["for n in (1, 2):", "    top = n", "def f(r):", "    return top"], id="loops"),
    pytest.param(["d = {}", "for k in 'ab':\n    d[k] = 1", "d.setdefault('c', []).append(1)", "def f(r): return d"],
                 ["d = {}", "for k in 'ab':", "    d[k] = 1", "d.setdefault('c', []).append(1)", "def f(r):",
                  "    return d"], id="changed_in_a_loop_and_by_a_chain"),
    pytest.param(["t = 0", "for n in (1, 2):\n    t += n", "if t > 9:\n    t = 9", "def f(r): return t"],
                 ["t = 0", "for n in (1, 2):", "    t += n", "if t > 9:", "    t = 9", "def f(r):", "    return t"],
                 id="a_loop_or_a_branch_may_leave_a_name_as_it_was"),
    pytest.param(["try:\n    import json\nexcept ImportError:\n    pass", "def f(r): return json"],
                 ["try:", "    import json", "except ImportError:", "    pass", "def f(r):", "    return json"],
                 id="an_import_in_a_branch"),
    pytest.param(["import os.path", "import os", "def f(r): return os.path"],
                 ["import os.path", "import os", "def f(r):", "    return os.path"], id="modules_of_one_package"),
    pytest.param(["def g(: no", "def f(r): return 1"], ["def f(r):", "    return 1"], id="a_cell_that_is_no_python"),
    pytest.param(["def f(r): return 1", "from __future__ import annotations"],
                 ["from __future__ import annotations", "def f(r):", "    return 1"], id="future"),
])  # fmt: skip
def test_a_file_has_the_statements_that_a_name_needs_as_they_ran(cells, needed):
    text = module_text("f", cells)
    assert statements(text) == needed
    compile(text, "cells.py", "exec")


def test_a_file_imports_what_lies_beside_the_notebook(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    file = tmp_path / "runs" / "cells" / "f.py"
    file.parent.mkdir(parents=True)
    file.write_text(module_text("f", ["from beside import VALUE", "def f(r): return VALUE"]))
    monkeypatch.setattr(sys, "path", [*sys.path])
    space = {"__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert space["f"](0) == 3


@pytest.mark.parametrize(("cell", "said"), [
    ("x = get_ipython().getoutput('ls')", r"f needs `x = get_ipython\(\).getoutput\('ls'\)`, which only runs in a"),
    ("import agentgrpo\nx = agentgrpo.read_run('a').step", r"f needs `x = agentgrpo.read_run\('a'\).step`, which wou"),
    ("import agentgrpo\ndef go(): return agentgrpo.train()\nx = go()", r"f needs `x = go\(\)`, which would run again"),
    ("%%time\nx = 1", "f needs `x`, to which no cell gives a value"),
    ("from agentgrpo import train as go\nx = go()", r"f needs `x = go\(\)`, which would run again in the command"),
])  # fmt: skip
def test_what_another_process_cannot_repeat_is_refused(cell, said):
    with pytest.raises(ValueError, match=said):
        module_text("f", [cell, "def f(r): return x"])


@pytest.fixture
def run_cells(monkeypatch, tmp_path):
    """IPython's shell: the returned function runs cells and gives the notebook's names."""
    pytest.importorskip("IPython", reason="uv pip install -r pyproject.toml --extra notebook --python .venv/bin/python")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    hooks = sys.displayhook, sys.excepthook
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    monkeypatch.chdir(tmp_path)

    def run(*cells):
        for cell in cells:
            shell.run_cell(cell, store_history=True).raise_error()
        return shell.user_ns

    yield run
    sys.displayhook, sys.excepthook = hooks
    InteractiveShell.clear_instance()


def test_code_of_a_cell_is_named_by_a_file_with_it(run_cells, tmp_path):
    names = run_cells("LIMIT = 200", "%time x = 1", "def short(record):\n    return record.tokens < LIMIT")
    flags = {"reward": {names["short"]: 0.5, "agentbench": 1}, "agent": names["short"]}
    reward, preset, agent = command_words(flags)
    place = agent.removeprefix("--agent=")
    assert (reward, preset) == (f"--reward={place}=0.5", "--reward=agentbench=1")
    file, _, name = place.rpartition(":")
    assert (Path(file).parent, name) == (Path("runs/cells"), "short")
    assert statements(Path(file).read_text()) == [
        "LIMIT = 200",
        "def short(record):",
        "    return record.tokens < LIMIT",
    ]
    reward_file, _ = load_object(place)
    assert reward_file(types.SimpleNamespace(tokens=199)) is True
    # the same code has the same name, so a run that was stopped goes on; other code has another
    assert [*command_words(flags)] == [reward, preset, agent]
    assert run_cells("LIMIT = 300") and [*command_words(flags)][2] != agent


def test_an_object_without_a_place_is_refused(run_cells):
    names = run_cells("import functools, json", "def f(r): return 1", "made = [functools.partial(f)]")
    with pytest.raises(TypeError, match=r'reward is functools.*: bind it to a name in a cell of its own, reward="FILE'):
        [*command_words({"reward": names["made"][0]})]
    assert [*command_words({"reward": names["json"].loads})] == ["--reward=json:loads"]


def test_a_run_is_its_report_in_a_cell(tmp_path):
    run = agentgrpo.read_run(make_run(tmp_path / "run"))
    assert run._repr_html_() is None
    run.report.write_text('<p class="a">é</p>')
    assert 'srcdoc="&lt;p class=&quot;a&quot;&gt;é&lt;/p&gt;"' in run._repr_html_()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_examples_cells_train_in_a_kernel(tmp_path):
    """As it stands, but for fewer steps; a cell that raises fails the test with its traceback."""
    nbclient = pytest.importorskip("nbclient", reason="uv pip install -r pyproject.toml --extra notebook")
    nbformat = pytest.importorskip("nbformat")
    text = (ROOT / "examples" / "notebook" / "first_run.ipynb").read_text()
    fewer = {
        "steps=320": "steps=30",
        r"trainer.steps\": 9": r"trainer.steps\": 2",
        r"val_limit\": 96": r"val_limit\": 8",
    }
    for given, few in fewer.items():
        assert text.count(given) == 1
        text = text.replace(given, few)
    book = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    pictures = [output.data["image/png"] for output in shown if "image/png" in output.get("data", {})]
    assert len(pictures) == 1 and base64.b64decode(pictures[0]) == (tmp_path / "runs/first/curve.png").read_bytes()
    said = "".join(output.text for output in shown if output.output_type == "stream")
    assert "step 2/2" in said and "right_and_short" in (tmp_path / "runs/first/config.yaml").read_text()
    assert "srcdoc=" in shown[-1].data["text/html"]
