"""Who gets past the guard of a server of a run: the requests of a run, none of another user's or of a page."""

import asyncio
import json
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentgrpo.agl_without_litellm import agl
from agentgrpo.checks import UsageError
from agentgrpo.machine import free_port
from sql_agent import oracle
from sql_agent.lightning import store
from sql_agent.lightning.runner_processes import SupervisedRunners
from sql_agent.model_address.request_guard import (
    RUN_TOKEN,
    STORE_TOKEN,
    ModelServerGuard,
    RequestGuard,
    RunRequestGuard,
    authorization,
    give_token,
)
from sql_agent.model_address.request_limits import CONTEXT_TOKENS
from sql_agent.settings.load import load_config
from sql_agent.store_server import BoundedStore
from sql_agent.verl_side.config import Files, to_verl, worker_environment

TOKEN = "a-token-of-a-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def application():
    """Answers everybody, and lets every page read it, as vLLM and LiteLLM do."""

    async def echo(request):
        return JSONResponse({"size": len(await request.body())})

    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST", "PUT", "DELETE"])])
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    return app


@pytest.fixture(scope="module")
def served():
    """`guarded` asks for a token, `standing` for none, as a store that is kept outside."""
    with (
        oracle.serve(RequestGuard(application(), TOKEN)) as guarded,
        oracle.serve(RequestGuard(application(), None)) as standing,
    ):
        yield SimpleNamespace(guarded=guarded.removesuffix("/v1"), standing=standing.removesuffix("/v1"))


CLIENT = httpx.Client(trust_env=False, verify=False)


def ask(url, method="GET", **more):
    return CLIENT.request(method, url, **more)


