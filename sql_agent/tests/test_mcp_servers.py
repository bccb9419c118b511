"""Agents whose tools are those of MCP servers: real servers, over stdio and HTTP; only the model is scripted."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agents import Agent, handoff
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

from agentgrpo.processes import RUN_ID
from agentgrpo.user_files import UserFileError
from sql_agent import oracle
from sql_agent.evaluate import main
from sql_agent.tests.conftest import forget_user_files
from sql_agent.user_agents import loop, mcp_servers
from sql_agent.user_agents.loop import ExitError, Held
from sql_agent.user_agents.objects import BLOCKED, ObjectAgent
from sql_agent.user_agents.tasks import load_agent

SERVER = Path("examples/mcp/orders_server.py").resolve()
REWARD = "examples/mcp/reward.py:reward"
ROWS = [{"prompt": "How many plums?", "answer": "12"}, {"prompt": "Who bought limes?", "answer": "Eve"}]
PLUMS = "SELECT sum(amount) FROM orders WHERE fruit = 'plum'"


def ask_once(messages):
    """Ask the server, then say what it said."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": messages[-1]["content"]}
    return oracle.calls(oracle.call("execute_sql", {"query": PLUMS}, "call_0"))


def evaluated(tmp_path, agent, script=ask_once, rows=ROWS, *options):
    forget_user_files()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with oracle.serve(oracle.app(script, model="served")) as url:
        main([
            "--base-url", url, "--model", "served", "--tasks", str(tmp_path / "rows.jsonl"), "--agent", str(agent),
            "--reward", REWARD, "--output", str(tmp_path / "out.jsonl"), *options,
        ])  # fmt: skip
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]


def servers_file(tmp_path, **servers):
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    return tmp_path / "servers.json"


def processes(of):
    return subprocess.run(["pgrep", "-f", str(of)], capture_output=True, text=True).stdout.split()


def copy_of_server(tmp_path, before="", inside=""):
    text = SERVER.read_text().replace("    with closing(", f"{inside}    with closing(")
    (tmp_path / "orders_server.py").write_text(before + text)
    return tmp_path / "orders_server.py"


def test_a_file_of_servers_is_an_agent_with_their_tools(tmp_path):
    server = copy_of_server(tmp_path, before=f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n")
    file = servers_file(tmp_path, orders={"command": sys.executable, "args": [str(server)]})
    rollouts = evaluated(tmp_path, file, rows=ROWS * 4)
    assert {(row["output"], row["stop_reason"]) for row in rollouts} == {("[(12,)]", "answered")}
    assert (tmp_path / "starts").read_text() == "xx"  # one tries it out, and one is for all eight rollouts
    assert processes(server) == []


def agent_file(tmp_path, text):
    (tmp_path / "mine.py").write_text(
        f"import sys\nfrom agents import Agent\nfrom agents.mcp import MCPServerStdio\n"
        f"PARAMS = {{'command': sys.executable, 'args': [{str(tmp_path / 'orders_server.py')!r}]}}\n{text}"
    )
    return f"{tmp_path / 'mine.py'}:agent"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("agent = Agent(name='a', mcp_servers=[MCPServerStdio(PARAMS)])", id="of_an_agent"),
        pytest.param(
            "agent = Agent(name='a', tools=[Agent(name='b', mcp_servers=[MCPServerStdio(PARAMS)]).as_tool("
            "'unused', 'unused')], mcp_servers=[MCPServerStdio(PARAMS)])",
            id="of_its_tool",
        ),
        pytest.param(
            "def agent(row):\n    return Agent(name='a', mcp_servers=[MCPServerStdio(PARAMS)])", id="made_for_each_row"
        ),
        pytest.param(
            "SERVER = MCPServerStdio(PARAMS)\ndef agent(row):\n    return Agent(name='a', mcp_servers=[SERVER])",
            id="shared_by_rows",
        ),
        pytest.param(
            "from agents import Runner\nasync def agent(row):\n    async with MCPServerStdio(PARAMS) as server:\n"
            "        return await Runner.run(Agent(name='a', mcp_servers=[server]), row['prompt'])",
            id="connected_by_the_row_itself",
        ),
        pytest.param(
            "from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def agent():\n"
            "    async with MCPServerStdio(PARAMS) as server:\n        yield Agent(name='a', mcp_servers=[server])",
            id="held_by_the_runner",
        ),
    ],
)
def test_servers_that_nobody_connected_are_connected_and_end_with_the_run(tmp_path, text):
    server = copy_of_server(tmp_path)
    rollouts = evaluated(tmp_path, agent_file(tmp_path, text))
    assert [(row["output"], row["stop_reason"]) for row in rollouts] == [("[(12,)]", "answered")] * 2
    assert processes(server) == []


