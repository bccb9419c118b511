"""Pages keep to the rules of prose, and their figures to doc/data/results.json."""

import re

import pytest

from scripts.pages import pictures, prose, results

SHORT = "The command prints one line. "
MEAN = "words in the mean, expected 22 at most"


def findings(page, name="doc/page.md"):
    return [each.text.partition(":")[0] for each in prose.findings_of(name, page)]


def test_the_pages_of_the_repository_have_no_finding(capsys):
    assert prose.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("word " * 30 + "end.", ["a sentence has 31 words, expected 30 at most", f"a sentence has 31.0 {MEAN}"]),
        (SHORT + "So it ends.", ["a sentence begins with So"]),
        ("- Where it is, nobody knows.", ["a sentence begins with Where"]),
        ("**Not** this.", ["a sentence begins with Not"]),
        ("Its name is this. Of these two are left.", ["a sentence begins with Of"]),
        ("Software and Offline begin otherwise. Note this. Whatever runs, runs.", []),
        ("```\nSo this is code.\n```\n\n| What | Of |\n| --- | --- |\n\n# What a heading says\n", []),
        (f"[{'word ' * 12}](a/long/address.md) {'word ' * 10}end.\n", [f"a sentence has 23.0 {MEAN}"]),
        (SHORT * 301, ["it has 1,505 words, expected 1,500 at most"]),
    ],
)  # fmt: skip
def test_a_finding_names_the_rule(page, found):
    assert findings(page) == found


def test_the_first_page_has_a_limit_of_its_own():
    assert findings(SHORT * 181, "README.md") == ["it has 905 words, expected 900 at most"]


@pytest.mark.parametrize("name", results.PAGES)
def test_a_page_has_the_results_as_the_data_has_them(name):
    language, counts = results.PAGES[name]
    page = (results.ROOT / name).read_text("utf-8")
    assert results.BLOCK.search(page)
    assert page == results.filled(page, results.read(), language, counts=counts), "run `make reference`"


@pytest.mark.parametrize("scheme", pictures.INK)
def test_the_picture_shows_the_same_shares(scheme):
    picture = (results.ROOT / "doc" / "pictures" / f"results_{scheme}.svg").read_text("utf-8")
    shares = re.findall(r"[\d.]+ %(?= \|)", results.table(results.read(), "en", counts=False))
    assert len(shares) > 10
    assert [share for share in shares if f">{share}<" not in picture] == []


def test_of_several_runs_the_mean_and_each_count_are_shown():
    assert results.share([44, 45, 41], 132, each=True) == "32.8 % (44, 45, 41)"
    assert results.share([29, 29, 29], 132, each=True) == "22.0 %"
    assert results.share([], 132, each=True) == "–"
