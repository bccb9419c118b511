"""A model folder's own sampling settings do not reach the sampler: the policy that is trained samples plainly.

The settings pass the code that verl's server and vLLM's chat endpoint run; nothing is served here.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import Files, compose, to_verl

QWEN25_INSTRUCT = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.fixture
def opinionated(random_policy_folder, tmp_path) -> Path:
    """A folder whose generation_config.json has Qwen2.5-Instruct's settings, a floor, and a second stop token."""
    folder = tmp_path / "model"
    shutil.copytree(random_policy_folder, folder)
    settings = QWEN25_INSTRUCT | {"min_p": 0.3, "eos_token_id": [3, 5]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.slow  # imports of verl's server: 20 s
def test_a_chat_request_samples_from_the_whole_distribution_whatever_the_folder_says(opinionated):
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from vllm.config import ModelConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    cfg = load_config(None)
    rollout = compose(to_verl(cfg, Files(opinionated, Path("t"), Path("v")), cpu=True)).actor_rollout_ref.rollout
    model = ModelConfig(
        str(opinionated),
        generation_config=rollout.engine_kwargs.vllm.get("generation_config", "auto"),
        override_generation_config=vLLMHttpServer._get_override_generation_config(SimpleNamespace(config=rollout)),
    )
    request = ChatCompletionRequest(  # what `sql_agent.play.served` sends
        messages=[{"role": "user", "content": "?"}], temperature=cfg.agent.temperature, top_p=cfg.agent.top_p
    )
    sampling = request.to_sampling_params(16, model.get_diff_sampling_param())
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (1.0, 1.0, 0.0, 1.0)
    assert sampling.top_k in (0, -1)  # both are off
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)
    assert model.try_get_generation_config()["eos_token_id"] == [3, 5]  # where replies end is still the folder's to say
