import json
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file

from agentgrpo.weights import weights_sha256
from reward_model.merge import PROBE, main, merge_adapter
from reward_model.preferences import read_preferences
from reward_model.scorer import RECORD, Scorer
from reward_model.tests.conftest import make_base


@pytest.fixture(scope="module")
def merged(adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged") / "merged"
    merge_adapter(adapter, folder)
    return folder


def test_the_merged_model_scores_as_the_adapter_does(adapter, merged, pairs):
    before, after = Scorer.load(adapter, device="cpu"), Scorer.load(merged, device="cpu")
    for row in read_preferences(pairs):
        encoded = before.encode([*row.prompt, *row.chosen])
        assert after.encode([*row.prompt, *row.chosen]) == encoded
        assert after.score([encoded])[0].value == pytest.approx(before.score([encoded])[0].value, abs=1e-4)
    assert (before.max_length, after.max_length) == (64, 64)


def test_the_record_says_what_was_merged_into_what(adapter, base, merged):
    record = json.loads((merged / RECORD).read_text())
    assert record["base"] == {"path": str(base), "sha256": weights_sha256(base)}
    said = record["merge"]
    assert 0 <= said.pop("max_difference") <= 1e-4
    assert said == {
        "rank": 4,
        "alpha": 8,
        "adapter_sha256": weights_sha256(adapter),
        "sha256": weights_sha256(merged),
        "dtype": "float32",
        "compared": 48,  # both sides of 24 pairs
        "bound": 1e-4,
    }


def test_the_record_holds_a_conversation_and_what_it_scores(merged):
    probe = json.loads((merged / RECORD).read_text())["probe"]
    scorer = Scorer.load(merged, device="cpu")
    score = scorer.score([scorer.encode(PROBE)])[0].value
    assert probe == {
        "messages": [
            {"role": "user", "content": "Which number comes after 41?"},
            {"role": "assistant", "content": "The number after 41 is 42."},
        ],
        "score": pytest.approx(score, abs=1e-6),
        "tolerance": pytest.approx(1e-3 * max(1, abs(score))),
    }


def test_an_adapter_is_merged_into_no_other_base(adapter, tmp_path):
    other = make_base(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    words = f"{other} is not the base that {adapter} was trained on: sha256 {weights_sha256(other)}, expected"
    with pytest.raises(ValueError, match=re.escape(words)):
        merge_adapter(adapter, tmp_path / "merged", base=other)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other"]


def test_a_base_that_moved_is_found_by_its_hash(adapter, base, tmp_path):
    moved = shutil.copytree(base, tmp_path / "moved")
    merge_adapter(adapter, tmp_path / "merged", base=moved)
    assert json.loads((tmp_path / "merged" / RECORD).read_text())["merge"]["rank"] == 4


def test_where_scores_differ_by_more_than_the_bound_nothing_is_left(adapter, tmp_path, monkeypatch, capsys):
    load = Scorer.load

    def a_little_off(path, **kwargs):
        scorer = load(path, **kwargs)
        scorer.model.score.weight.data.mul_(1.01)
        return scorer

    monkeypatch.setattr(Scorer, "load", a_little_off)
    assert main(["--adapter", str(adapter), "--output", str(tmp_path / "merged")]) == 1
    assert re.search(
        r"error: scores before and after differ by up to \S+ on 48 sides, more than --bound 1e-04; "
        r"\S+ was not written; a larger --bound would accept it",
        capsys.readouterr().err,
    )
    assert list(tmp_path.iterdir()) == []


def remove_record(folder):
    (folder / RECORD).unlink()


def whole_model(folder):
    (folder / "adapter_config.json").unlink()
    (folder / "config.json").write_text("{}")


def something_else(folder):
    (folder / "adapter_config.json").unlink()


def change_record(part, path):
    def spoil(folder):
        record = json.loads((folder / RECORD).read_text())
        record[part]["path"] = path
        (folder / RECORD).write_text(json.dumps(record))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(shutil.rmtree, "is not a folder; give the output of agentgrpo reward train", id="no_folder"),
        pytest.param(remove_record, "has no reward_model.json, so its base cannot be checked", id="no_record"),
        pytest.param(
            whole_model, "is a whole model, trained without LoRA; it needs no merge and can be served", id="whole_model"
        ),
        pytest.param(something_else, "holds no adapter_config.json", id="something_else"),
        pytest.param(
            change_record("base", "gone"), "the base gone that the record names is not there; give its", id="no_base"
        ),
        pytest.param(
            change_record("dataset", "gone"), "gone is not there; give preferences to compare scores on", id="no_data"
        ),
    ],
)
def test_what_cannot_be_merged_is_refused_with_the_reason(adapter, tmp_path, capsys, spoil, words):
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    spoil(folder)
    assert main(["--adapter", str(folder), "--output", str(tmp_path / "merged")]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_nothing_is_written_over(adapter, tmp_path, capsys):
    assert main(["--adapter", str(adapter), "--output", str(tmp_path)]) == 1
    assert f"{tmp_path} is there already; name another --output" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["--adapter", str(adapter), "--output", str(tmp_path / "file" / "merged")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_says_what_it_found(adapter, tmp_path, capsys):
    assert main(["--adapter", str(adapter), "--output", str(tmp_path / "merged")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"rank 4, alpha 8, merged in float32; largest difference of 48 scores \d\.\d\de-\d\d \(bound 1e-04\)", said[0]
    )
    assert said[1] == f"merged reward model: {tmp_path / 'merged'}"
