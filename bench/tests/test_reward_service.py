"""The scoring benchmark measures what it says: its conversations, its clients, its options."""

import asyncio
import json

import pytest

from bench.parts import reward_load
from bench.parts.reward_workload import GROUP, conversations
from bench.reward_service import parse_args


def texts(count, **how):
    return [json.dumps(messages) for messages in conversations(count, **how)]


def test_the_same_seed_gives_the_same_conversations_and_no_two_are_equal():
    first = texts(512, shared=True)
    assert first == texts(512, shared=True)
    assert len(set(first)) == 512


def test_answers_to_one_task_begin_alike_and_share_the_rules_with_all():
    rows = list(conversations(2 * GROUP, shared=True))
    assert all(row[:2] == rows[0][:2] for row in rows[:GROUP])
    assert rows[GROUP][0] == rows[0][0] and rows[GROUP][1] != rows[0][1]


def test_where_nothing_is_shared_all_beginnings_differ():
    rows = texts(64, shared=False)
    beginnings = {row[: len('[{"role": "system", "content": "') + 40] for row in rows}
    assert len(beginnings) == 64


async def test_clients_count_every_answer_and_send_each_malformed_body_once(tmp_path):
    """Against a server that answers 200 where it reads `fine` and 422 elsewhere."""
    seen = []

    async def serve(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                seen.append(body)
                status = b"200 OK" if body == b"fine" or head.startswith(b"GET") else b"422 No"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    (tmp_path / "bodies").write_text("fine\n")
    port = server.sockets[0].getsockname()[1]
    job = reward_load.Job(port, 0.4, str(tmp_path / "bodies"), clients=2, malformed=28, probe=("/livez",))
    found = await reward_load.play_here(job)
    server.close()
    assert found["refused"]["statuses"] == {"422": 28}
    # 28 bodies of 14 kinds; probes have empty bodies too
    assert {body: seen.count(body) for body in reward_load.MALFORMED if body} == dict.fromkeys(
        filter(None, reward_load.MALFORMED), 2
    )
    assert found["asked"]["statuses"].keys() == found["probed"]["statuses"].keys() == {"200"}
    assert 0 <= found["asked"]["statuses"]["200"] - seen.count(b"fine") + 2 <= 2
    assert 0 < found["asked"]["p50_ms"] <= found["asked"]["p99_ms"] <= found["asked"]["max_ms"]


def test_an_unknown_part_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--only", "speed,colour"])
    assert "--only colour: known are speed, crowd, hostile" in capsys.readouterr().err