def test_a_server_over_http(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = SERVER.read_text().replace("server.run()", f"server.run('streamable-http', host='127.0.0.1', port={port})")
    (tmp_path / "http_server.py").write_text(text)
    running = subprocess.Popen([sys.executable, str(tmp_path / "http_server.py")], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.1)
        file = servers_file(tmp_path, orders={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
        assert [row["output"] for row in evaluated(tmp_path, file)] == ["[(12,)]"] * 2
    finally:
        running.terminate()
        running.wait(10)


def test_a_server_that_dies_loses_the_rollouts_that_used_it_and_is_started_again(tmp_path):
    dies_once = f"    import os, pathlib\n    mark = pathlib.Path({str(tmp_path / 'died')!r})\n"
    dies_once += "    if not mark.exists():\n        mark.touch()\n        os._exit(1)\n"
    server = copy_of_server(tmp_path, inside=dies_once)
    file = servers_file(tmp_path, orders={"command": sys.executable, "args": [str(server)]})
    first, second = evaluated(tmp_path, file, ask_once, ROWS, "--concurrency", "1")
    assert (first["stop_reason"], first["score"]["value"]) == ("mcp_unavailable", None)
    assert first["error"] == "the MCP server orders died during the rollout"
    assert (second["output"], second["stop_reason"]) == ("[(12,)]", "answered")


def test_what_goes_wrong_with_a_call_is_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_servers, "ANSWER_S", 2.0)
    server = copy_of_server(tmp_path, inside="    import time; time.sleep(4 * ('wait' in query))\n")
    file = servers_file(tmp_path, orders={"command": sys.executable, "args": [str(server)]})

    def script(messages):
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        return oracle.calls(oracle.call(*json.loads(messages[0]["content"]), "call_0"))

    asked = {
        "DROP TABLE orders": "not authorized",
        "SELECT 1 AS wait": "Error: Request 'tools/call' timed out",
    }
    rows = [{"prompt": json.dumps(["execute_sql", {"query": query}]), "answer": ""} for query in asked]
    outputs = [row["output"] for row in evaluated(tmp_path, file, script, rows)]
    assert [words in output for words, output in zip(asked.values(), outputs, strict=True)] == [True, True], outputs


def test_a_tool_that_no_server_has_ends_the_rollout(tmp_path):
    file = servers_file(tmp_path, orders={"command": sys.executable, "args": [str(SERVER)]})
    (row,) = evaluated(tmp_path, file, lambda _: oracle.calls(oracle.call("drop", {}, "call_0")), ROWS[:1])
    assert (row["stop_reason"], row["score"]["value"]) == ("malformed", 0.0)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param("{", "Invalid JSON", id="no_json"),
        pytest.param("{}", 'mcpServers: Field required; expected {"mcpServers"', id="no_servers"),
        pytest.param('{"mcpServers": {}}', "at least 1", id="empty"),
        pytest.param('{"mcpServers": {"a": {"args": []}}}', "mcpServers.a.command: Field required", id="no_command"),
        pytest.param('{"mcpServers": {"a": {"command": "x", "autoApprove": []}}}', "autoApprove", id="another_key"),
        pytest.param('{"mcpServers": {"a": {"command": "${HOME}/x"}}}', "not filled in", id="variables"),
        pytest.param('{"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}', "mcpServers.a", id="sse"),
    ],
)
def test_a_file_that_names_no_servers_is_refused(tmp_path, written, message):
    (tmp_path / "servers.json").write_text(written)
    with pytest.raises(UserFileError) as refused:
        load_agent(str(tmp_path / "servers.json"))
    assert message in str(refused.value)
    with pytest.raises(UserFileError, match="cannot be read"):
        load_agent(str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        pytest.param(["no-such-program"], "the MCP server orders did not start: .*no-such-program", id="missing"),
        pytest.param([sys.executable, "-c", "1/0"], "orders did not start: Connection closed", id="ends_at_once"),
    ],
)
def test_a_server_that_does_not_start_is_named_before_a_run(tmp_path, program, message):
    file = servers_file(tmp_path, orders={"command": program[0], "args": program[1:]})
    with pytest.raises(UserFileError, match=message):
        load_agent(str(file)).try_out()
    with pytest.raises(SystemExit, match=message):
        evaluated(tmp_path, file)


def test_what_a_runner_holds_is_entered_once_and_left_at_its_end(tmp_path):
    log = tmp_path / "log"
    text = f"""
from contextlib import asynccontextmanager
def log(word): open({str(log)!r}, "a").write(word + " ")
@asynccontextmanager
async def agent():
    log("enters")
    yield lambda row: log("plays") or "12"
    log("leaves")
"""
    evaluated(tmp_path, agent_file(tmp_path, text), rows=ROWS * 2)
    assert log.read_text() == "enters leaves " + "enters plays plays plays plays leaves "  # the first tries it out


