import json

import pytest

from reward_model.validate import MAX_LISTED, check_preference_file, main

USER, YES, NO = (
    {"role": role, "content": text} for role, text in [("user", "1?"), ("assistant", "yes"), ("assistant", "no")]
)
GOOD = {"prompt": [USER], "chosen": [YES], "rejected": [NO]}


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        pytest.param(GOOD, [], id="good"),
        pytest.param("{\n", ["row: Invalid JSON: EOF while parsing an object at line 2 column 0"], id="torn"),
        pytest.param(
            {"prompt": "1?", "chosen": [YES, YES | {"role": "wizard"}]},
            [
                "prompt: Input should be a valid array",
                "chosen.1.role: Input should be 'system', 'user', 'assistant' or 'tool'",
                "rejected: Field required",
            ],
            id="every_field_at_fault",
        ),
        pytest.param(GOOD | {"rejected": [YES]}, ["rejected: says the same as chosen; leave the row out"], id="equal"),
        pytest.param(GOOD | {"chosen": [YES | {"content": " "}]}, ["chosen: ends with an empty reply"], id="empty"),
        pytest.param(GOOD | {"prompt": [YES]}, ["prompt: holds no user message"], id="no_user"),
        pytest.param(
            GOOD | {"prompt": [USER | {"content": "[INST] 1? [/INST]"}]},
            [
                "prompt: holds '[INST]', a mark of a chat format, which the model's template would write once more; "
                "give the conversation as messages with roles, or remove the mark"
            ],
            id="rendered",
        ),
        pytest.param(
            GOOD | {"prompt": [USER, {"role": "tool", "content": "r"}]},
            ["prompt.1: a tool's result that answers no call; put it after its call, or leave it out"],
            id="orphan",
        ),
    ],
)
def test_every_fault_of_a_row_is_named_with_its_field(tmp_path, row, faults):
    path = write(tmp_path / "p.jsonl", GOOD, row)
    report = check_preference_file(path)
    assert report.listed == [f"{path}, row 2, {fault}" for fault in faults]
    assert (report.rows, report.faults, report.summary.pairs) == (2, len(faults), 1 if faults else 2)


def test_the_list_of_faults_is_capped_and_counted(tmp_path, capsys):
    path = write(tmp_path / "p.jsonl", *[{}] * 100)
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    # prompt, chosen and rejected are missing in each
    assert "100 rows, 300 faults in 100 of them" in said and f"... and {300 - MAX_LISTED} more" in said
    assert said.count("Field required") == MAX_LISTED


def test_pairs_that_occur_twice_or_the_other_way_round_are_named_and_no_fault(tmp_path, capsys):
    swapped = {"prompt": [USER], "chosen": [NO], "rejected": [YES]}
    assert main([str(write(tmp_path / "p.jsonl", GOOD, swapped, GOOD, GOOD | {"metadata": {"a": 1}}))]) == 0
    said = capsys.readouterr().out
    assert "nothing wrong" in said and "4 pairs over 1 prompts" in said
    assert "the same as an earlier row: 2 (row 3 as row 1, row 4 as row 1)" in said
    assert "the other way round than an earlier row: 1 (row 2 as row 1)" in said


def test_a_missing_or_an_empty_file_is_wrong_and_the_others_are_still_checked(tmp_path, capsys):
    empty, good = write(tmp_path / "empty.jsonl"), write(tmp_path / "good.jsonl", GOOD)
    assert main([str(tmp_path / "nowhere"), str(empty), str(good)]) == 1
    said = capsys.readouterr()
    assert "nowhere does not exist" in said.err and "empty.jsonl holds no row" in said.err
    assert "good.jsonl: 1 rows, nothing wrong" in said.out
