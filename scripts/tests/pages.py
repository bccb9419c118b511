"""Reads the commands of the pages that people type from, and says which of them `test_typed_pages.py` types, and when.

What is not in a table here is typed whenever the tests run.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
START = ("install", "first_run", "your_database", "your_agent")
GUIDES = tuple(sorted(f"doc/guides/{page.name}" for page in (ROOT / "doc" / "guides").glob("*.md")))
PAGES = (
    "README.md",
    *(f"doc/start/{name}.md" for name in START),
    "doc/project/predecessors.md",
    *GUIDES,
    "README.zh-CN.md",
)
PROGRAM = r"\.venv/bin/\w+|python3?|make|bash|accelerate|agl|vllm|docker|uvx?|\. \.venv/bin/activate"
STARTS = re.compile(rf"(?:\w+=\S+ )*(?:{PROGRAM})(?: |$)")

NOT_TYPED = {
    ": make demo$": "It trains for twelve minutes; test_improve.py runs its command with the small policy.",
    ": make (demo-small|setup|clean)$": "With --full test_caged_runs.py runs the first; the clone has its environment.",
    "make (demo-pretrained|gpu-check)": "The first takes two hours; test_gpu_check.py runs the stages of the second.",
    r"^doc/start/install.md: (?!.*doctor$)": "It installs or removes; test_wheel.py, test_container.py do as it says.",
    "--backend mongo|docker compose": "It needs MongoDB or Docker, and its page says that it was not run.",
    r"^README.*agentgrpo improve": "test_improve.py types it.",
    r"agentgrpo clean --all|report runs/demo-shop": "It ends other tests' processes, or reads what `make demo` wrote.",
    r"^doc/guides/": "Its names stand for the reader's own; tests of each command run it.",
}
"""What is parsed only, and why; so is what a page marks with `*`. Patterns look at the page's name and the command."""

FULL = {
    r"tiny_cpu\.yaml": "It trains for a minute, as tests of that command do.",
    r"(?:agentgrpo train|train_sql_agent\.py)(?!.*--dry-run)|runs/seller$": "A train step takes two minutes.",
    r"agl store --host|--base-url URL": "It serves a train step, or asks a server that starts in a minute.",
    r"pretrained-policy|smollm2|runs/shop": "The model is fetched, 93 MB, and trained for a quarter of an hour.",
    r"predecessors.md: (?:CUDA.* accelerate|python -m reward_model|python infer)": "Tests of these commands run them.",
    r"predecessors.md: python3? (-m )?scripts[./](run_dbbench_greedy|train_sft|train_gsm8k|test_interactive)": (
        "Tests of these commands run them."
    ),
}
"""What is typed with --full only, and why."""

REPLACED = {
    r"ORG/NAME|/path/to/model|Qwen/Qwen2\.5-7B-Instruct|\bMODEL\b": "CLONE/models/tiny-sql",
    r"\bFILE\.sqlite\b": "shop/shop.sqlite",
    r"--tasks FILE\b": "--tasks brought.json",
    r"_path FILE --output_path FILE\b": "_path brought.json --output_path data/skills.json",
    r"\bURL --model NAME\b": "http://127.0.0.1:8000/v1 --model mine",
    r"center=C reward_model\.scale=S": "center=0 reward_model.scale=1",
    r"outputs/Qwen2\.5-0\.5B/rl/epoch_3": "outputs/gsm8k_grpo/epoch_1",
}
"""What is typed for a name that stands for something of the reader's. CLONE is the clone's folder."""

ONE_STEP = re.compile(r"(?:agentgrpo train|train_sql_agent\.py)(?!.*(?:--ci-fast|--config|--dry-run|trainer\.steps))")
"""What trains 20 steps is typed with `--ci-fast`, which trains one."""


