"""Print what a reader of the code has to walk through: `python -m bench.house [CHECKOUT]`.

Product code is everything but tests, bench/ and examples/.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("agentgrpo", "dbbench_adapter", "reward_model", "sql_agent")
# What a reader opens to follow a token from vLLM to the loss, in this order.
TOKEN_TO_LOSS = (
    "sql_agent/verl_side/plugin/exact_prompts.py",
    "sql_agent/play/state.py",
    "sql_agent/play/served.py",
    "sql_agent/model_servers/chat_client.py",
    "sql_agent/model_servers/turns.py",
    "sql_agent/model_address/rollout_route.py",
    "sql_agent/lightning/llm_proxy.py",
    "sql_agent/lightning/spans.py",
    "sql_agent/lightning/agent.py",
    "sql_agent/store_server.py",
    "sql_agent/lightning/transport.py",
    "sql_agent/credit/row.py",
    "sql_agent/source/datatypes.py",
    "sql_agent/source/source.py",
    "sql_agent/source/dynamic_sampling.py",
    "sql_agent/credit/registry.py",
    "sql_agent/credit/grpo.py",
    "sql_agent/source/batch.py",
    "sql_agent/verl_side/rollout_manager.py",
    "sql_agent/verl_side/plugin/credit.py",
    "sql_agent/packed_rows.py",
    "sql_agent/verl_side/plugin/packed_engine.py",
    "sql_agent/log_probs.py",
    "sql_agent/credit/losses.py",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMMENTS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
IMPORTED = f"""
import sys
import sql_agent.commands.report, sql_agent.report.page
print(sum(name.split(".")[0] in {PACKAGES!r} for name in sys.modules))
"""


class Module(NamedTuple):
    path: str
    text: str
    tree: ast.Module


def tracked(checkout: Path, *patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=checkout, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split("\n") if path]


def is_product(path: str) -> bool:
    return "tests/" not in path and not path.startswith(("bench/", "examples/", "conftest", "scripts/bench"))


def documented_lines(tree: ast.Module) -> set[int]:
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    texts = [node for node in texts if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    return {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def code_lines(module: Module) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    lines = {line for token in tokens if token.type not in COMMENTS for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - documented_lines(module.tree))


def annotations(function: ast.FunctionDef | ast.AsyncFunctionDef, *, returned: bool) -> Iterator[ast.AST]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    notes = [argument.annotation for argument in every if argument] + [function.returns] * returned
    for note in notes:
        if note:
            yield from ast.walk(note)


def signatures_naming(name: str, modules: list[Module], *, returned: bool) -> list[str]:
    def named(node: ast.AST) -> bool:
        text = isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value
        return text or (isinstance(node, ast.Name) and node.id == name)

    functions = [(module, node) for module in modules for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS)]
    return [
        f"{module.path}:{node.name}"
        for module, node in functions
        if any(map(named, annotations(node, returned=returned)))
    ]


def names_in_several(modules: list[Module], kinds: tuple[type[ast.AST], ...]) -> list[str]:
    places: Counter[str] = Counter()
    for module in modules:
        defined = {node.name for node in module.tree.body if isinstance(node, kinds)}  # type: ignore[attr-defined]
        places.update(name for name in defined if not name.startswith("_"))
    return sorted(name for name, count in places.items() if count > 1)


def guard_lines(module: Module) -> int:
    """Lines of raises, of handlers, and of functions that check or validate."""
    lines: set[int] = set()
    for node in ast.walk(module.tree):
        guards = isinstance(node, FUNCTIONS) and node.name.lstrip("_").startswith(("check_", "validate_"))
        if guards or isinstance(node, ast.Raise | ast.ExceptHandler):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return len(lines - documented_lines(module.tree))


def report_imports(checkout: Path) -> str:
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=checkout, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not measured"


def measure(checkout: Path) -> dict[str, str]:
    sources = {path: (checkout / path).read_text() for path in tracked(checkout, "*.py")}
    modules = [Module(path, text, ast.parse(text)) for path, text in sources.items() if is_product(path)]
    functions = sum(isinstance(node, FUNCTIONS) for module in modules for node in ast.walk(module.tree))
    code = sum(map(code_lines, modules))
    token = [sources[path].count("\n") for path in TOKEN_TO_LOSS if path in sources]
    tests = sum(text.count("\n") for path, text in sources.items() if "tests/" in path)
    given_config = signatures_naming("TrainConfig", modules, returned=False)
    with_any = signatures_naming("Any", modules, returned=True)
    words = sum(len((checkout / path).read_text().split()) for path in tracked(checkout, "*.md"))
    return {
        "signatures that take the whole TrainConfig": f"{len(given_config)}",
        "token to loss: files": f"{len(token)}",
        "token to loss: lines": f"{sum(token):,}",
        "files that `agentgrpo report` imports": report_imports(checkout),
        "public class names defined in several modules": f"{len(names_in_several(modules, (ast.ClassDef,)))}",
        "public function names defined in several modules": f"{len(names_in_several(modules, FUNCTIONS))}",
        "signatures with Any, per 100": f"{100 * len(with_any) / functions:.1f}",
        "raises, handlers, checks: share of the code": f"{sum(map(guard_lines, modules)) / code:.1%}",
        "code lines": f"{code:,}",
        "files": f"{len(modules):,}",
        "test lines": f"{tests:,}",
        "words of the pages": f"{words:,}",
    }


def main() -> None:
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for what, number in measure(checkout).items():
        print(f"{what:<50} {number:>8}")


if __name__ == "__main__":
    main()
