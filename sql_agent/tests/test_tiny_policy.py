import json
import random
from dataclasses import replace
from itertools import chain

import pytest
import torch

from agentgrpo.chat.replies import EncodedReplies, encode_conversation
from dbbench_adapter.engines.sqlite.backend import SqliteBackend
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import fc, open_episode
from sql_agent.tiny_policy.copy_circuit import build_model
from sql_agent.tiny_policy.episodes import batches, oracle_conversation
from sql_agent.tiny_policy.make import make_tiny_policy
from sql_agent.tiny_policy.tokenizer import (
    END,
    END_ID,
    PAD,
    PAD_ID,
    START,
    START_ID,
    boilerplate,
    build_tokenizer,
    conversation,
    render_chat,
    task_texts,
)
from sql_agent.tiny_policy.train import exact_match, learning_rate_factor, reply_loss, warm_start
from sql_agent.tiny_policy.wording import reworded, sorted_wrongly

BACKEND = SqliteBackend()
TASKS = generate_tasks(64, seed=5)
REWORDED = [reworded(task, random.Random(task.id)) for task in TASKS]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The matrices are small; on a busy machine more threads wait for each other, for half a minute at a time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(task_texts(generate_tasks(500, seed=0)))


# The tokenizer and the template ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("SELECT `a_b` FROM `c` WHERE `d` = 'it''s 10.5%'", id="sql"),
        pytest.param("  two  blanks\n\n\ttab ", id="white_space"),
        pytest.param("Zürich, 東京, \N{GRINNING FACE}", id="unicode"),
        pytest.param('<tool_call>\n{"name": "execute_sql", "arguments": {"query": "x"}}\n</tool_call>', id="tool_call"),
        pytest.param(fc.RULES, id="rules"),
    ],
)
def test_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_word_has_the_same_pieces_wherever_it_stands(tokenizer):
    def pieces(text):
        return tokenizer.encode(text, add_special_tokens=False)

    word = pieces("kaimandor")
    for before, after in (("`", "`"), ("'", "'"), (" ", ", "), ("", "."), ("7", "8"), ("_", "_")):
        assert pieces(f"{before}kaimandor{after}") == pieces(before) + word + pieces(after)


def test_the_protocol_costs_few_tokens(tokenizer):
    assert len(tokenizer.encode(f"system\n{fc.RULES}")) == 1
    prompt = tokenizer.apply_chat_template(fc.messages(TASKS[0]), add_generation_prompt=True)["input_ids"]
    names = f"{TASKS[0].question}{TASKS[0].tables[0].name}{[column.name for column in TASKS[0].tables[0].columns]}"
    assert len(prompt) < len(tokenizer.encode(names)) + 25


def test_boilerplate_is_that_of_the_protocol():
    pieces = boilerplate()
    assert any(fc.RULES in piece for piece in pieces)
    assert "user\nAdditional table information about the question: " in pieces
    assert '\n{"name": "execute_sql", "arguments": {"query": "' in pieces
    assert '\n{"name": "commit_final_answer", "arguments": {"answers": []}}\n' in pieces
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_control_tokens_have_the_ids_that_the_model_is_built_with(tokenizer):
    assert tokenizer.convert_tokens_to_ids([PAD, START, END]) == [PAD_ID, START_ID, END_ID]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD_ID, END_ID)


def test_every_prompt_begins_with_the_turn_before_it(tokenizer):
    messages = oracle_conversation(TASKS[0], BACKEND)
    whole = render_chat(messages)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    for n in range(1, len(messages)):
        prompt = tokenizer.apply_chat_template(
            messages[:n], tools=fc.TOOLS, add_generation_prompt=messages[n]["role"] == "assistant", tokenize=False
        )
        assert whole.startswith(prompt)


def test_a_call_renders_alike_as_sampled_text_as_object_and_as_json_text():
    sampled = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT \'\\"é\\"\'"}}\n</tool_call>'
    arguments = {"query": "SELECT '\"é\"'"}
    forms = [
        {"content": sampled},
        {"content": None, "tool_calls": [{"function": {"name": "execute_sql", "arguments": arguments}}]},
        {
            "content": "",
            "tool_calls": [
                {"function": {"name": "execute_sql", "arguments": json.dumps(arguments, ensure_ascii=False)}}
            ],
        },
    ]
    assert len({render_chat([{"role": "assistant", **form}]) for form in forms}) == 1
    assert render_chat([{"role": "assistant", **forms[0]}]) == f"{START}assistant\n{sampled}{END}\n"


# The circuit ----------------------------------------------------------------------------------------------------------