class Command(NamedTuple):
    """A command as it stands on a page."""

    page: str
    text: str
    folder: str = ""
    """It is typed here, seen from the root: a row of a table may say `cd FOLDER`, which holds for later rows too."""
    starred: bool = False
    """The page says with `*` that it needs a GPU or a model of the hub."""

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text}"

    def why(self, table: dict[str, str]) -> str | None:
        """Return the reason that the table gives for this command."""
        return next((reason for pattern, reason in table.items() if re.search(pattern, self.name)), None)

    def typed(self, *, full: bool) -> bool:
        """Return whether the command is typed. Rows below the reward model's training need what it writes."""
        if self.why(NOT_TYPED) or (self.starred and "accelerate" not in self.text):
            return False
        return full or self.why(FULL) is None

    def in_clone(self, clone: Path) -> str:
        """Return what is typed in that clone."""
        text = self.text
        for pattern, replacement in REPLACED.items():
            text = re.sub(pattern, replacement, text)
        return text.replace("CLONE", str(clone)) + (" --ci-fast" if ONE_STEP.search(text) else "")


def blocks(page: str, language: str = "") -> list[str]:
    """Return the code blocks of that language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


@cache
def commands(page: str) -> list[Command]:
    """Return the commands of a page's code blocks and sentences in order, then those of its tables."""
    text = (ROOT / page).read_text()
    found, rows, fenced = [], [], False
    for line in re.sub(r"\\\n *", "", text).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and STARTS.match(line):
            found.append(Command(page, re.sub(r"\s{2,}#.*$", "", line).strip()))
        elif line.startswith("|"):
            rows.append(line)
        elif not fenced:
            found += [Command(page, code) for code in codes(line) if is_command(code)]
    known = commands("README.md") if page == "README.zh-CN.md" else []
    told = {each.text for each in known}
    return [each for each in dict.fromkeys([*found, *of_rows(page, rows)]) if each.text not in told]


def codes(text: str) -> list[str]:
    return re.findall("`([^`]+)`", text)


def is_command(code: str) -> bool:
    return " " in code and STARTS.match(code) is not None


def of_rows(page: str, rows: list[str]) -> list[Command]:
    """Return the commands of tables; those of the first cell count where the second says "the same"."""
    found, folder = [], ""
    for row in rows:
        first, *others = [cell.strip() for cell in row.strip("|").split(" | ")]
        if set(first) <= {"-", " "}:
            folder = ""
        for cell in (first, *others):
            counts = cell in others or others[0].startswith("the same")
            for code in codes(cell):
                if code.startswith("cd "):
                    folder = code.removeprefix("cd ")
                elif counts and is_command(code):
                    here = "" if "from the root" in cell else folder
                    found.append(Command(page, code, here, first.endswith("*")))
    return found


def left_over(page: str) -> list[str]:
    """Return what looks like a command of the page, or like a name in one, and that nobody types or explains."""
    read = {each.text for each in commands(page)} | {each.text for each in commands("README.md")}
    lines = [re.sub(r"\s{2,}#.*$", "", line).strip() for block in blocks(page) for line in plain(block).splitlines()]
    lines = [line for line in lines if re.match(r"(?:\w+=\S+ )*(?:\.venv/|\w+\.sh|[a-z]+3? (?!prompts: ).*--\w)", line)]
    unread = [line for line in lines if line not in read]
    rows = re.findall(r"^\| as typed there.*\n\|.*\n((?:\|.*\n)+)", (ROOT / page).read_text(), re.MULTILINE)
    unread += [row for table in rows for row in table.splitlines() if typed_there(row) and not of_rows(page, [row])]
    typed = [each for each in commands(page) if each.typed(full=True)]
    unnamed = [each.text for each in typed if re.search(r"(?<![\w=])[A-Z]{2,}\b(?!=)", each.in_clone(Path("/clone")))]
    return unread + unnamed


def typed_there(row: str) -> bool:
    return any(" " in code for code in codes(row.split(" | ")[0]))


def plain(block: str) -> str:
    """Return a code block with each continued line joined to the one before."""
    return re.sub(r"\\\n *", "", block)
