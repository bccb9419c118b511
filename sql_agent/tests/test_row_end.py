"""A rollout may use its row to the last token, and no reply goes beyond it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import requests

from agentgrpo.machine import free_port
from sql_agent.settings.load import load_config
from sql_agent.tests.conftest import wait_for
from sql_agent.verl_side.config import Files, to_verl, worker_environment

CFG = load_config(None)  # 512 tokens of first prompt, 768 of response, 512 a reply
FIRST = 500


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        (500, 512),  # the first one: 768 are left
        (756, 512),  # 1268 - 756: the last whole reply
        (769, 499),  # vLLM refuses from here on: 769 > 1280 - 512
        (1267, 1),
    ],
)
def test_a_reply_gets_what_is_left_of_the_row(prompt, reply):
    from sql_agent.verl_side.plugin.row_end import reply_tokens

    assert reply_tokens(512, FIRST + CFG.data.max_response_tokens, prompt) == reply


def chat_server(prompt: int):
    """A chat server whose template makes `prompt` tokens of everything and that refuses as vLLM does."""
    from sql_agent.verl_side.plugin.row_end import _reply_may_be_shorter

    class ChatServer:
        model_config = SimpleNamespace(max_model_len=1280)

        async def render_chat_request(self, request):
            if prompt > 1280 - (request.max_tokens or 0):
                return SimpleNamespace(error="maximum context length is 1280 tokens")
            return [], [{"prompt_token_ids": [7] * prompt}]

    _reply_may_be_shorter(SimpleNamespace(OpenAIServingChat=ChatServer))  # pyright: ignore[reportArgumentType]
    return ChatServer()


@pytest.mark.parametrize(
    ("prompt", "asked", "xargs", "left"),
    [
        (769, 512, {"row_end": 1268}, 499),
        (500, 512, None, 512),
        (1000, 512, None, 280),  # nobody said where the row ends: the context's end
        (1000, 512, {"row_end": 5000}, 280),  # which holds in any case
        (1000, None, {"row_end": 1268}, None),  # no limit was asked for
    ],
)
async def test_the_server_shortens_the_reply_instead_of_refusing_the_prompt(prompt, asked, xargs, left):
    request = SimpleNamespace(max_tokens=asked, vllm_xargs=xargs)
    _, (inputs,) = await chat_server(prompt).render_chat_request(request)
    assert (len(inputs["prompt_token_ids"]), request.max_tokens) == (prompt, left)


async def test_what_the_server_refuses_for_another_reason_stays_refused():
    request = SimpleNamespace(max_tokens=512, vllm_xargs=None)
    assert "1280" in (await chat_server(1281).render_chat_request(request)).error
    assert request.max_tokens == 512


@pytest.fixture(scope="module")
def vllm(served_policy_folder, tmp_path_factory):
    """vLLM as verl serves it, with the longest row of 100 + 200 tokens as its context."""
    cfg = load_config(None, ["data.max_prompt_tokens=100", "data.max_response_tokens=200", "agent.max_tokens=150"])
    unused = tmp_path_factory.mktemp("row-end") / "unused"
    limit = to_verl(cfg, Files(served_policy_folder, unused, unused), cpu=True)["actor_rollout_ref"]["rollout"]
    port = free_port()
    command = [sys.executable, "-m", "sql_agent.tests.recorded_vllm", str(unused.with_name("engine.jsonl")), "serve"]
    command += [str(served_policy_folder), "--port", str(port), "--max-model-len", str(limit["max_model_len"])]
    command += ["--enforce-eager", "--dtype", "float32", "--distributed-executor-backend", "uni"]
    log = unused.with_name("vllm.log")
    with log.open("w") as out:
        server = subprocess.Popen(command, env=os.environ | worker_environment(cfg, cpu=True), stdout=out, stderr=out)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, 300)
        yield f"http://127.0.0.1:{port}/v1/chat/completions", str(served_policy_folder)
    finally:
        server.terminate()
        server.wait(30)


def ask(vllm, tokens, **fields):
    """The answer to a prompt of exactly so many tokens: six of the template, then a bar each."""
    url, model = vllm
    messages = [{"role": "user", "content": "|" * (tokens - 6)}]
    body = {"model": model, "messages": messages, "max_tokens": 150, "ignore_eos": True, "logprobs": True}
    return requests.post(url, json=body | {"return_token_ids": True} | fields, timeout=120)


def lengths(answer):
    """Tokens of prompt and reply, and why that ended."""
    said = answer.json()
    usage = said["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], said["choices"][0]["finish_reason"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_server_lets_a_row_be_used_to_its_last_token_and_not_beyond(vllm):
    end = {"row_end": 80 + 200}  # a first prompt of 80; the context has 300
    assert lengths(ask(vllm, 80)) == (80, 150, "length")
    assert lengths(ask(vllm, 100, vllm_xargs=end)) == (100, 150, "length")
    assert lengths(ask(vllm, 200, vllm_xargs=end)) == (200, 80, "length")
    # what vLLM says by itself, of a field that our agent does not use: 200 > 300 - 150
    assert ask(vllm, 200, max_tokens=None, max_completion_tokens=150).status_code == 400
    assert lengths(ask(vllm, 279, vllm_xargs=end)) == (279, 1, "length")
    refused = ask(vllm, 280, vllm_xargs=end)
    assert refused.status_code == 400
    assert "context length is 280 tokens, and the prompt has 280" in refused.json()["error"]["message"]
    assert lengths(ask(vllm, 299)) == (299, 1, "length")  # nobody said: the context's end
