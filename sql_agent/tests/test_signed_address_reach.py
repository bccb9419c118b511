"""What the signature of one rollout reaches: its calls of the policy, and no other route of any server of a run.

The routes are those of the servers' own applications, so that a new one is tried without being listed here.
"""

import asyncio
import json
import re
from itertools import product

import httpx
import pytest
from starlette.applications import Starlette

from sql_agent.model_address import rollout_route, weight_sync_pause
from sql_agent.model_address.request_guard import RUN_TOKEN, STORE_TOKEN, authorization
from sql_agent.model_address.rollout_route import ProxyRequestGuard, RolloutRoute
from sql_agent.model_address.signed_address import RolloutSampling, signed_prefix
from sql_agent.store_server import BoundedStore, StoreServer

TOKEN = "the-token-of-this-run"
ROLLOUT = "/rollout/ro-1/attempt/at-1/v1"
SIGNATURE = signed_prefix(RolloutSampling("ro-1", "at-1", "policy-0", 0.7, 64), TOKEN)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ALLOWED = {("POST", "/chat/completions"), ("GET", "/models"), ("HEAD", "/models")}


@pytest.fixture(autouse=True)
def run_token(monkeypatch):
    monkeypatch.setenv(RUN_TOKEN, TOKEN)


def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def paths_of(app) -> list[str]:
    """The path of every route, mounted applications included, with a word for each parameter."""
    found = []
    for route in app.routes:
        path = getattr(route, "path", "")
        found += [path + inner for inner in paths_of(route)] if getattr(route, "routes", None) else [path]
    return sorted({re.sub(r"\{[^}]*\}", "x", path) for path in found if path.startswith("/")})


async def reached(app, paths) -> set[tuple[int, str, str]]:
    """Every (status, method, path) by which the signature got more than a refusal, wherever it is put."""
    got = set()
    async with client(app) as ask:
        for path, method in product(paths, METHODS):
            signature = SIGNATURE.removeprefix("/as/")
            for url, headers in (
                (f"{SIGNATURE}{ROLLOUT}{path}", {}),
                (f"{SIGNATURE}{path}", {}),
                (f"{SIGNATURE}{ROLLOUT}/../../../../..{path}", {}),
                (path, {"Authorization": f"Bearer {signature}"}),
                (path, {"Authorization": f"Bearer {signature.rpartition('.')[2]}"}),
            ):
                body = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
                answer = await ask.request(method, url, headers=headers, **body)
                if answer.status_code not in (401, 404, 405):
                    got.add((answer.status_code, method, url))
    return got


def behind(app):
    """The LLM proxy's route and guard before an application, and the requests that got through to it."""
    through = []

    async def noted(scope, receive, send):
        through.append((scope["method"], scope["path"]))
        await app(scope, receive, send)

    return ProxyRequestGuard(RolloutRoute(noted)), through


async def test_of_the_llm_proxy_it_reaches_the_calls_of_its_rollout_alone():
    proxy, through = behind(Starlette())
    paths = [
        "/",
        "/chat/completions",
        "/completions",
        "/models",
        "/responses",
        "/embeddings",
        "/ended",
        weight_sync_pause.PATH,
    ]
    expected = {(400, "POST", f"{SIGNATURE}{ROLLOUT}/chat/completions")}  # it holds no messages
    expected |= {(200, method, f"{SIGNATURE}{ROLLOUT}/models") for method in ("GET", "HEAD")}
    assert await reached(proxy, paths) == expected
    assert through == []


