"""A rollout may use its row to the last token, and no reply goes beyond it; test_weight_sync.py asks a real server."""

from types import SimpleNamespace

import pytest

from sql_agent.settings.load import load_config

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
    from sql_agent.verl_side.plugin.model_server import reply_tokens

    assert reply_tokens(512, FIRST + CFG.data.max_response_tokens, prompt) == reply


def chat_server(prompt: int):
    """A chat server whose template makes `prompt` tokens of everything and that refuses as vLLM does."""
    from sql_agent.verl_side.plugin.model_server import _reply_may_be_shorter

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
