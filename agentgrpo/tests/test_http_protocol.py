"""What becomes of connections that only begin a request, over real sockets."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack

import pytest
import uvicorn

from agentgrpo import http_protocol
from agentgrpo.http_protocol import GuardedHttpProtocol, trust

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"


PAUSED, GO = threading.Event(), threading.Event()


async def app(scope, receive, send):
    """Accepts the request with the header `known`, reads the body of the one with the header `late` after a while, and
    answers with the number of header lines: with `stream` as a stream that looks like a head, with `pause` its body
    once the test says so, with `fail` no body."""
    if (b"known", b"yes") in scope["headers"]:
        trust(scope)
    if (b"late", b"yes") in scope["headers"]:
        await asyncio.sleep(0.6)
        while (await receive())["more_body"]:
            pass
    text = b"%d" % len(scope["headers"])
    length = [(b"content-length", b"%d" % len(text))]
    if (b"stream", b"yes") in scope["headers"]:
        text, length = b"\r\ncontent-length: 1\r\n\r\n", []
    await send({"type": "http.response.start", "status": 200, "headers": length})
    if (b"pause", b"yes") in scope["headers"]:
        PAUSED.set()
        await asyncio.to_thread(GO.wait, 10)
    if (b"fail", b"yes") in scope["headers"]:
        raise RuntimeError("no body")
    await send({"type": "http.response.body", "body": text})


@pytest.fixture
def port(monkeypatch):
    for name, value in {"MAX_UNKNOWN": 3, "MAX_NEW_UNKNOWN": 6, "UNKNOWN_S": 0.3}.items():
        monkeypatch.setattr(http_protocol, name, value)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=GuardedHttpProtocol, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def connect(port):
    with ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))


def is_closed(line):
    line.settimeout(0.2)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    finally:
        line.settimeout(10)


def sent_until_closed(line, part, count):
    """How many parts the server took before it closed the connection, and what it said."""
    for number in range(count):
        try:
            line.sendall(part)
        except OSError:
            return number
    return count


def test_256_header_lines_pass_and_one_more_does_not(connect):
    line = connect()
    line.sendall(GET + b"a: b\r\n" * 255 + b"\r\n")
    assert line.recv(4096).endswith(b"\r\n\r\n256")
    line.sendall(GET + b"a: b\r\n" * 256 + b"\r\n")
    assert line.recv(4096).startswith(b"HTTP/1.1 400")
    assert is_closed(line)


LINES = b"a:b\r\n" * 13_000


@pytest.mark.parametrize(
    ("head", "more"),
    [
        pytest.param(GET, LINES, id="in_the_head"),
        pytest.param(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", LINES, id="behind_a_chunked_body"
        ),
        pytest.param(GET + b"known: yes\r\n\r\n" + GET, LINES, id="in_the_head_of_a_second_request"),
        pytest.param(GET + b"a: ", b"x" * len(LINES), id="in_one_line_that_never_ends"),
    ],
)
def test_60_megabytes_of_headers_are_not_read(connect, head, more):
    line = connect()
    line.sendall(head)
    # sockets of loopback take some megabytes before their reader takes any
    assert sent_until_closed(line, more, 920) < 460


def test_a_body_of_any_length_counts_for_no_head(connect):
    line, body = connect(), b"x" * 300_000
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    line.sendall(request * 3)
    said = b""
    while said.count(b"HTTP/1.1 200") < 3:
        said += line.recv(4096)
    assert not is_closed(line)


def test_of_too_many_unknown_connections_the_oldest_is_closed_and_no_known_one(connect):
    known = connect()
    known.sendall(GET + b"known: yes\r\n\r\n")
    assert known.recv(4096).startswith(b"HTTP/1.1 200")
    unknown = [connect() for _ in range(3)]
    unknown[0].sendall(GET + b"\r\n")  # answered, but nobody has accepted it
    unknown[0].recv(4096)
    time.sleep(0.4)
    late = connect()
    assert [is_closed(line) for line in (known, *unknown, late)] == [False, True, False, False, False]


def test_connections_that_come_at_once_wait_until_they_had_time_to_say_who_they_are(connect):
    at_once = [connect() for _ in range(6)]
    seventh = connect()
    assert [is_closed(line) for line in (*at_once, seventh)] == [False] * 6 + [True]
    at_once[0].sendall(GET + b"known: yes\r\n\r\n")
    assert at_once[0].recv(4096).startswith(b"HTTP/1.1 200")
    assert not is_closed(connect())


def post(*headers, length=5):
    return b"\r\n".join((b"POST / HTTP/1.1", b"host: x", b"content-length: %d" % length, *headers)) + b"\r\n\r\n"


def closed_in_the_end(line):
    while line.recv(4096):
        pass
    return True


@pytest.mark.parametrize("headers", [(), (b"known: yes",)], ids=["unknown", "known"])
def test_a_body_that_does_not_arrive_in_time_ends_its_connection(connect, monkeypatch, headers):
    monkeypatch.setattr(http_protocol, "BODY_S", 0.3)
    line = connect()
    line.settimeout(3)  # uvicorn closes an idle connection after 5 s, and the limit of headers is 10 s
    line.sendall(post(*headers) + b"1")
    assert closed_in_the_end(line)


def test_a_body_may_take_longer_while_the_application_does_not_read_it(connect, monkeypatch):
    monkeypatch.setattr(http_protocol, "BODY_S", 0.2)
    line = connect()
    line.sendall(post(b"late: yes", length=300_000) + b"x" * 300_000)
    assert line.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_accepted_request_counts_once_its_body_is_whole(connect):
    unfinished = [connect() for _ in range(6)]
    for line in unfinished:
        line.sendall(post(b"known: yes") + b"1")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")  # it was accepted before its body
    assert is_closed(connect())
    for line in unfinished[:5]:
        line.sendall(b"2345" + GET + b"known: yes\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
    assert [is_closed(line) for line in (*[connect() for _ in range(5)], connect())] == [False] * 5 + [True]


def test_a_known_connection_counts_again_while_its_next_request_is_unfinished(connect):
    lines = [connect() for _ in range(6)]
    for line in lines:
        line.sendall(GET + b"known: yes\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
    assert not is_closed(connect())
    for line in lines:
        line.sendall(post(b"known: yes") + b"1")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
    assert is_closed(connect())


def test_a_head_waits_for_its_body_and_a_streams_head_does_not(connect):
    PAUSED.clear(), GO.clear()
    whole, stream = connect(), connect()
    whole.sendall(GET + b"pause: yes\r\n\r\n")
    assert PAUSED.wait(10)
    whole.setblocking(False)
    with pytest.raises(BlockingIOError):
        whole.recv(4096)
    stream.sendall(GET + b"pause: yes\r\nstream: yes\r\n\r\n")
    assert stream.recv(4096).endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    GO.set()
    whole.settimeout(10)
    assert whole.recv(4096).endswith(b"\r\n\r\n2")
    assert stream.recv(4096) == b"17\r\n\r\ncontent-length: 1\r\n\r\n\r\n0\r\n\r\n"


def test_an_answer_without_a_body_is_sent(connect):
    line = connect()
    line.sendall(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert line.recv(4096).endswith(b"\r\ncontent-length: 1\r\n\r\n")
    line.sendall(GET + b"fail: yes\r\n\r\n")
    assert line.recv(4096).endswith(b"\r\ncontent-length: 1\r\n\r\n")
    assert is_closed(line)


def test_a_head_is_not_sent_to_a_client_that_has_left():
    class Closed(asyncio.Transport):
        is_closing, close = lambda self: True, lambda self: None  # uvloop's raises at a write

    transport = http_protocol._HeadWithBody(Closed())
    transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
    transport.close()  # the application failed before the body


def test_an_answer_behind_100_continue_is_whole(connect):
    line = connect()
    line.sendall(post(b"late: yes", b"expect: 100-continue"))
    assert line.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.sendall(b"12345")
    assert line.recv(4096).endswith(b"\r\n\r\n4")