def said(url, head: bytes) -> bytes:
    """The status line that the server answers these bytes with."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(head)
        return line.recv(65536).split(b"\r\n")[0]


# whose name is asked for ----------------------------------------------------------------------------------------------

OURS = ["localhost", "LocalHost", "127.0.0.1", "127.8.9.1", "[::1]", "[::ffff:127.0.0.1]"]
FOREIGN = [
    "evil.example", "evil.example.", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.1.evil.example",
    "a@127.0.0.1", "0.0.0.0", "10.0.0.1", "[::]", "[::ffff:10.0.0.1]", "2130706433", "0x7f.1", "", " ",
    "localhost,evil.example", "localhost/../evil", "[::1", "127.0.0.1:1:2", "127.0.0.1:x",
    "lоcalhost".encode().decode("latin-1"),
]  # fmt: skip


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("port", ["", ":80", ":9999"])
def test_a_name_of_loopback_is_answered(served, name, port):
    assert ask(served.standing, headers={"Host": name + port}).status_code == 200


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("port", ["", ":9999"])
def test_a_name_that_is_none_of_ours_is_refused_whatever_else_is_right(served, name, port):
    head = f"GET /v1/agl/health HTTP/1.1\r\nHost: {name}{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    for url in (served.guarded, served.standing):
        assert said(url, head.encode("latin-1")).startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.example"], ["evil.example", "localhost"]])
def test_a_request_names_exactly_one_host(served, hosts):
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    assert said(served.standing, f"GET / HTTP/1.0\r\n{lines}\r\n".encode()).split()[1] in (b"421", b"400")


def test_the_address_that_a_connection_came_to_and_the_name_that_was_bound_are_ours():
    def status(name, server, names=()):
        sent = []

        async def send(message):
            sent.append(message)

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", name.encode())]}
        asyncio.run(RequestGuard(app, None, names)(scope | {"server": (server, 80)}, None, send))
        return sent[0]["status"]

    assert [status("10.0.0.5:1", server) for server in ("10.0.0.5", "::ffff:10.0.0.5", "10.0.0.6")] == [200, 200, 421]
    assert [status("Box:1", "10.0.0.5", names) for names in (["box"], [])] == [200, 421]


# who asks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    ["", "Bearer", f"bearer  {TOKEN}", f"Bearer {TOKEN}2", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer ä"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_without_the_token_nothing_is_answered(served, method, sent):
    for path in ("/", "/v1/models", "/version", "/v1/agl/rollouts", "/v1/agl/health/", "/V1/agl/health"):
        answer = ask(served.guarded + path, method, headers={"Authorization": sent.encode()})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_only_a_look_whether_it_is_up_needs_none(served):
    path = served.guarded + "/v1/agl/health"
    assert [ask(path, method).status_code for method in ("GET", "POST")] == [200, 401]


def test_with_the_token_every_request_passes_whole(served):
    for url, headers in ((served.guarded, BEARER), (served.standing, {})):
        answer = ask(url + "/v1/spans", "POST", headers=headers, json={"a": 1})
        assert (answer.status_code, answer.json()) == (200, {"size": 7})
        assert ask(url, "POST", headers=headers).status_code == 200  # nothing to read in it


# which page asks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("same-site", "cors", "empty", 403),
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),
    ],
)
def test_what_a_page_of_another_origin_embeds_is_refused_though_browsers_name_no_origin(
    served, site, mode, dest, status
):
    fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert ask(f"{served.standing}/v1/agl/rollouts", headers=fetch).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1", "null", "http://localhost:1", "", "*"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_of_another_origin_is_refused_and_told_nothing(served, origin, method):
    asks = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for url in (served.guarded, served.standing):
        answer = ask(url, method, headers=BEARER | asks)
        assert answer.status_code == 403
        assert [name for name in answer.headers if name.startswith("access-control")] == []


def test_the_stores_own_dashboard_may_ask_it(served):
    """The same origin: browsers send it with every POST."""
    answer = ask(served.standing, "POST", headers={"Origin": served.standing}, json={})
    assert answer.status_code == 200
    assert [name for name in answer.headers if name.startswith("access-control")] == []


SIMPLE = [
    "text/plain",
    "text/plain;charset=UTF-8",
    "TEXT/PLAIN",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
]
ODD = [None, "", "application/jsonp", "text/plain, application/json", "text/plain;application/json", "*/*"]


@pytest.mark.parametrize("media", [*SIMPLE, *ODD])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_body_that_a_page_may_send_without_asking_is_refused(served, media, chunked):
    headers = BEARER | ({} if media is None else {"Content-Type": media})
    body = json.dumps({"a": 1}).encode()
    for url in (served.guarded, served.standing):
        assert ask(url, "POST", headers=headers, content=iter([body]) if chunked else body).status_code == 415


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8", "application/x-protobuf"])
def test_what_our_clients_and_open_telemetry_send_passes(served, media):
    assert ask(served.guarded, "POST", headers=BEARER | {"Content-Type": media}, content=b"{}").status_code == 200


# the token of a run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    for name in (RUN_TOKEN, STORE_TOKEN):
        monkeypatch.setenv(name, "")  # so that what a test puts there is undone as well
        monkeypatch.delenv(name)
    return monkeypatch


def test_every_run_has_a_token_of_its_own(environment):
    tokens = set()
    for _ in range(3):
        give_token(shared=False, own_store=False)
        tokens.add(authorization(RUN_TOKEN)["Authorization"])
    assert len(tokens) == 3 and min(map(len, tokens)) >= 50
    assert authorization(STORE_TOKEN) == {}  # nobody shows a store that others keep the token of this run
    give_token(shared=False, own_store=True)
    assert authorization(STORE_TOKEN) == authorization(RUN_TOKEN)


@pytest.mark.parametrize("token", [None, "", "short", "two\nlines of a token", "a token with blanks", "ä" * 20])
def test_commands_that_share_a_run_have_to_share_its_token(environment, token):
    if token is not None:
        environment.setenv(RUN_TOKEN, token)
    with pytest.raises(UsageError, match=r"expected AGENTGRPO_TOKEN in the environment of each.*openssl rand -hex 32"):
        give_token(shared=True, own_store=False)
    environment.setenv(RUN_TOKEN, "0123456789abcdef")
    give_token(shared=True, own_store=False)
    assert authorization(RUN_TOKEN) == {"Authorization": "Bearer 0123456789abcdef"}


def test_a_server_of_a_run_does_not_start_without_a_token(environment):
    with pytest.raises(UsageError, match="AGENTGRPO_TOKEN is not in the environment"):
        RunRequestGuard(application())


@pytest.fixture
def model_server(environment):
    environment.setenv(RUN_TOKEN, TOKEN)
    environment.setenv(CONTEXT_TOKENS, "4096")
    with oracle.serve(ModelServerGuard(application())) as url:
        yield url


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(json.dumps({"messages": [{}] * 66_000}).encode(), "request_too_large", id="empty_messages"),
        pytest.param(json.dumps({"messages": [USER] * 200_000}).encode(), "request_too_large", id="short_messages"),
        pytest.param(b'{"messages":' + b"[" * 9000, "request_too_large", id="nesting"),
        pytest.param(b" " * 20_000_000, "request_too_large", id="20_megabytes"),
        pytest.param(b'{"messages":[{}]}', None, id="no_role"),
        pytest.param(b"{", None, id="no_json"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_model_server_refuses_what_it_should_not_read(model_server, body, code, chunked):
    content = iter([body[i : i + 65536] for i in range(0, len(body), 65536)]) if chunked else body
    headers = BEARER | {"Content-Type": "application/json"}
    answer = ask(f"{model_server}/chat/completions", "POST", headers=headers, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_a_model_server_gets_every_other_request_whole(model_server):
    body = json.dumps({"messages": [{**USER, "content": "x" * 1_000_000}]}).encode()
    headers = BEARER | {"Content-Type": "application/json"}
    assert ask(f"{model_server}/chat/completions", "POST", headers=headers, content=body).json() == {"size": len(body)}
    assert ask(f"{model_server}/tokenize", "POST", headers=headers, content=b"[1]").json() == {"size": 3}
    assert ask(f"{model_server}/sleep", "POST", headers=BEARER).json() == {"size": 0}
    assert ask(f"{model_server}/models", headers=BEARER).json() == {"size": 0}


@pytest.mark.slow
async def test_every_route_of_vllms_own_application_is_behind_the_door(monkeypatch):
    """vLLM's --api-key leaves out those that do not begin with /v1, `/invocations` and `/tokenize` among them."""
    for name, value in worker_environment(load_config(None), cpu=True).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(RUN_TOKEN, TOKEN)
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    files = Files(Path("model"), Path("train.parquet"), Path("val.parquet"))
    vllm = to_verl(load_config(None), files, cpu=True)["actor_rollout_ref"]["rollout"]["engine_kwargs"]["vllm"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--middleware", vllm["middleware"]])
    app = build_app(args, ("generate",))
    routes = {(method, route.path) for route in app.routes for method in getattr(route, "methods", None) or ("GET",)}
    assert {("POST", "/v1/chat/completions"), ("POST", "/invocations"), ("POST", "/tokenize")} <= routes
    page = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert {((await client.request(method, path)).status_code, method, path) for method, path in routes} == {
            (401, method, path) for method, path in routes
        }
        preflight = await client.options("/v1/chat/completions", headers=page)
        rebound = await client.get("/version", headers=BEARER | {"Host": "evil.example"})
        known = await client.get("/version", headers=BEARER)
    assert [answer.status_code for answer in (preflight, rebound, known)] == [403, 421, 200]
    assert [name for name in preflight.headers if name.startswith("access-control")] == []


# the store ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [store.StoreClient, store.RetryingStore])
def test_the_store_that_a_run_keeps_answers_the_run_and_nobody_else(environment, client, tmp_path):
    give_token(shared=False, own_store=True)
    port, seen = free_port(), []

    async def algorithm(served, _stop):
        ours, theirs = client(served.endpoint), agl.LightningStoreClient(served.endpoint, retry_delays=())
        rollout = await ours.start_rollout(input={"task": 1}, worker_id="w")
        assert (await ours.query_rollouts())[0].rollout_id == rollout.rollout_id
        for work in (theirs.query_rollouts(), theirs.update_rollout(rollout.rollout_id, status="cancelled")):
            with pytest.raises(Exception, match="401"):
                await work
        rebound = {"Host": f"evil.example:{port}", **authorization(STORE_TOKEN)}
        for method, path in product(
            ["GET", "POST"], ["/v1/agl/rollouts", f"/v1/agl/rollouts/{rollout.rollout_id}", "/"]
        ):
            answer = await asyncio.to_thread(ask, served.endpoint + path, method, headers=rebound)
            seen.append(answer.status_code)
        assert (await ours.get_rollout_by_id(rollout.rollout_id)).status == "preparing"
        many = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300
        assert (await asyncio.to_thread(said, served.endpoint, many)).startswith(b"HTTP/1.1 400")
        for each in (ours, theirs):
            await each.close()

    strategy = SupervisedRunners(
        logs=tmp_path, server_host="127.0.0.1", server_port=port, role="algorithm", managed_store=True
    )
    asyncio.run(strategy._execute_algorithm(algorithm, BoundedStore(), SimpleNamespace(set=lambda: None)))
    assert seen == [421] * 6


def test_a_standing_store_for_other_machines_needs_a_token(environment):
    command = [sys.executable, "-m", "sql_agent.store_server", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        "--host 0.0.0.0 can be reached from other machines, which needs a token: set AGENTGRPO_STORE_TOKEN"
        in done.stderr
    )
