"""Every command plays the same first prompts: one limit, one way to shorten, and the same tokens."""

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoTokenizer

from agentgrpo.chat.template import ChatTemplate
from agentgrpo.checks import UsageError
from agentgrpo.machine import free_port
from sql_agent import evaluate, oracle
from sql_agent.environments.base import Split, make_taskset
from sql_agent.model_servers.deadline_client import DeadlineClient
from sql_agent.prompts.fit import PromptLimit, choose_limit, context_of, fit_split, fit_tasks, limit_within
from sql_agent.prompts.tokenizer import ServedTokenizer
from sql_agent.settings.groups import AgentConfig
from sql_agent.settings.load import dump_config, load_config
from sql_agent.startup.input_checks import check_prompts
from sql_agent.startup.plan import choose_tasks, with_prompts
from sql_agent.startup.resume import check_resume
from sql_agent.tests.conftest import checkpoint_of, wait_for
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import named_in
from sql_agent.verl_side.config import worker_environment

TABLES = ("customer", "invoice", "line", "track", "album", "artist", "genre", "playlist", "employee", "medium", "entry")
COLUMNS = ("address", "city", "state", "country", "phone", "fax", "email", "note")


def wide_database(folder, columns=COLUMNS):
    """A file of eleven tables, and questions: about the last column of each table, and others to hold out."""
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection, connection:
        for table in TABLES:
            connection.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, {' TEXT, '.join(columns)} TEXT)"
            )
            for n in (1, 2):
                values = ", ".join(f"'the {column} of number {n}'" for column in columns)
                connection.execute(f"INSERT INTO {table} VALUES ({n}, 'a', {values})")
    rows = [
        {"question": f"What is noted of {table} {n}?", "query": f"SELECT note FROM {table} WHERE id = {n}"}
        for table in TABLES
        for n in (1, 2)
    ]
    others = [
        {"question": f"Which {table} is 1?", "query": f"SELECT name FROM {table} WHERE id = 1"} for table in TABLES
    ]
    for name, some in (("tasks", rows), ("held-out", others)):
        (folder / f"{name}.json").write_text(json.dumps(some))
    return folder / "store.sqlite", folder / "tasks.json", folder / "held-out.json"


@pytest.fixture
def wide(tmp_path):
    return wide_database(tmp_path)


def characters(environment):
    return lambda task: sum(len(message["content"]) for message in environment.messages(task))


def given(tokens):
    return PromptLimit(tokens, "as given", "--max-prompt-tokens", True)


# the limit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"hidden_size": 8}, None),
    ],
)
def test_the_context_is_what_the_config_names(config, context):
    assert context_of(config) == context


def test_the_limit_is_the_context_less_the_response_of_the_main_job():
    limit = limit_within(8192, "org/model", None, "--max-prompt-tokens")
    assert limit == PromptLimit(6144, "the context of org/model, 8,192 tokens, less 2,048 for the response", limit.flag)
    assert limit_within(2048, "org/model", None, "-").tokens == 1024  # a short context is shared evenly
    assert limit_within(8192, "org/model", None, "-", response_tokens=768).tokens == 6144  # as every other command
    assert limit_within(8192, "org/model", None, "-", response_tokens=4096).tokens == 4096
    assert limit_within(8192, "org/model", 300, "-") == PromptLimit(300, "as given", "-", True)
    assert limit_within(None, "org/model", None, "-") == PromptLimit(
        None, "org/model names no length of its context", "-"
    )


def test_the_small_policy_keeps_less_for_the_response(random_policy_folder):
    assert choose_limit(random_policy_folder, None, "--max-prompt-tokens").tokens == 4096 - 768


