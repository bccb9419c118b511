"""Every command, flag, setting, path, module, metric, link and anchor that a page names exists.

Names stand in backquotes or in code blocks. A command of another program is left to that program.
"""

import functools
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgrpo.main import COMMANDS
from agentgrpo.settings import earlier_settings, names_of, verl_keys
from scripts.pages.commands import parsed
from scripts.pages.metrics import registry
from scripts.pages.tables import ROOT
from scripts.tests.metric_names import unregistered
from sql_agent.settings.single_skill import ExperimentConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.verl_side.allowed_keys import ALLOWED_KEYS

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "doc").rglob("*.md"))]
LINKING = [*PAGES, *sorted((ROOT / "examples").rglob("*.md"))]
PACKAGES = ("agentgrpo", "sql_agent", "reward_model", "dbbench_adapter", "bench", "scripts")
FOLDERS = "|".join((*PACKAGES, "doc", "examples", "archive"))
FENCE = re.compile(r"^ *```(\w*).*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
AGENTGRPO = re.compile(r"(?:\S*/)?agentgrpo$|python3? -m agentgrpo$")
OF_OTHERS = {
    "vllm": "--enable-auto-tool-choice --tool-call-parser --enforce-eager --generation-config",
    "docker": "--shm-size --build-arg --gpus",
    "ray": "--num-gpus --num-cpus",
    "uv": "--override --no-deps",
    "bench": "--only",
}
"""Flags of other programs that stand alone in backquotes."""
NO_SETTINGS = {"env.step"}
"""A method that looks like a setting."""
NO_MODULES = {"agentgrpo.environments"}
"""A group of entry points."""
CHANGELOG, PREDECESSORS = "CHANGELOG.md", "doc/project/predecessors.md"
"""Pages that name what is no longer there."""


def of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def codes(page: Path) -> list[str]:
    """Texts in backquotes outside code blocks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("\n", page.read_text("utf-8")))]


@functools.cache
def lines(page: Path) -> list[str]:
    """Lines of the code blocks without a language, continued lines joined, and texts in backquotes."""
    blocks = [text for language, text in FENCE.findall(page.read_text("utf-8")) if not language]
    return [*(line for text in blocks for line in re.sub(r"\\\n *", "", text).splitlines()), *codes(page)]


@functools.cache
def flags_of(command: str) -> frozenset[str]:
    parser = parsed(COMMANDS[command][0]).parser
    return frozenset({*parser._option_string_actions, *parser.earlier_names})


@functools.cache
def every_flag() -> frozenset[str]:
    return frozenset(" ".join(OF_OTHERS.values()).split()).union(*map(flags_of, COMMANDS))


def calls(line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of ours in a line, and its words."""
    for part in re.split(r"[|&;]+ ", line):
        try:
            words = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
        except ValueError:  # an apostrophe of prose
            continue
        if words[:2] == ["accelerate", "launch"] and "reward_model/reward_modeling.py" in words:
            yield "reward train", words[words.index("reward_model/reward_modeling.py") + 1 :]
        if not words or not AGENTGRPO.match(words[0]):
            continue
        command = next((name for name in (" ".join(words[1:3]), *words[1:2]) if name in COMMANDS), None)
        if command:
            yield command, words[1 + len(command.split()) :]
        elif (
            words[1:2] and re.fullmatch(r"[a-z][a-z-]+", words[1]) and not any(c.startswith(words[1]) for c in COMMANDS)
        ):
            yield words[1], []


def wrong_flags(page: Path) -> Iterator[str]:
    for line in lines(page):
        for command, words in calls(line):
            if command not in COMMANDS:
                yield f"agentgrpo {command}"
                continue
            typed = [word.partition("=")[0].replace("_", "-") for word in words if re.match(r"--[a-z]", word)]
            yield from (f"agentgrpo {command} {flag}" for flag in typed if flag not in {*flags_of(command), "--help"})
    for code in codes(page):
        flag = re.match(r"--[a-z][\w-]*", code)
        if flag and flag[0].replace("_", "-") not in every_flag():
            yield flag[0]


def known_settings() -> set[str]:
    own = {*names_of(TrainConfig), *names_of(ExperimentConfig), *earlier_settings(TrainConfig)}
    own |= {*earlier_settings(ExperimentConfig), *verl_keys(TrainConfig)}
    below = {key.rstrip(".") for key in ALLOWED_KEYS}
    return own | below | {f"verl.{key}" for key in {*below, *verl_keys(TrainConfig)}}


SETTINGS = known_settings()
VERL = Path(str(find_spec("verl").origin)).parent
GROUPS = {name.partition(".")[0] for name in SETTINGS if "." in name}


def wrong_settings(page: Path) -> Iterator[str]:
    texts = codes(page) + [word for line in lines(page) for _, words in calls(line) for word in words if "=" in word]
    for text in texts:
        found = re.fullmatch(r"(([a-z_]+)(?:\.[a-z_0-9]+)+)(?:=.*)?", text.removeprefix("--set "))
        if found and found[2] in GROUPS and found[1].rpartition(".")[2] not in SUFFIXES and not is_setting(found[1]):
            yield found[1]


SUFFIXES = {"py", "md", "json", "jsonl", "yaml", "txt", "log", "pt"}


def is_setting(name: str) -> bool:
    """Whether it is a setting, a group of some, or a key or a module of verl's."""
    verl = name.removeprefix("verl.")
    below = any(verl.startswith(key) for key in ALLOWED_KEYS if key.endswith("."))
    group = any(each.startswith(f"{name}.") or each.endswith(f".{name}") for each in SETTINGS)
    return (
        name in SETTINGS | NO_SETTINGS or below or group or (VERL / verl.replace(".", "/")).with_suffix(".py").is_file()
    )


def wrong_paths(page: Path) -> Iterator[str]:
    words = {word for line in lines(page) for word in re.split(r"[\s\"'=,;()]+", line)}
    for word in sorted(words):
        path = re.fullmatch(rf"((?:{FOLDERS})/[\w./*-]*?)(?::\w+)?\.?", word)
        if path and "..." not in path[1] and unregistered([path[1]]) and not any(ROOT.glob(path[1].rstrip("/."))):
            yield path[1]


def wrong_modules(page: Path) -> Iterator[str]:
    for name in {
        name for line in lines(page) for name in re.findall(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.\w+)+)", line)
    }:
        if name not in SETTINGS | NO_MODULES and not exists(name):
            yield name


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or stands in the file of the longest module that it begins with."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:end])
        if place.is_dir() and end == len(parts):
            return True
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return all(re.search(rf"\b{part}\b", file.read_text("utf-8")) for part in parts[end : end + 1])
    return find_spec(name) is not None


