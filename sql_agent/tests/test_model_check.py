"""A model folder that cannot be trained is named, with its reason, before anything starts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import AutoTokenizer

from agentgrpo.chat.replies import Conversation
from agentgrpo.chat.tokenizer import load_tokenizer
from agentgrpo.checks import Problem, UsageError, require
from agentgrpo.limited_fork import forked
from agentgrpo.printed_commands import agentgrpo_command, program_command
from dbbench_adapter.protocols import fc
from reward_model.tests.conftest import make_base
from scripts.pages.chat_templates import byte_tokenizer
from sql_agent.model_check import (
    OF_ONE_MODEL,
    chat_template,
    check_model_dir,
    check_tensor_parallel,
    safetensors_bytes,
    template_of_run,
    try_template,
)

TRL_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
HERMES = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)
PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A model of one layer."""
    return make_base(tmp_path_factory.mktemp("whole"))


def safetensors(*, tensor_bytes: int = 4, cut: int = 0) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, tensor_bytes]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(tensor_bytes)
    return content[: len(content) - cut]


@pytest.fixture
def model(tmp_path: Path, whole: Path) -> Path:
    """A folder that passes: a model of one layer, a tokenizer of bytes, a template that renders tool calls."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(whole / name, tmp_path)
    byte_tokenizer("<|im_end|>", "<|im_start|>").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "pad_token": null}')
    (tmp_path / "chat_template.jinja").write_text(HERMES)
    return tmp_path


def fetch(path: Path) -> str:
    return f"fetch the folder again: `{program_command('hf', 'download', 'ORG/NAME', '--local-dir', path)}`"


def write(path: Path) -> str:
    return (
        f"write a template that renders tool calls to {path}/chat_template.jinja, take a model that has one, or set "
        "agent.protocol=text, which needs no tools"
    )


def test_a_complete_folder_has_no_problem(model: Path):
    assert check_model_dir(model) == []


QWEN = {"num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864}  # Qwen2.5-0.5B
SMOL = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}  # SmolLM2-135M


@pytest.mark.parametrize(
    ("config", "size", "uneven"),
    [
        (QWEN, 1, None),
        (QWEN, 2, None),
        (QWEN, 4, "the 14 attention heads of"),  # each key-value head twice
        (QWEN, 7, "the 4864 feed-forward rows, 2 key-value heads of"),  # 14 / 7 = 2
        (SMOL, 2, "the 9 attention heads, 3 key-value heads of"),  # 1536 / 2 = 768
        (SMOL, 3, None),
        (SMOL, 9, "the 1536 feed-forward rows of"),  # each key-value head three times
        ({"text_config": SMOL, "num_attention_heads": 16}, 3, None),
        ({}, 2, None),  # a model of another kind: vLLM's to say
    ],
)
def test_gpus_that_cannot_share_a_model_are_named(tmp_path, config, size, uneven):
    (tmp_path / "config.json").write_text(json.dumps(config))
    problems = [problem.what for problem in check_tensor_parallel(tmp_path, size)]
    assert len(problems) == (uneven is not None)
    if uneven:
        assert f"engine.tensor_parallel_size is {size}, which does not divide {uneven} {tmp_path}" in problems[0]


def test_a_missing_folder_is_the_only_problem(tmp_path: Path):
    path = tmp_path / "qwen"
    assert check_model_dir(path) == [
        Problem(
            f"model folder {path} does not exist",
            f"make a small policy with `{agentgrpo_command('tiny-policy')}`, "
            f"or fetch a model with `{program_command('hf', 'download', 'ORG/NAME', '--local-dir', path)}`",
        )
    ]


def test_an_adapter_is_merged_and_not_fetched_again(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text("{}")
    merge = agentgrpo_command("merge", "--adapter", tmp_path, "--output", f"{tmp_path}-merged")
    assert check_model_dir(tmp_path) == [
        Problem(
            f"{tmp_path} holds an adapter, expected a whole model", f"merge it by `{merge}`, and give {tmp_path}-merged"
        )
    ]


def test_every_missing_file_of_an_empty_folder_is_named(tmp_path: Path):
    assert check_model_dir(tmp_path) == [
        Problem(f"{tmp_path}/config.json is missing", fetch(tmp_path)),
        Problem(f"{tmp_path} has no tokenizer.json", f"{fetch(tmp_path)}, or save its tokenizer as a fast one"),
        Problem(
            f"{tmp_path} has no chat template (neither chat_template.jinja, additional_chat_templates/ nor "
            "tokenizer_config.json)",
            write(tmp_path),
        ),
        Problem(f"{tmp_path} has no weights, expected *.safetensors", fetch(tmp_path)),
    ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        pytest.param("{", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        pytest.param("[]", "holds a list, expected an object"),
        pytest.param('{"model_type": "qwen3"}', "names no architectures, expected e.g. ['Qwen3ForCausalLM']"),
    ],
)
def test_a_config_that_says_nothing_is_a_problem(model: Path, content: str, what: str):
    (model / "config.json").write_text(content)
    assert check_model_dir(model) == [Problem(f"{model}/config.json {what}", fetch(model))]


@pytest.mark.parametrize(
    ("template", "what"),
    [
        pytest.param(PLAIN, "leaves out the arguments of tool calls", id="no_tool_calls"),
        pytest.param(
            HERMES.replace("{{ message.content }}", "{{ message.content if message.role != 'tool' }}"),
            "leaves out tool results",
            id="no_tool_results",
        ),
        pytest.param(
            "{{ raise_exception('roles must alternate') }}",
            "cannot render a tool call (TemplateError: roles must alternate)",
            id="refuses",
        ),
        pytest.param("{{ nothing.at_all }}", "cannot render a tool call (UndefinedError: 'nothing' is undefined)"),
    ],
)
def test_a_template_without_tool_support_is_a_problem(model: Path, template: str, what: str):
    (model / "chat_template.jinja").write_text(template)
    assert check_model_dir(model) == [Problem(f"the chat template of {model} {what}", write(model))]


def test_ids_of_calls_are_those_that_every_family_takes(model: Path):
    """Mistral's templates take nine letters and digits, and refused the ids of our own probe."""
    nine = "{% if call.id is not defined or call.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}<tool_call>"
    answers = (
        "{% if message.role == 'tool' and message.tool_call_id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    )
    text = HERMES.replace("<tool_call>", nine).replace("<|im_start|>", answers + "<|im_start|>", 1)
    (model / "chat_template.jinja").write_text(text)
    assert check_model_dir(model) == []
    Conversation(load_tokenizer(model), fc.TOOLS)


def test_a_template_that_writes_no_thought_is_said_to_show_another_history(model: Path):
    """DeepSeek's form cuts the last reply too, so that nothing of it is rewritten later."""
    cut = "{{ message.content.split('</think>')[-1] }}"
    (model / "chat_template.jinja").write_text(HERMES.replace("{{ message.content }}", cut))
    (problem,) = check_model_dir(model)
    assert (problem.blocks, "rewrites earlier turns (seen after words after a thought)" in problem.what) == (
        False,
        True,
    )


def test_a_vocabulary_that_is_larger_than_the_embeddings_is_a_problem(model: Path):
    """Training ended in `IndexError: index out of range in self`."""
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    last = tokenizer["added_tokens"][-1]
    for number, blocks in ((rows - 1, False), (rows, True)):
        added = [*tokenizer["added_tokens"], {**last, "id": number, "content": "<|extra|>"}]
        (model / "tokenizer.json").write_text(json.dumps({**tokenizer, "added_tokens": added}))
        remedy = "take the tokenizer that belongs to the model, or resize the embeddings"
        what = f"the tokenizer of {model} has token {rows}, the model {rows} embeddings (0 to {rows - 1})"
        assert check_model_dir(model) == ([Problem(what, remedy)] if blocks else [])
    with pytest.raises(UsageError, match=f"has token {rows}, the model {rows} embeddings"):
        require(policy=str(model))  # as sft, dpo and local do


def test_a_template_is_also_found_in_the_tokenizer_config(model: Path):
    (model / "chat_template.jinja").unlink()
    config = {"chat_template": HERMES, "eos_token": "<|im_end|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert check_model_dir(model) == []


TOOL_USE, DEFAULT, OTHER = HERMES + "{# tools #}", HERMES + "{# default #}", HERMES + "{# other #}"


def listed(**templates: str) -> dict[str, str]:
    entries = [{"name": name, "template": text} for name, text in templates.items()]
    return {"tokenizer_config.json": json.dumps({"chat_template": entries, "eos_token": "<|im_end|>"})}


def in_folder(**templates: str) -> dict[str, str]:
    return {f"additional_chat_templates/{name}.jinja": text for name, text in templates.items()}


TEMPLATE_FILES = {
    "own_file": {"chat_template.jinja": DEFAULT},
    "text_in_the_config": {"tokenizer_config.json": json.dumps({"chat_template": DEFAULT, "eos_token": "<|im_end|>"})},
    "list_with_both": listed(default=DEFAULT, tool_use=TOOL_USE),
    "list_with_default_alone": listed(default=DEFAULT),
    "list_with_tool_use_alone": listed(tool_use=TOOL_USE, rag=OTHER),
    "list_with_neither": listed(rag=OTHER),
    "folder_with_both": in_folder(default=DEFAULT, tool_use=TOOL_USE),
    "folder_with_tool_use_alone": in_folder(tool_use=TOOL_USE),
    "folder_with_neither": in_folder(rag=OTHER),
    "own_file_and_folder": {"chat_template.jinja": DEFAULT} | in_folder(tool_use=TOOL_USE),
    "folder_before_own_file": {"chat_template.jinja": OTHER} | in_folder(default=DEFAULT),
    "own_file_before_a_list": {"chat_template.jinja": DEFAULT} | listed(tool_use=TOOL_USE),
    "folder_before_a_list": in_folder(tool_use=TOOL_USE) | listed(default=DEFAULT, tool_use=OTHER),
    "json_of_a_processor": {"chat_template.json": json.dumps({"chat_template": DEFAULT})},
}


def taken_by_transformers(tokenizer: Any, tools: list[Any] | None) -> str | None:
    try:
        return tokenizer.get_chat_template(tools=tools)
    except ValueError:
        return None


@pytest.mark.parametrize("files", TEMPLATE_FILES)
@pytest.mark.parametrize("saved", [False, True], ids=["as_it_is", "saved_by_a_tokenizer"])
def test_the_template_is_the_one_that_transformers_takes(model: Path, tmp_path: Path, files: str, saved: bool):
    (model / "chat_template.jinja").unlink()
    (model / "additional_chat_templates").mkdir()
    for name, text in TEMPLATE_FILES[files].items():
        (model / name).write_text(text)
    if saved:  # as fine-tuning and merging write it
        tokenizer = AutoTokenizer.from_pretrained(model)
        for name in ("chat_template.jinja", "tokenizer_config.json"):
            (model / name).unlink(missing_ok=True)
        shutil.rmtree(model / "additional_chat_templates")
        tokenizer.save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    for protocol, tools in (("fc", [{"type": "function"}]), ("text", None)):
        expected = taken_by_transformers(tokenizer, tools)
        assert chat_template(model, protocol) == expected
        problems = try_template(model, protocol)  # the part of `check_model_dir` that looks at templates
        assert bool(problems) == (expected is None), problems


def test_templates_of_other_names_and_of_a_processor_are_named(model: Path):
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.json").write_text(json.dumps({"chat_template": HERMES}))
    what = f"{model} has a chat_template.json, which transformers reads for models of images and not for tokenizers"
    remedy = f"write its text `chat_template` to {model}/chat_template.jinja, or take another model"
    assert check_model_dir(model) == [Problem(what, remedy)]
    (model / "tokenizer_config.json").write_text(listed(rag=HERMES)["tokenizer_config.json"])
    what = (
        f"{model} has chat templates named rag, and for prompts with tools transformers takes `tool_use` or `default`"
    )
    assert check_model_dir(model) == [Problem(what, write(model))]


@pytest.mark.parametrize("template", [3, ["a"], [{"name": "default"}], [{"name": "default", "template": 3}]])
def test_a_template_of_another_form_is_a_problem(model: Path, template: Any):
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    (problem,) = check_model_dir(model)
    assert problem.what == (
        f"chat_template in {model}/tokenizer_config.json has another form, expected a text, or a list of objects with "
        "`name` and `template`"
    )


def test_a_template_may_name_special_tokens(model: Path):
    config = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "<|im_end|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").write_text("{{ bos_token + '' }}" + HERMES)
    assert check_model_dir(model) == []


def test_an_unreadable_tokenizer_config_is_a_problem(model: Path):
    (model / "tokenizer_config.json").write_text("[]")
    assert check_model_dir(model) == [
        Problem(f"{model}/tokenizer_config.json holds a list, expected an object", fetch(model))
    ]


@pytest.mark.parametrize("protocol", ["text", "lab"])
def test_a_protocol_of_plain_text_needs_no_tools(model: Path, protocol):
    (model / "chat_template.jinja").write_text(PLAIN.replace("\n", "<|im_end|>\n"))
    assert check_model_dir(model, protocol) == []
    assert check_model_dir(model) == [
        Problem(f"the chat template of {model} leaves out the arguments of tool calls", write(model))
    ]


def test_a_protocol_of_plain_text_needs_a_template_that_writes_its_messages(model: Path):
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    remedy = f"write one that can to {model}/chat_template.jinja, or take a model that has one"
    what = f"the chat template of {model} leaves out the user's messages and the replies"
    assert check_model_dir(model, "text") == [Problem(what, remedy)]


def test_turns_that_nothing_ends_cannot_be_trained_whole(model: Path):
    (model / "chat_template.jinja").write_text(PLAIN)
    (problem,) = check_model_dir(model, "text")
    assert problem.blocks
    assert problem.what == (
        f"rollouts of protocol text cannot be trained whole with the chat template of {model}: after words after a "
        "thought it writes no token that ends the turn, so the next prompt cannot continue what was sampled"
    )


@pytest.mark.parametrize("ends", ["1", "[0, 1]"])
def test_turns_may_end_with_a_token_of_the_generation_config(model: Path, ends: str):
    """Gemma's way: <|im_start|>, the byte tokenizer's second special token, plays <end_of_turn>."""
    (model / "chat_template.jinja").write_text(PLAIN.replace("\n", "<|im_start|>\n"))
    assert len(check_model_dir(model, "text")) == 1
    (model / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')
    assert check_model_dir(model, "text") == []


def test_qwen3_is_trained_with_trls_version_of_its_template(model: Path):
    """Its own adds an empty thought to the last reply only, and drops the thoughts of earlier ones."""
    own, training = ((TRL_TEMPLATES / f"{name}.jinja").read_text() for name in ("qwen3", "qwen3_training"))
    (model / "chat_template.jinja").write_text(own)
    assert check_model_dir(model) == []
    template, played = template_of_run(model, "fc")
    assert template == training
    assert (played.broken, played.rewritten) == (None, None)


def test_a_template_that_rewrites_earlier_turns_is_a_warning_where_trl_has_no_version_of_it(model: Path):
    (model / "chat_template.jinja").write_text((TRL_TEMPLATES / "qwen3.jinja").read_text() + "{# ours #}")
    (problem,) = check_model_dir(model)
    assert not problem.blocks
    assert "rewrites earlier turns (seen after a call), and TRL has no version of it" in problem.what
    assert template_of_run(model, "fc")[0].endswith("{# ours #}")


def test_a_tokenizer_that_cannot_be_read_is_a_problem(model: Path):
    (model / "tokenizer.json").write_text("{}")
    (problem,) = check_model_dir(model)
    assert problem.what.startswith(f"{model}/tokenizer.json cannot be read (")


# Templates that need not end ------------------------------------------------------------------------------------------

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}"
ENDLESS = {
    "nested_loops": HERMES + LOOP + "{% endfor %}{% endfor %}",
    "loops_that_write": HERMES + LOOP + "x{% endfor %}{% endfor %}",
    "one_large_power": HERMES + "{{ 9 ** 999999999 }}",
    "over_the_messages": "{% for m in messages %}" + LOOP + "{% endfor %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("template", [*ENDLESS.values()], ids=[*ENDLESS])
def test_a_template_that_does_not_end_is_a_problem(model: Path, monkeypatch, template: str):
    monkeypatch.setattr(forked, "__kwdefaults__", {"cpu_s": 1.0, "memory_bytes": 2**30})
    (model / "chat_template.jinja").write_text(template)
    assert check_model_dir(model) == [
        Problem(
            f"the chat template of {model} does not end: a short conversation took more than 1 s",
            f"write one that does to {model}/chat_template.jinja, or take a model that has one",
        )
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(x='x' * 9) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_takes_all_memory_or_the_stack_is_a_problem(model: Path, monkeypatch, template: str):
    monkeypatch.setattr(forked, "__kwdefaults__", {"cpu_s": 10.0, "memory_bytes": 2**28})
    (model / "chat_template.jinja").write_text(template)
    (problem,) = check_model_dir(model)
    assert problem.what.startswith(f"the chat template of {model} cannot render a tool call (")


# Weights --------------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_and_heads_of_another_task_are_problems(model: Path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    fault = f"the weights of {model} do not fit its config.json as a Qwen3ForCausalLM: 1 missing (lm_head.weight)"
    assert check_model_dir(model) == [Problem(fault, OF_ONE_MODEL)]
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForSequenceClassification"]}))
    fault = f"{model} is a reward model or another classifier (Qwen3ForSequenceClassification), expected a language "
    assert check_model_dir(model) == [Problem(fault + "model (...ForCausalLM)", OF_ONE_MODEL)]


def test_a_shard_that_the_index_names_must_be_there(model: Path):
    (model / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
    )
    assert check_model_dir(model) == [
        Problem(f"{model}/model-2.safetensors is missing, model.safetensors.index.json names it", fetch(model))
    ]


def test_parts_of_weights_need_their_index_and_each_other(model: Path):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (problem,) = check_model_dir(model)
    assert problem.what == (
        f"{model} has parts of weights (model-00001-of-00002.safetensors) without model.safetensors.index.json or "
        "pytorch_model.bin.index.json"
    )


def test_a_part_of_pickled_weights_that_the_index_names_must_be_there(model: Path):
    (model / "model.safetensors").rename(model / "pytorch_model-00001-of-00002.bin")
    parts = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    what = f"{model}/pytorch_model-00002-of-00002.bin is missing, pytorch_model.bin.index.json names it"
    assert check_model_dir(model) == [Problem(what, fetch(model))]


def test_a_download_that_broke_off_is_a_problem(model: Path):
    (model / "model.safetensors").write_bytes(safetensors(cut=1))
    # 8 bytes of length, 61 of header, 4 of tensor; the last one is missing
    assert check_model_dir(model) == [
        Problem(f"{model}/model.safetensors is damaged: 72 bytes, its header promises 73", fetch(model))
    ]


def test_a_pointer_in_place_of_weights_is_a_problem(model: Path):
    (model / "model.safetensors").write_text("version 1\noid sha256:0\n")
    assert check_model_dir(model) == [
        Problem(f"{model}/model.safetensors is damaged: 23 bytes, its header cannot be read", fetch(model))
    ]


def test_the_size_of_a_safetensors_file_is_length_plus_header_plus_tensors(tmp_path: Path):
    (tmp_path / "w").write_bytes(safetensors(tensor_bytes=1000))
    assert safetensors_bytes(tmp_path / "w") == (tmp_path / "w").stat().st_size
