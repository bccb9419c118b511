import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from agentgrpo.model_kinds import count_adapter_weights, count_weights


def test_weights_are_counted_over_all_files_and_an_adapter_by_its_layers(tmp_path):
    assert (count_weights(tmp_path), count_adapter_weights(tmp_path, 4)) == (None, None)
    first = {"model.embed_tokens.weight": np.zeros((50, 8)), "model.layers.0.q_proj.weight": np.zeros((6, 8))}
    save_file(first, tmp_path / "model-1.safetensors")
    save_file({"model.norm.weight": np.zeros(8), "lm_head.weight": np.zeros((50, 8))}, tmp_path / "model-2.safetensors")
    assert count_weights(tmp_path) == 400 + 48 + 8 + 400
    assert count_adapter_weights(tmp_path, 4) == 4 * (6 + 8)


def test_a_torn_file_is_not_counted_as_empty(tmp_path):
    save_file({"lm_head.weight": np.zeros((50, 8))}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    for size in (0, 20, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(SafetensorError):
            count_weights(tmp_path)
