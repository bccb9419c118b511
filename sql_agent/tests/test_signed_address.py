"""The address of a rollout: whoever has it asks for this rollout, as the run samples, and for nothing else."""

import pytest

from sql_agent.model_address.signed_address import RolloutSampling, read_signed, signed_prefix

TOKEN = "the-token-of-a-run"
SAMPLING = RolloutSampling("ro-1", "at-1", "policy-0", 1.0, 96, seed=7)
REST = "/rollout/ro-1/attempt/at-1/v1/chat/completions"
ADDRESS = signed_prefix(SAMPLING, TOKEN)


def test_what_was_signed_is_read_back_with_the_rest_of_the_path():
    assert read_signed(ADDRESS + REST, TOKEN) == (SAMPLING, REST)


@pytest.mark.parametrize(
    "path",
    [
        REST,
        "/as/" + REST,
        "/as/e30" + REST,
        ADDRESS + REST.replace("ro-1", "ro-2"),
        ADDRESS + REST.replace("at-1", "at-2"),
        ADDRESS + "/v1/chat/completions",
        ADDRESS[:-1] + ("0" if ADDRESS[-1] != "0" else "1") + REST,
        ADDRESS.replace("/as/", "/as/A") + REST,
        signed_prefix(RolloutSampling("ro-1", "at-1", "policy-0", 0.0, 96, seed=7), "another token") + REST,
    ],
)
def test_another_rollout_a_changed_setting_and_another_token_are_nobodys(path):
    assert read_signed(path, TOKEN) is None


def test_the_same_settings_have_the_same_address_and_others_another():
    others = [
        RolloutSampling("ro-1", "at-1", "policy-1", 1.0, 96, seed=7),
        RolloutSampling("ro-1", "at-1", "policy-0", 0.5, 96, seed=7),
        RolloutSampling("ro-1", "at-1", "policy-0", 1.0, 96, seed=8),
    ]
    assert len({ADDRESS, signed_prefix(SAMPLING, TOKEN), *(signed_prefix(each, TOKEN) for each in others)}) == 4
