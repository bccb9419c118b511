"""vLLM and the trainer give the same log-probs for each architecture of doc/reference/chat_templates.md."""

import pytest

from bench.agreement import MODELS, in_a_process, line_of


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.full("each takes half a minute; test_weight_sync.py compares vLLM with the trainer")
@pytest.mark.parametrize("kind", MODELS)
def test_log_probs_of_a_random_model_agree(kind):
    found = in_a_process(kind)
    if "window" in kind or kind == "Gemma 3":
        assert "input.block_size" in found["failed"]
        return
    assert found["largest"] < 1e-3, found
    assert found["tokens"] == 12 * 60


def test_a_refusal_stands_in_the_table():
    found = {"failed": "ValueError: no attention"}
    assert line_of("Phi 3 and 4", found) == "| Phi 3 and 4 (`phi3`) | - | - | ValueError: no attention |"
    found = {"tokens": 720, "largest": 3.2e-6, "together": True}
    assert line_of("Llama", found) == "| Llama (`llama`) | 720 | 3e-06 | once |"
