"""What tests of the training commands stand on: a model that trains in a second, its data, one thread, its log."""

import json
from pathlib import Path

import pytest

from reward_model.preferences import write_preferences
from reward_model.tests.conftest import counting_pairs, make_base


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """An untrained model of one layer and 20,000 weights."""
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory) -> Path:
    """16 conversations of two replies: count on from a number."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with path.open("w") as out:
        for n in range(16):
            said = [("user", f"What comes after {n}?"), ("assistant", f"{n + 1}"), ("user", "And then?")]
            messages = [{"role": role, "content": text} for role, text in (*said, ("assistant", f"{n + 2}"))]
            out.write(json.dumps({"messages": messages}) + "\n")
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """24 pairs of 24 prompts."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_preferences(counting_pairs(24), path)
    return path


@pytest.fixture
def one_thread():
    """The order of a sum depends on the threads; a process that is killed has one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def command(base: object, data: object, output: Path, *flags: object) -> list[str]:
    """The arguments of sft or dpo."""
    always = ("--model_path", base, "--dataset", data, "--output_dir", output, "--max_length", 256, "--device", "cpu")
    return [str(part) for part in (*always, *flags)]


def metrics(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