@pytest.mark.parametrize(
    ("asked", "response", "words"),
    [
        (8192, 0, r"no room for a first prompt of 8,192 tokens \(--max-prompt-tokens\); lower --max-prompt-tokens"),
        (7000, 2048, r"7,000 tokens .* and data.max_response_tokens=2048 behind it; lower them"),
        (None, 8192, r"a first prompt and data.max_response_tokens=8192 behind it; lower data.max_response_tokens"),
    ],
)
def test_a_context_without_room_is_refused(asked, response, words):
    with pytest.raises(ValueError, match=f"the context of org/model has 8,192 tokens, which leaves .*{words}"):
        limit_within(8192, "org/model", asked, "--max-prompt-tokens", response)


# what is cut ----------------------------------------------------------------------------------------------------------


def test_what_is_cut_is_named_and_so_are_references_that_use_it(wide):
    with TextToSql(wide[0], form="ddl") as environment:
        tasks = environment.read_tasks(wide[1])
        count = characters(environment)
        whole = fit_tasks(tasks, environment, count, given(100_000))
        assert (whole.tasks, whole.cuts(), whole.missed()) == (tasks, [], [])
        narrowed = [count(task) for task in environment.shorter(tasks[0])]  # no values, five columns, ten tables, ...
        cut = fit_tasks(tasks, environment, count, given(narrowed[1] + 3))
    assert {task.schema_chars for task in cut.tasks} == {cut.tasks[0].schema_chars}
    remedy = f"--max-prompt-tokens {max(whole.lengths)} keeps everything, where the model's context holds it"
    gone = [f"{table}.{column}" for table in TABLES for column in ("country", "phone", "fax", "email", "note")]
    assert [str(problem) for problem in cut.cuts()] == [
        "the schema of store is cut in 22 of 22 first prompts; left out: example values; 55 columns: "
        f"{', '.join(gone[:12])} and 43 more; {remedy}"
    ]
    used = ", ".join(f"{table}.note (2)" for table in TABLES)
    assert [str(problem) for problem in cut.missed()] == [
        f"the references of 22 of 22 tasks use what the prompts leave out: {used}; the policy can only guess it; "
        f"{remedy}"
    ]
    assert [line.split(":")[0] for line in cut.describe()] == ["first prompts", "warning", "WARNING"]


def test_tables_are_cut_last_and_named_too(wide):
    with TextToSql(wide[0], form="ddl") as environment:
        (shortest,) = environment.shorter(Question("q", "?", "store", "SELECT name, e.id FROM entry e"))[-1:]
        assert environment.left_out(shortest).parts == (
            ("example values", ()),
            ("columns", tuple(f"customer.{column}" for column in COLUMNS[3:])),
            ("all columns of the tables", TABLES[1:]),
        )
        assert environment.missed(shortest) == ("entry.id", "entry.name")


def test_references_never_decide_what_a_prompt_holds(wide):
    with TextToSql(wide[0], form="ddl") as environment:
        count = characters(environment)
        asked = [Question("q", "What?", "store", f"SELECT {column} FROM track") for column in ("name", "note")]
        limit = given(count(environment.shorter(asked[0])[1]))
        prompts = [environment.messages(task) for task in fit_tasks(asked, environment, count, limit).tasks]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT name FROM t", ["t.name"]),
        ("SELECT T1.NAME, T2.size FROM t AS T1 JOIN u AS T2 ON T1.id = T2.id", ["t.name", "u.size"]),
        ("SELECT size FROM t WHERE id IN (SELECT id FROM u WHERE name = 'x')", ["t.name", "u.size"]),  # either table
        ("SELECT * FROM t", []),
        ("SELECT count(*) FROM u", []),
        ("UPDATE u SET size = 1; DELETE FROM t WHERE name = 'x'", ["t.name", "u.size"]),
        ("INSERT INTO u (id, size) SELECT id, name FROM t", ["t.name", "u.size"]),
        ("SELECT count(*) FROM t JOIN u USING (name)", ["t.name"]),
        ("INSERT INTO u VALUES (1, 2)", []),
        ("no SQL at all (", []),
    ],
)
def test_the_columns_that_a_query_names(query, named):
    assert [*named_in(query, [("t", "name"), ("u", "size")])] == named


