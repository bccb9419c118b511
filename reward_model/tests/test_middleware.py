"""What passes before the application, over real sockets: token, size, time, media type."""

import asyncio
import json
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from agentgrpo import http_protocol
from reward_model.service import middleware
from reward_model.service.middleware import CountedHttpProtocol, RequestMiddleware

TOKEN = "a-token"
POST = "POST /score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer a-token\r\n"


async def echo(scope, receive, send):
    """Answers with the size of the body; fails where it says so, takes its time where it says so."""
    body = (await receive())["body"] if scope["method"] == "POST" else b""
    if b"fail" in body:
        raise KeyError(body.decode())
    if b"slow" in body:
        ENTERED.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            LEFT.set()
            raise
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": b"%7d" % len(body)})


ENTERED, LEFT = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def port():
    patched = pytest.MonkeyPatch()
    patched.setattr(http_protocol, "HEADERS_S", 0.5)
    patched.setattr(middleware, "BODY_S", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(
            RequestMiddleware(echo, token=TOKEN),
            port=port,
            http=CountedHttpProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(10)
    patched.undo()


@pytest.fixture
def http(port):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client:
        yield client


def raw(port, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What the server says to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        for part in parts:
            try:
                line.sendall(part)
            except OSError:
                break
            time.sleep(pause_s)
        said = b""
        while True:
            try:
                more = line.recv(65536)
            except ConnectionResetError:
                return said
            if not more:
                return said
            said += more


def test_a_request_in_order_passes_whole(http):
    assert http.post("/score", content=b"x" * 70_000).text == "  70000"


@pytest.mark.parametrize("sent", [None, "", "Bearer", "Bearer b-token", "Bearer a-token2", "Basic a-token", "Bearer ä"])
def test_without_the_token_nothing_is_answered(port, sent):
    headers = {} if sent is None else {"Authorization": sent.encode()}
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, trust_env=False)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["detail"][0]["field"] == "authorization"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_schemes_name_may_be_in_any_case(port, scheme):
    headers = {"Authorization": f"{scheme} {TOKEN}"}
    assert httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, trust_env=False).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_probes_need_no_token(port, path):
    assert httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).status_code == 200


def test_a_mebibyte_passes_and_one_byte_more_does_not(http):
    assert http.post("/score", content=b"x" * 2**20).status_code == 200
    answer = http.post("/score", content=b"x" * (2**20 + 1))
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (413, "body")


def test_chunks_without_a_length_are_counted_too(http):
    assert http.post("/score", content=(b"x" * 2**16 for _ in range(32))).status_code == 413


def test_a_length_that_lies_ends_as_a_bad_request_or_a_slow_body(port):
    assert raw(port, POST.encode() + b"content-length: -5\r\n\r\n{}").startswith(b"HTTP/1.1 400")
    assert raw(port, POST.encode() + b"content-length: 10\r\n\r\n{}").startswith(b"HTTP/1.1 408")


def test_another_media_type_is_refused(http):
    answer = http.post("/score", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (415, "content-type")


def test_a_body_that_trickles_is_given_up(port):
    began = time.monotonic()
    said = raw(port, POST.encode() + b"content-length: 100\r\n\r\n", *[b"x"] * 10, pause_s=0.1)
    assert said.startswith(b"HTTP/1.1 408") and time.monotonic() - began < 3


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b""], id="nothing_at_all"),
        pytest.param([b"POST /score HTTP/1.1\r\n", *[b"a: b\r\n"] * 12], id="headers_that_trickle"),
        pytest.param([b"\r\n"] * 12, id="empty_lines"),
        pytest.param([b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", *[b"GET"] + [b" "] * 12], id="a_second_request"),
    ],
)
def test_headers_that_do_not_come_close_the_connection(port, parts):
    began = time.monotonic()
    raw(port, *parts, pause_s=0.1)
    assert time.monotonic() - began < 3


OFFERS = [
    pytest.param("Upgrade", "h2c", id="h2c"),
    pytest.param("Upgrade, HTTP2-Settings", "h2c", id="as_curl_says_it"),
    pytest.param("keep-alive, uPGRADE", "h2c", id="among_others"),
    pytest.param("Upgrade", "websocket", id="websocket"),
    pytest.param("Upgrade", "TLS/1.2, HTTP/2.0", id="several"),
]


@pytest.mark.parametrize(("connection", "protocol"), OFFERS)
@pytest.mark.parametrize("body", [b"", b"xyz", b"x" * 70_000], ids=len)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("cut", [None, 30, -2], ids=["at_once", "cut_in_the_head", "cut_in_the_body"])
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(port, connection, protocol, body, chunked, cut):
    """RFC 9110, 7.8: a server may ignore the offer; what it must not do is lose the body."""
    offer = f"connection: {connection}\r\nupgrade: {protocol}\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    chunks = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    sent = b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    whole = POST.encode() + offer.encode() + (sent if chunked else b"content-length: %d\r\n\r\n%s" % (len(body), body))
    after = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    parts = (whole + after,) if cut is None else (whole[:cut], whole[cut:] + after)
    said = raw(port, *parts, pause_s=0.02)
    assert (said.count(b"HTTP/1.1 200"), said.count(b"%7d" % len(body) if body else b"      0")) == (2, 1 + (not body))


def test_a_tunnel_is_not_opened(port):
    assert raw(port, b"CONNECT a.example:80 HTTP/1.1\r\nhost: a.example:80\r\n\r\n").startswith(b"HTTP/1.1 4")


def test_headers_without_end_close_the_connection(port):
    assert b"200" not in raw(port, b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)


def test_an_unforeseen_error_is_a_500_that_shows_no_text(http, caplog):
    answer = http.post("/score", content=b"fail: canary")
    assert answer.status_code == 500
    assert "KeyError at test_middleware.py" in caplog.text
    assert "canary" not in answer.text + caplog.text


def test_a_client_that_leaves_is_not_worked_for(port):
    body = b"slow"
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(POST.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert ENTERED.wait(5)
    assert LEFT.wait(5)


def test_refusals_are_counted_by_reason(http):
    from reward_model.service import metrics

    def count():
        return metrics.REJECTED.labels("media_type")._value.get()

    before = count()
    http.post("/score", content=b"{}", headers={"Content-Type": "text/plain"})
    assert count() == before + 1
    assert json.loads(http.post("/score", content=b"{}").text) == 2


async def test_a_request_that_the_end_of_the_service_cuts_off_is_a_503():
    """uvicorn cancels what is left at its end, such as a slow body."""
    entered, said = asyncio.Event(), []

    async def nothing():
        entered.set()
        await asyncio.Event().wait()

    async def send(message):
        said.append(message)

    scope = {"type": "http", "path": "/score", "method": "POST", "headers": []}
    task = asyncio.create_task(RequestMiddleware(echo, token=None)(scope, nothing, send))
    await entered.wait()
    task.cancel()
    await task
    assert said[0]["status"] == 503 and (b"retry-after", b"1") in said[0]["headers"]
    assert "ending" in json.loads(said[1]["body"])["detail"][0]["message"]
