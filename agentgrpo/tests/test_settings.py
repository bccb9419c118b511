"""A fault in a tree of settings is told in a line, with the name that was meant."""

from typing import Literal

import pytest
from pydantic import Field, ValidationError

from agentgrpo.settings import Settings, describe_faults, names_of


class Optim(Settings):
    learning_rate: float = 1e-6
    weight_decay: float = Field(default=0.0, ge=0)


class Run(Settings):
    optim: Optim = Optim()
    seed: int = 0
    judge: Literal["strict", "text"] = "strict"


def test_names_hold_their_groups():
    assert list(names_of(Run)) == ["optim", "optim.learning_rate", "optim.weight_decay", "seed", "judge"]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"optim": {"learning_rat": 1}}, "optim.learning_rat: unknown setting; did you mean optim.learning_rate?"),
        ({"learning_rate": 1}, "learning_rate: unknown setting; did you mean optim.learning_rate?"),
        ({"optimizer": {}}, "optimizer: unknown setting; did you mean optim?"),
        ({"zzz": 1}, "zzz: unknown setting"),
        ({"judge": "strct"}, "judge: Input should be 'strict' or 'text'; did you mean strict?"),
        ({"optim": {"weight_decay": -1}}, "optim.weight_decay: Input should be greater than or equal to 0"),
        (3, "settings: Input should be a valid dictionary or instance of Run"),
    ],
)
def test_a_fault_is_told_with_what_was_meant(tree, said):
    with pytest.raises(ValidationError) as caught:
        Run.model_validate(tree)
    assert describe_faults(caught.value, Run) == [said]