async def test_of_a_rollout_it_reaches_calls_of_the_policy_and_neither_its_end_nor_its_conversation(monkeypatch):
    async def answer(self, request, servers):
        return 200, {"id": "1", "choices": [{"message": {"content": "a secret"}, "finish_reason": "stop"}]}, 0

    monkeypatch.setattr(RolloutRoute, "_ask", answer)
    proxy, through = behind(Starlette())
    call = {"messages": [{"role": "user", "content": "hi"}]}
    async with client(proxy) as ask:
        assert (await ask.post(f"{SIGNATURE}{ROLLOUT}/chat/completions", json=call)).status_code == 200
        for method, path in product(METHODS, ("/ended", "/v1/ended", "/ended/", "/%65nded")):
            for signed in (f"{SIGNATURE}{ROLLOUT}{path}", f"{SIGNATURE}{ROLLOUT.removesuffix('/v1')}{path}"):
                answer = await ask.request(method, signed)
                assert answer.status_code == 404 and b"secret" not in answer.content
        assert (await ask.post(f"{ROLLOUT}/ended")).status_code == 401
        assert (await ask.get(f"{SIGNATURE}{ROLLOUT}/chat/completions")).status_code == 405
        assert (await ask.post(f"{SIGNATURE}{ROLLOUT}/chat/completions", json=call)).status_code == 200
        ended = await ask.post(f"{ROLLOUT}/ended", headers=authorization(RUN_TOKEN))
        assert (ended.json()["calls"], json.dumps(ended.json()).count("a secret")) == (2, 2)
        assert (await ask.post(f"{SIGNATURE}{ROLLOUT}/chat/completions", json=call)).status_code == 410
    assert through == []


async def test_a_rollout_has_a_number_of_calls_open_and_takes_no_other_rollouts_place(monkeypatch):
    monkeypatch.setattr(rollout_route, "MAX_OPEN_CALLS", 2)
    answered, asked = asyncio.Event(), []

    async def answer(self, request, servers):
        asked.append(request)
        await answered.wait()
        return 200, {"id": "1", "choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]}, 0

    monkeypatch.setattr(RolloutRoute, "_ask", answer)
    proxy, _ = behind(Starlette())
    call = {"messages": [{"role": "user", "content": "hi"}]}
    other = signed_prefix(RolloutSampling("ro-2", "at-1", "policy-0", 0.7, 64), TOKEN) + ROLLOUT.replace("ro-1", "ro-2")
    async with client(proxy) as ask, asyncio.TaskGroup() as tasks:
        urls = [f"{SIGNATURE}{ROLLOUT}/chat/completions"] * 2 + [f"{other}/chat/completions"]
        waiting = [tasks.create_task(ask.post(url, json=call)) for url in urls]
        while len(asked) < 3:
            await asyncio.sleep(0.01)
        refused = await ask.post(urls[0], json=call)
        assert (refused.status_code, "this rollout has 2 calls open" in refused.text) == (429, True)
        answered.set()
        assert [(await each).status_code for each in waiting] == [200, 200, 200]
        assert (await ask.post(urls[0], json=call)).status_code == 200


async def test_of_the_runs_store_it_reaches_nothing(monkeypatch):
    monkeypatch.setenv(STORE_TOKEN, TOKEN)
    app = StoreServer(BoundedStore(), host="127.0.0.1", port=0).app
    paths = paths_of(app)
    assert "/v1/agl/rollouts" in paths
    got = await reached(app, paths)
    assert {path for _, _, path in got} <= {"/v1/agl/health"}


async def test_of_the_scoring_service_it_reaches_nothing():
    from reward_model.service.app import Service, make_app
    from reward_model.service.middleware import OPEN_PATHS, RequestMiddleware

    app = make_app(Service(None, commit="-", deadline_s=1))  # type: ignore[arg-type]
    paths = paths_of(app)
    assert "/score" in paths
    got = await reached(RequestMiddleware(app, token="another-token"), paths)
    assert {path for _, _, path in got} <= OPEN_PATHS


@pytest.mark.slow  # imports vLLM
async def test_of_a_model_server_it_reaches_nothing(monkeypatch):
    from sql_agent.settings.load import load_config
    from sql_agent.verl_side.config import worker_environment

    for name, value in worker_environment(load_config(None), cpu=True).items():
        monkeypatch.setenv(name, value)
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    middleware = "sql_agent.model_address.request_guard.ModelServerGuard"
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--middleware", middleware])
    app = build_app(args, ("generate",))
    assert "/v1/chat/completions" in paths_of(app)
    assert await reached(app, paths_of(app)) == set()