AREAS = {name.partition("/")[0] for group in registry() for each in group.metrics for name in each.names if "/" in name}


def wrong_metrics(page: Path) -> Iterator[str]:
    for code in codes(page):
        name = code.removeprefix("val/")
        if re.fullmatch(r"[a-z_]+(?:/[\w-]+)+", name) and name.partition("/")[0] in AREAS - {"data", "actor"}:
            yield from unregistered([code])


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as the hosting page and MyST make them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("\n", page.read_text("utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if not n else f"{slug}-{n}" for slug, most in found.items() for n in range(most + 1)}


def wrong_links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("\n", page.read_text("utf-8")))
    for link in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|srcset|href)=\"([^\"]+)\"", text):
        target, _, anchor = "".join(link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in slugs(file)):
            yield "".join(link)


CHECKS = [wrong_flags, wrong_settings, wrong_paths, wrong_modules, wrong_metrics, wrong_links]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("wrong_"))
def test_what_pages_name_exists(check):
    spared = {CHANGELOG, PREDECESSORS} if check in (wrong_paths, wrong_modules) else {CHANGELOG}
    pages = LINKING if check is wrong_links else [page for page in PAGES if of(page) not in spared]
    found = [f"{of(page)}: {name}" for page in pages for name in dict.fromkeys(check(page))]
    assert not found, "pages name what does not exist:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("check", "text", "found"),
    [
        (wrong_flags, "`.venv/bin/agentgrpo train --run-dir a --batch 3` `--llm-proxy` `--no-such` `agentgrpo trane`",
         ["agentgrpo train --batch", "agentgrpo trane", "--no-such"]),
        (wrong_settings, "`rollout.reward=a` `rollout.rewards` `verl.data.shuffle` `trainer.stepz=3`",
         ["rollout.rewards", "trainer.stepz"]),
        (wrong_paths, "`sql_agent/rewards.py` `sql_agent/gone.py` `doc/reference/metrics.md`", ["sql_agent/gone.py"]),
        (wrong_modules, "`sql_agent.rewards` `sql_agent.environments.tools.Lost` `bench.gone`", ["bench.gone"]),
        (wrong_metrics, "`val/rollout/success` `group/zero_frac` `rollout/lost/REASON`", ["group/zero_frac"]),
        (wrong_links, "# A b\n[x](#a-b) [y](#gone) [z](gone.md)", ["#gone", "gone.md"]),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(check, text, found, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [*check(page)] == found