def test_a_prompt_that_stays_too_long_is_left_out_of_training_and_counted(wide):
    with TextToSql(wide[0], form="ddl") as environment:
        short, long = (Question("q", text, "store", "SELECT 1") for text in ("?", "?" * 10_000))
        count = characters(environment)
        limit = given(count(short))
        split, prompts = fit_split(Split([short, long], [short]), environment, count, limit)
        assert (split, len(prompts.tasks)) == (Split([short], [short], too_long=1), 3)
        with pytest.raises(ValueError, match=r"no held-out task .* at most \d+ tokens, the shortest has 1\d+; raise "):
            fit_split(Split([short], [long]), environment, count, limit)


# every command --------------------------------------------------------------------------------------------------------


def settings_of(model, wide, *settings, form="ddl"):
    data = [f"data.train_file={wide[1]}", f"data.val_file={wide[2]}", "env.type=text2sql", f"env.database={wide[0]}"]
    data.append(f"env.schema_form={form}")
    return load_config(None, [f"model={model}", *data, *settings])


def main_job(model, wide, *settings, form="ddl"):
    """The prompts and the settings of the main job."""
    cfg = settings_of(model, wide, *settings, form=form)
    chosen = choose_tasks(cfg, make_taskset(cfg.environment))
    with chosen.environment:
        return [*map(chosen.tokenizer.prompt_ids, chosen.split.train)], with_prompts(cfg, chosen, cpu=True).data, chosen


def fine_tuning(model, wide, folder, *flags, form="ddl"):
    from sql_agent.settings.tuning import SftConfig
    from sql_agent.sft.run import prepare_sft

    cfg = SftConfig(
        model_path=str(model),
        dataset="text2sql",
        database=wide[0],
        tasks=wide[1],
        val_file=wide[2],
        output_dir=folder / "sft",
        schema_form=form,
        **dict(flags),
    )
    said = []
    run = prepare_sft(cfg, resume=False, say=said.append)
    return [each.ids[: each.mask.index(1)] for each in run.encoded], said


def local(model, wide, limit, form):
    """The prompts of local GRPO and of a conversation in a terminal."""
    from sql_agent.interactive.session import Chat, Tasks
    from sql_agent.local.datatypes import GREEDY
    from sql_agent.local.start import load_conversation
    from sql_agent.local.tasks import fit_to_context

    with TextToSql(wide[0], form=form) as environment:
        tasks = environment.read_tasks(wide[1])
        tokenizer, conversation = load_conversation(str(model), environment.tools)
        split, _ = fit_to_context(Split(tasks, tasks), environment, str(model), limit)
        policy = type("Policy", (), {"tokenizer": tokenizer, "max_positions": 4096})()
        chosen = choose_limit(model, limit, "--max-prompt-tokens")
        chat = Chat(policy, Tasks(environment, tasks), AgentConfig(), GREEDY, None, chosen)
        asked = chat.fitted(tasks).tasks
        return tuple(
            [conversation.first_prompt(environment.messages(task)) for task in played]
            for played in (split.train, asked)
        )


@pytest.mark.slow
@pytest.mark.parametrize(("form", "limit"), [("ddl", None), ("ddl", 1200), ("compact", 400), ("linked", 300)])
def test_every_command_plays_the_same_tokens(random_policy_folder, wide, tmp_path, form, limit):
    """Eleven tables, whole or cut: the small policy's limit is 3,328 tokens, and CREATE statements are longer."""
    settings = [f"data.max_prompt_tokens={limit}"] if limit else []
    ids, data, chosen = main_job(random_policy_folder, wide, *settings, form=form)
    assert len(ids) == 22 and all(task.schema_chars for task in chosen.split.train)
    assert max(map(len, ids)) <= (limit or 3328)
    assert data.max_prompt_tokens == (limit or max(map(len, ids)))  # what verl gets
    tuned, said = fine_tuning(random_policy_folder, wide, tmp_path, ("max_prompt_tokens", limit), form=form)
    assert tuned == ids
    grpo, talk = local(random_policy_folder, wide, limit, form)
    assert grpo == talk == ids
    finding = check_prompts(wide[1], random_policy_folder, wide[0], limit, None, form)
    lengths = f"{min(map(len, ids)):,} to {max(map(len, ids)):,} tokens"
    assert f"first prompts: {lengths}" in finding.found and any(lengths in line for line in said)
    if form != "linked":  # of which each question shows others
        assert finding.problems[0].what.startswith("the schema of store is cut in 22 of 22 first prompts; left out: ")


