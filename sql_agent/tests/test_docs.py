"""Commands of the pages can be pasted."""

import re
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "doc"
PROGRAM = r"\.venv/bin/\S+|python3?|make|bash|accelerate|agl|vllm|docker|\.|curl|pytest|uv|export"
COMMAND = re.compile(rf"(\$ )?(\w+=\S* )*({PROGRAM})( |$)")
PAGES = [*sorted(DOC.rglob("*.md")), *sorted(DOC.parent.glob("*.md"))]


def blocks_of_commands(page: str) -> list[list[str]]:
    """Return the lines of the code blocks without a language in which a command begins a line."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    blocks = [text.splitlines() for language, text in fenced if not language]
    return [lines for lines in blocks if any(map(COMMAND.match, lines))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOC.parent)))
def test_commands_can_be_pasted_into_a_shell_that_knows_no_comments(page):
    """zsh reads a # that is typed as a word: behind a command it is an argument, and a quote or `;` after it counts."""
    lines = [line for block in blocks_of_commands(page.read_text()) for line in block]
    assert [line for line in lines if re.search(r"\S\s+#", line)] == []
    assert [line for line in lines if line.startswith("#") and not re.fullmatch(r"# [\w ,.:%/=+-]+", line)] == []


def test_the_first_page_has_the_same_commands_headings_and_links_in_both_languages():
    english, chinese = ((DOC.parent / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    assert blocks_of_commands(english) == blocks_of_commands(chinese)
    assert len(blocks_of_commands(english)) > 3
    assert len(re.findall("^## ", english, re.MULTILINE)) == len(re.findall("^## ", chinese, re.MULTILINE))
    links = [set(re.findall(r"\]\(((?:doc|examples)/[^)]+)\)", page)) for page in (english, chinese)]
    assert links[0] - links[1] <= {"examples"}
