"""A misspelt name is answered with the known one that is most like it."""

import pytest

from agentgrpo.spelling import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("strct", ["strict", "text"], "strict"),
        ("--Learning_Rate", ["learning-rate", "lora-rank"], "learning-rate"),
        ("zzz", ["strict", "text"], None),
    ],
)
def test_the_most_similar_name_is_found(name, known, found):
    assert nearest(name, known) == found


def test_a_mapping_gives_the_name_to_propose():
    assert did_you_mean("model-pth", {"model-path": "model"}) == "; did you mean model?"
    assert did_you_mean("zzz", {"model-path": "model"}) == ""


def test_where_only_the_number_of_a_folder_is_wrong_those_that_exist_are_listed(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    for name in ("global_step_9", "global_step_12", "global_step_3", "latest"):
        (checkpoints / name / "actor").mkdir(parents=True)
    missing = checkpoints / "global_step_15" / "actor" / "huggingface"
    assert did_you_mean(missing) == f"; {checkpoints} has global_step_3, global_step_9, global_step_12"
    assert did_you_mean(checkpoints / "global_step_12" / "actors") == (
        f"; did you mean {checkpoints / 'global_step_12' / 'actor'}?"
    )
    assert did_you_mean(checkpoints / "global_step_12") == ""  # nothing is wrong with a number that exists


def test_a_path_is_looked_for_beside_itself_and_beside_its_folder(tmp_path):
    (tmp_path / "models" / "tiny-sql").mkdir(parents=True)
    whole = f"; did you mean {tmp_path / 'models' / 'tiny-sql'}?"
    assert did_you_mean(tmp_path / "models" / "tiny-sqk") == whole
    assert did_you_mean(tmp_path / "modles" / "tiny-sql") == whole
    assert did_you_mean(tmp_path / "models" / "another") == ""
    assert did_you_mean(tmp_path / "wholly" / "another") == ""
    assert did_you_mean(tmp_path / "models") == ""  # it is there, as a folder where a file is expected