def test_a_model_with_a_long_context_reads_the_whole_schema(random_policy_folder, wide, tmp_path):
    model = tmp_path / "long"
    shutil.copytree(random_policy_folder, model)
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 32768}
    (model / "config.json").write_text(json.dumps(config))
    ids, data, chosen = main_job(model, wide)
    assert {task.schema_chars for task in chosen.split.train} == {None}
    assert chosen.prompts.limit.tokens == 32768 - 768
    assert data.max_prompt_tokens == max(map(len, ids)) > 3328
    tuned, _ = fine_tuning(model, wide, tmp_path)
    assert tuned == ids  # nothing is refused, though fine-tuning once took 2,048 tokens at most


def test_a_prompt_beyond_the_context_is_counted_without_a_warning_since_it_is_shortened_then(
    random_policy_folder, caplog
):
    tokenizer = AutoTokenizer.from_pretrained(random_policy_folder)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)  # it does not propagate
    try:
        tokens = ChatTemplate.of(tokenizer).first_prompt([{"role": "user", "content": "a b " * 5000}])
    finally:
        logger.removeHandler(caplog.handler)
    assert (len(tokens) > tokenizer.model_max_length, caplog.messages) == (True, [])


@pytest.mark.parametrize(("given", "other"), [(None, 1200), (1200, None)])
def test_what_is_chosen_is_no_setting_so_a_run_resumes_with_what_was_given(
    random_policy_folder, wide, tmp_path, given, other
):
    def settings(limit):
        more = [] if limit is None else [f"data.max_prompt_tokens={limit}"]
        return settings_of(random_policy_folder, wide, f"run_dir={tmp_path / 'run'}", *more)

    cfg, checkpoint = settings(given), checkpoint_of(tmp_path / "run", 1)
    chosen = choose_tasks(cfg, make_taskset(cfg.environment))
    assert with_prompts(cfg, chosen, cpu=True).data.max_prompt_tokens is not None
    assert cfg.data.max_prompt_tokens == given
    (tmp_path / "run" / "config.yaml").write_text(dump_config(cfg))
    check_resume(settings(given), checkpoint, cpu=True)
    with pytest.raises(UsageError, match=r"trained with other settings \(data;"):
        check_resume(settings(other), checkpoint, cpu=True)