@pytest.mark.parametrize(
    ("fault", "message"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("sys.exit('no key')", "SystemExit: no key")],
)
def test_what_a_runner_cannot_enter_is_named_before_a_run(tmp_path, fault, message):
    text = f"from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def agent():\n    yield {fault}\n"
    agent = agent_file(tmp_path, text)
    with pytest.raises(UserFileError, match=rf"mine.py:6: it raised {message}"):
        load_agent(agent).try_out()
    with pytest.raises(SystemExit, match=message):
        evaluated(tmp_path, agent)


def test_a_server_that_hangs_is_started_again(tmp_path):
    """Its loop sleeps in a call; two time-outs later it counts as dead."""
    server = copy_of_server(tmp_path, inside="    import time; time.sleep(60 * ('wait' in query))\n")
    server.write_text(server.read_text().replace("def execute_sql", "async def execute_sql"))
    text = "agent = Agent(name='a', mcp_servers=[MCPServerStdio(PARAMS, client_session_timeout_seconds=1)])"

    def script(messages):
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        return oracle.calls(oracle.call("execute_sql", {"query": messages[0]["content"]}, "call_0"))

    rows = [{"prompt": "SELECT 1 AS wait", "answer": ""}, {"prompt": PLUMS, "answer": "12"}]
    hung, other = evaluated(tmp_path, agent_file(tmp_path, text), script, rows, "--concurrency", "1")
    assert hung["stop_reason"] == "mcp_unavailable"
    assert (other["output"], other["stop_reason"]) == ("[(12,)]", "answered")


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        pytest.param("cache_tools_list=True", 2, id="cached_tools"),
        pytest.param("tool_filter=lambda context, tool: True", 2, id="a_filter_that_asks_for_a_run"),
    ],
)
def test_whether_a_server_lives_is_asked_of_itself(tmp_path, options, starts):
    dies_once = f"    import os, pathlib\n    mark = pathlib.Path({str(tmp_path / 'died')!r})\n"
    dies_once += "    if not mark.exists():\n        mark.touch()\n        os._exit(1)\n"
    copy_of_server(tmp_path, f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n", dies_once)
    text = f"agent = Agent(name='a', mcp_servers=[MCPServerStdio(PARAMS, {options})])"
    first, *others = evaluated(tmp_path, agent_file(tmp_path, text), ask_once, ROWS * 2, "--concurrency", "1")
    assert first["stop_reason"] == "mcp_unavailable"
    assert [row["output"] for row in others] == ["[(12,)]"] * 3
    assert len((tmp_path / "starts").read_text()) == starts + 1  # one more tries it out before


@pytest.mark.parametrize("concurrency", ["1", "2"])
def test_a_server_that_many_rows_name_is_started_twice_at_most(tmp_path, concurrency):
    server = copy_of_server(tmp_path, before=f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n")
    text = "SERVER = MCPServerStdio(PARAMS)\ndef agent(row):\n    return Agent(name='a', mcp_servers=[SERVER])"
    rollouts = evaluated(tmp_path, agent_file(tmp_path, text), ask_once, ROWS * 4, "--concurrency", concurrency)
    assert [(row["output"], row["stop_reason"]) for row in rollouts] == [("[(12,)]", "answered")] * 8
    assert len((tmp_path / "starts").read_text()) <= 2
    assert processes(server) == []


def test_a_tool_that_waits_for_a_person_loses_its_rollout(tmp_path):
    copy_of_server(tmp_path)
    text = "agent = Agent(name='a', mcp_servers=[MCPServerStdio(PARAMS, require_approval='always')])"
    (row,) = evaluated(tmp_path, agent_file(tmp_path, text), rows=ROWS[:1])
    assert (row["stop_reason"], row["score"]["reason"]) == ("environment_error", "agent_error")
    assert "waits for a person's approval" in row["error"]


def test_two_servers_of_a_file_may_have_a_tool_of_one_name(tmp_path):
    one = {"command": sys.executable, "args": [str(SERVER)]}
    offered = []

    def script(messages):
        return {"role": "assistant", "content": "12"}

    forget_user_files()
    file = servers_file(tmp_path, first=one, second=one)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with oracle.serve(oracle.app(script, model="served", on_request=offered.append)) as url:
        main([
            "--base-url", url, "--model", "served", "--tasks", str(tmp_path / "rows.jsonl"), "--agent", str(file),
            "--reward", REWARD, "--output", str(tmp_path / "out.jsonl"),
        ])  # fmt: skip
    names = [tool["function"]["name"] for tool in offered[0]["tools"]]
    assert len(set(names)) == 2 and all("execute_sql" in name for name in names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("async def agent(row):\n    yield 1", "it yields", id="a_bare_generator"),
        pytest.param(
            "import contextlib\n@contextlib.contextmanager\ndef agent():\n    yield 1", "it yields", id="not_async"
        ),
        pytest.param(
            "import contextlib\n@contextlib.asynccontextmanager\nasync def agent():\n    yield 1",
            "it yields a int; expected an agents.Agent",
            id="yields_a_number",
        ),
        pytest.param(
            "class Own(MCPServerStdio): pass\nagent = Agent(name='a', mcp_servers=[Own(PARAMS), Own(PARAMS)])",
            "Duplicate tool names",
            id="two_tools_of_one_name",
        ),
    ],
)
def test_an_agent_that_cannot_be_held_is_refused(tmp_path, text, message):
    copy_of_server(tmp_path)
    with pytest.raises(UserFileError, match=message):
        load_agent(agent_file(tmp_path, text)).try_out()


def test_servers_are_found_behind_handoffs_and_tools():
    first, second, third, fourth = (MCPServerStdio({"command": "none"}, name=name) for name in "abcd")
    inner = Agent(name="inner", mcp_servers=[third, first])
    other = Agent(name="other", mcp_servers=[second])
    last = Agent(name="last", mcp_servers=[fourth])
    agent = Agent(
        name="agent",
        mcp_servers=[first],
        handoffs=[other, handoff(last)],
        tools=[inner.as_tool("inner", "Asks the inner one.")],
    )
    other.handoffs.append(agent)  # a circle
    last.handoffs.append(
        Agent(name="last", mcp_servers=[fourth], handoffs=[last])
    )  # of two agents whose fields are alike
    assert {server.name for server in mcp_servers.servers_of(agent)} == {"a", "b", "c", "d"}
    assert len(mcp_servers.servers_of(agent)) == 4


async def test_a_server_that_another_rollout_started_again_has_lost_what_this_one_did(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_ID, "0123456789ab")
    server = copy_of_server(tmp_path)
    agent = Agent(name="a", mcp_servers=[MCPServerStdio({"command": sys.executable, "args": [str(server)]}, name="s")])
    servers = mcp_servers.McpServers()
    with pytest.raises(mcp_servers.McpServerError, match="the MCP server s died during the rollout"):
        async with servers.connected(agent, keep=True):
            (pid,) = processes(server)
            assert f"{RUN_ID}=0123456789ab".encode() in Path(f"/proc/{pid}/environ").read_bytes()  # the run can end it
            os.kill(int(pid), signal.SIGKILL)
            async with servers.connected(agent, keep=True):
                assert processes(server) != [pid]
    async with servers.connected(agent, keep=True):
        pass
    await servers.close()
    assert processes(server) == []


async def test_sys_exit_in_what_a_runner_enters_is_an_error_of_the_rollout():
    @asynccontextmanager
    async def leaves():
        sys.exit("no key")
        yield

    with pytest.raises(ExitError, match="SystemExit: no key"):
        await Held(leaves).value()


def test_no_message_shows_what_a_url_holds_of_a_secret():
    server = MCPServerStreamableHttp({"url": "http://127.0.0.1:9/mcp?key=SECRET"})
    with pytest.raises(UserFileError, match=r"the MCP server .*127\.0\.0\.1:9/mcp.* did not start") as refused:
        ObjectAgent(Agent(name="a", mcp_servers=[server])).try_out()
    assert "SECRET" not in str(refused.value)


def test_code_that_blocks_the_event_loop_loses_later_rollouts_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "STUCK_S", 0.5)
    copy_of_server(tmp_path)
    text = (
        "import time\nfrom agents import function_tool\n@function_tool\nasync def nap() -> str:\n"
        "    'Sleep.'\n    time.sleep(5)\n    return ''\n"
        "agent = Agent(name='a', tools=[nap], mcp_servers=[MCPServerStdio(PARAMS)])"
    )

    def script(messages):
        if messages[0]["content"] == "nap":
            return oracle.calls(oracle.call("nap", {}, "call_0"))
        return ask_once(messages)

    rows = [{"prompt": "nap", "answer": ""}, {"prompt": "plums", "answer": "12"}, {"prompt": "plums", "answer": "12"}]
    options = ["--concurrency", "1", "--statement-timeout-s", "1", "--turn-timeout-s", "1", "--rollout-timeout-s", "3"]
    napped, _, later = evaluated(tmp_path, agent_file(tmp_path, text), script, rows, *options)
    assert napped["stop_reason"] == "timeout"
    assert (later["stop_reason"], later["error"]) == ("mcp_unavailable", BLOCKED)