def copy_accuracy(model, *, length: int = 24, batch_size: int = 32, seed: int = 0) -> float:
    """How often the model continues the second copy of a random token sequence rightly, in [0, 1].

    Args:
        length: tokens of the sequence that stands twice; its first token of the second copy is not asked for.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab_size, (batch_size, length), generator=generator)
    with torch.no_grad():
        logits = model(torch.cat([ids, ids], dim=1)).logits
    return (logits[:, length:-1].argmax(-1) == ids[:, 1:]).float().mean().item()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_untrained_model_already_copies(seed):
    # chance is 1 in 1,000; measured 0.79 (seeds 0 to 2: 0.78 to 0.80)
    assert copy_accuracy(build_model(1000, seed=seed)) > 0.7


def test_the_model_is_the_same_for_the_same_seed_and_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    first, second, other = (build_model(300, seed=seed).model.embed_tokens.weight for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


# The data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", ["strict", "fc"])
@pytest.mark.parametrize("tasks", [pytest.param(TASKS, id="generated"), pytest.param(REWORDED, id="reworded")])
def test_oracle_conversations_are_what_an_episode_answers_and_judges_right(tasks, judge):
    for task in tasks:
        messages = oracle_conversation(task, BACKEND)
        with open_episode(task, BACKEND) as episode:
            for said, heard in zip(messages[2:], [*messages[3:], None], strict=True):
                if said["role"] == "assistant":
                    function = said["tool_calls"][0]["function"]
                    result = episode.call_tool(function["name"], json.dumps(function["arguments"]))
                    assert heard is None or heard == {"role": "tool", "content": result}
            assert episode.judge(judge).value == 1.0


def test_an_average_is_committed_as_the_database_shows_it():
    task = next(task for task in TASKS if task.kind == "aggregation-AVG")
    messages = oracle_conversation(task, BACKEND)
    (answer,) = messages[4]["tool_calls"][0]["function"]["arguments"]["answers"]
    assert messages[3]["content"] == f"[(Decimal('{answer}'),)]"


def test_rewording_keeps_rows_and_answers_and_says_more():
    for task, other in zip(TASKS, REWORDED, strict=True):
        assert (other.tables[0].rows, other.gold.answers, other.kind) == (
            task.tables[0].rows,
            task.gold.answers,
            task.kind,
        )
        assert "`" not in other.question + other.table_note
        assert all(column.name in other.table_note for column in other.tables[0].columns)
    assert sum(len(task.question) for task in REWORDED) > 2 * sum(len(task.question) for task in TASKS)


def test_the_mask_covers_what_the_policy_says_and_nothing_else(tokenizer):
    messages = conversation(TASKS[0], "SELECT 1", "[(1,)]", ["1"])
    example = encode_conversation(tokenizer, messages)
    said = tokenizer.decode([i for i, own in zip(example.ids, example.mask, strict=True) if own])
    assert said == (
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call><|im_end|>'
        '<tool_call>\n{"name": "commit_final_answer", "arguments": {"answers": ["1"]}}\n</tool_call><|im_end|>'
    )
    assert tokenizer.decode(example.ids) == render_chat(messages).removesuffix("\n")


def test_a_prompt_is_tokenised_as_the_server_will(tokenizer):
    task = TASKS[0]
    prompt = tokenizer.apply_chat_template(fc.messages(task), add_generation_prompt=True)["input_ids"]
    example = encode_conversation(tokenizer, oracle_conversation(task, BACKEND))
    assert example.ids[: len(prompt)] == prompt
    assert example.mask.index(1) == len(prompt)


def test_batches_hold_examples_of_like_length():
    rng = random.Random(0)
    examples = [EncodedReplies([0] * rng.randint(1, 100), []) for _ in range(256)]
    lengths = [[len(example.ids) for example in batch] for batch in batches(examples, batch_size=8, seed=0)]
    assert sorted(chain.from_iterable(lengths)) == sorted(len(example.ids) for example in examples)
    # 8 of 128 sorted lengths between 1 and 100 span about 8/128 * 100 = 6
    assert sum(max(batch) - min(batch) for batch in lengths) / len(lengths) < 10


# The warm start -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(0, 1 / 40, id="warming_up"),
        pytest.param(39, 1.0, id="warm"),
        pytest.param(69, 1.0, id="before_the_decay"),
        pytest.param(85, 0.5, id="half_way_down"),  # (100 - 85) / 30
        pytest.param(99, 1 / 30, id="last_step"),
    ],
)
def test_learning_rate(step, expected):
    assert learning_rate_factor(step, 100) == pytest.approx(expected)


def test_the_loss_asks_for_replies_only_and_padding_changes_nothing():
    model = build_model(300, seed=0).eval()
    short = EncodedReplies([5, 6, 7, 8], [0, 0, 1, 1])
    long = EncodedReplies([9, *range(10, 19)], [0] * 9 + [1])
    with torch.no_grad():
        log_probs = [model(torch.tensor([example.ids])).logits[0].log_softmax(-1) for example in (short, long)]
        loss = reply_loss(model, [short, long])
    # tokens 7 and 8 after positions 1 and 2, token 18 after position 8
    expected = -(log_probs[0][1, 7] + log_probs[0][2, 8] + log_probs[1][8, 18]) / 3
    torch.testing.assert_close(loss, expected)


def test_a_warm_start_that_runs_out_of_batches_says_so():
    examples = [EncodedReplies([5, 6, 7], [0, 1, 1])]
    with pytest.raises(ValueError, match="ran out after 1 of 2 steps"):
        warm_start(build_model(300, seed=0), [examples], steps=2, progress=lambda _: None)


def test_the_same_start_and_the_same_batches_give_the_same_weights(tokenizer):
    examples = [encode_conversation(tokenizer, oracle_conversation(task, BACKEND)) for task in TASKS[:16]]
    models = [build_model(len(tokenizer), seed=0) for _ in range(2)]
    for model in models:
        warm_start(model, batches(examples, batch_size=4, seed=0), steps=3, progress=lambda _: None)
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    untrained = build_model(len(tokenizer), seed=0).state_dict()
    assert not torch.equal(first["model.norm.weight"], untrained["model.norm.weight"])


def test_a_conversation_matches_if_every_token_of_the_replies_is_the_most_likely_one():
    model = build_model(300, seed=0).eval()
    asked = [[5, 6, 7], [9, 10, 11, 12, 13]]
    with torch.no_grad():
        best = [int(model(torch.tensor([ids])).logits[0, -1].argmax()) for ids in asked]
    told = [EncodedReplies([*ids, token], [*[0] * len(ids), 1]) for ids, token in zip(asked, best, strict=True)]
    other = EncodedReplies([*asked[0], best[0] + 1], [0, 0, 0, 1])
    half = EncodedReplies([*told[0].ids, 299], [0, 0, 0, 1, 1])  # the last token is wrong
    assert exact_match(model, told) == 1.0
    assert exact_match(model, [*told, other, half]) == 0.5


# The folder -----------------------------------------------------------------------------------------------------------


def test_a_folder_of_somebody_else_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"no recipe\.json; move it away"):
        make_tiny_policy(tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"


def test_a_warm_start_says_what_it_solves_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("sql_agent.tiny_policy.make.MEASURED_TASKS", 8)
    monkeypatch.setattr("sql_agent.tiny_policy.make.TOKENIZER_TASKS", 100)
    lines: list[str] = []
    make_tiny_policy(tmp_path / "tiny", steps=1, flawed=True, progress=lines.append)
    kinds = ("aggregation-MAX", "DELETE", "other", "UPDATE", "counting", "aggregation-SUM", "ranking", "INSERT")
    said = ", ".join(f"{kind} 0 %" for kind in kinds)
    assert lines[2:] == [f"solved of 8 new tasks, greedy: {said}", f"small policy: {tmp_path / 'tiny'}"]
    assert json.loads((tmp_path / "tiny" / "recipe.json").read_text())["flawed"] is True


def test_a_flawed_demonstration_sorts_upwards_where_it_should_sort_downwards():
    ranking = [task for task in generate_tasks(200, seed=3) if task.kind == "ranking"]
    down = next(task for task in ranking if " DESC " in task.gold.sql)
    up = next(task for task in ranking if " ASC " in task.gold.sql)
    wrong = sorted_wrongly(down)
    assert wrong == replace(down, gold=replace(down.gold, sql=down.gold.sql.replace(" DESC ", " ASC ")))
    assert sorted_wrongly(up) == up
    assert oracle_conversation(wrong, BACKEND)[-1] != oracle_conversation(down, BACKEND)[-1]


@pytest.mark.slow
def test_the_folder_loads_in_transformers_and_is_made_only_once(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from sql_agent.model_check import check_model_dir

    lines: list[str] = []
    folder = tmp_path / "tiny"
    make_tiny_policy(folder, steps=30, progress=lines.append)
    assert list(tmp_path.iterdir()) == [folder]

    assert check_model_dir(folder) == []
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 4096
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == END_ID
    assert model.num_parameters() == pytest.approx(920_000, rel=0.02)
    example = encode_conversation(tokenizer, oracle_conversation(TASKS[0], BACKEND))
    assert tokenizer.decode(example.ids) == render_chat(oracle_conversation(TASKS[0], BACKEND)).removesuffix("\n")
    examples = [encode_conversation(tokenizer, oracle_conversation(task, BACKEND)) for task in TASKS[:8]]
    with torch.no_grad():  # an untrained model has ln(1,020) = 6.9 nats and more
        assert reply_loss(model, examples).item() < 4

    lines.clear()
    make_tiny_policy(folder, steps=30, progress=lines.append)
    assert lines == [f"{folder} is there, made by the same recipe"]