@pytest.fixture(scope="module")
def vllm(served_policy_folder, tmp_path_factory):
    """vLLM with the small policy, as a user starts it for `evaluate`."""
    port = free_port()
    command = [sys.executable, "-c", "from vllm.entrypoints.cli.main import main; main()", "serve"]
    command += [str(served_policy_folder), "--served-model-name", "policy", "--port", str(port), "--enforce-eager"]
    command += ["--dtype", "float32", "--distributed-executor-backend", "uni", "--max-model-len", "4096"]
    command += ["--kv-cache-memory-bytes", str(2**30)]
    with (tmp_path_factory.mktemp("vllm") / "vllm.log").open("w") as log:
        environment = os.environ | worker_environment(load_config(None), cpu=True)
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, 400)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("columns", "whole"), [(COLUMNS[-2:], True), (COLUMNS, False)], ids=["whole", "cut"])
def test_a_server_makes_the_tokens_that_training_plays(served_policy_folder, vllm, tmp_path, columns, whole):
    """vLLM's /tokenize, as evaluate asks it, against the main job."""
    wide = wide_database(tmp_path, columns)
    ids, _, chosen = main_job(served_policy_folder, wide)
    assert {task.schema_chars is None for task in chosen.split.train} == {whole}
    with TextToSql(wide[0], form="ddl") as environment, DeadlineClient("-") as client:
        served = ServedTokenizer(vllm, "policy", client, environment)
        limit = served.limit(None, "--max-prompt-tokens", reply_tokens=512)
        assert limit == choose_limit(served_policy_folder, None, "--max-prompt-tokens")
        found = fit_tasks(environment.read_tasks(wide[1]), environment, served.prompt_tokens, limit)
        assert found.tasks == chosen.split.train
        assert [*map(served.prompt_ids, found.tasks)] == ids and len(ids) == 22
        assert found.whole == [*map(chosen.tokenizer.prompt_tokens, environment.read_tasks(wide[1]))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reply_that_is_longer_than_what_training_leaves_lowers_the_limit(vllm, wide):
    with TextToSql(wide[0], form="ddl") as environment, DeadlineClient("-") as client:
        served = ServedTokenizer(vllm, "policy", client, environment)
        limit = served.limit(None, "--max-prompt-tokens", reply_tokens=1024)
    why = "the context that policy is served with, 4,096 tokens, less 1,024 for a reply"
    assert limit == PromptLimit(4096 - 1024, why, "--max-prompt-tokens")  # training's 3,328 leave less than that


def counting(served):
    """The same server, and it counts a token for each byte of the messages, with a context of 100,000."""

    async def models(_):
        return JSONResponse({"data": [{"id": oracle.MODEL, "max_model_len": 100_000, "root": "org/model"}]})

    async def tokenize(request):
        ids = oracle.byte_ids((await request.json())["messages"])
        return JSONResponse({"tokens": ids, "count": len(ids)})

    return Starlette(
        routes=[Route("/v1/models", models), Route("/tokenize", tokenize, methods=["POST"]), *served.routes]
    )


@pytest.mark.parametrize("counts", [True, False])
def test_evaluate_cuts_as_the_server_counts_and_sends_the_whole_schema_to_others(wide, tmp_path, capsys, counts):
    asked = []
    served = oracle.app(
        oracle.recite([oracle.calls(oracle.call("submit_sql", {"sql": "SELECT 1"}))]), on_request=asked.append
    )
    flags = ["--max-prompt-tokens", "2000"] if counts else []
    with oracle.serve(counting(served) if counts else served) as url:
        where = ["--base-url", url, "--model", oracle.MODEL, "--database", str(wide[0]), "--tasks", str(wide[1])]
        where += ["--schema-form", "ddl"]
        evaluate.main([*where, "--output", str(tmp_path / "out.jsonl"), *flags])
    said = capsys.readouterr().out
    prompts = [request["messages"] for request in asked if len(request["messages"]) == 2]
    assert len(prompts) == 22
    cut = ["-- left out: example values" in prompt[0]["content"] for prompt in prompts]
    if counts:
        assert all(cut) and all(len(oracle.byte_ids(prompt)) <= 2000 for prompt in prompts)
        assert "the schema of store is cut in 22 of 22 first prompts" in said and "WARNING: the references of" in said
    else:
        assert not any(cut)
        assert "first prompts: sent whole; their lengths and the model's context are not known here" in said


def test_evaluate_refuses_a_limit_where_nobody_counts(wide, tmp_path):
    with oracle.serve(oracle.app(oracle.recite([]))) as url:
        where = ["--base-url", url, "--model", oracle.MODEL, "--database", str(wide[0]), "--tasks", str(wide[1])]
        with pytest.raises(SystemExit, match="--max-prompt-tokens needs a server that counts tokens as vLLM does"):
            evaluate.main([*where, "--output", str(tmp_path / "out.jsonl"), "--max-prompt-tokens", "3000"])
