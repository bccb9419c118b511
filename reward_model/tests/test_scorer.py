import json
import re
import shutil
from math import isfinite

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from agentgrpo.hub import ModelError
from agentgrpo.printed_commands import agentgrpo_command
from reward_model.datatypes import EncodedConversation, RewardScore
from reward_model.scorer import RECORD, Scorer, encode_truncated
from reward_model.tests.conftest import assistant, user

BOUND = 1e-5
"""Of a score in a batch against the same alone, float32 on a CPU; measured here: at most 5e-7."""


@pytest.fixture(scope="module")
def scorer(adapter) -> Scorer:
    return Scorer.load(adapter, device="cpu")


def conversations(count: int) -> list[list[Message]]:
    return [[user("Which number comes after 41?"), assistant("42 " * (n % 7) + str(n))] for n in range(count)]


def test_a_score_is_the_same_alone_in_a_batch_and_in_any_order(scorer):
    batch = [scorer.encode(messages) for messages in conversations(20)]
    assert len({len(encoded.ids) for encoded in batch}) > 5
    alone = [scorer.score([encoded])[0].value for encoded in batch]
    together = [score.value for score in scorer.score(batch)]
    turned = [score.value for score in scorer.score(batch[::-1])][::-1]
    assert together == pytest.approx(alone, abs=BOUND)
    assert turned == pytest.approx(alone, abs=BOUND)
    assert max(alone) - min(alone) > 1000 * BOUND  # they differ, so the bound says something


def test_the_head_reads_the_last_token_and_no_padding(scorer):
    # the same model on unpadded ids, the logit picked by hand
    encoded = scorer.encode(conversations(1)[0])
    model = scorer.model.base_model.model
    with torch.inference_mode():
        states = model.model(input_ids=torch.tensor([encoded.ids])).last_hidden_state
        by_hand = model.score(states[0, -1]).item()
    longer = scorer.encode(conversations(7)[6])
    assert scorer.score([encoded, longer])[0].value == pytest.approx(by_hand, abs=BOUND)


def test_what_is_too_long_loses_its_beginning_and_says_so(scorer):
    messages = [user("no " * 50 + "yes"), assistant("42")]
    whole = encode_truncated(scorer.tokenizer, messages, tools=None, max_length=1000)
    assert not whole.truncated
    for limit, truncated in ((len(whole.ids), False), (len(whole.ids) - 1, True), (10, True)):
        cut = encode_truncated(scorer.tokenizer, messages, tools=None, max_length=limit)
        assert cut == EncodedConversation(whole.ids[-limit:], truncated)
    assert scorer.score([scorer.encode(messages)])[0].truncated
    assert scorer.tokenizer.decode(whole.ids[-3:]) == "2<|im_end|>\n"


def test_arguments_reach_the_template_as_an_object_and_what_is_no_object_as_text(scorer):
    template = "{% for call in messages[0].tool_calls %}{{ call.function.arguments is string }} {% endfor %}"
    calls = tuple(ToolCall(function=FunctionCall(name="f", arguments=text)) for text in ('{"a": 1}', "[1]", "oops"))
    kept, scorer.tokenizer.chat_template = scorer.tokenizer.chat_template, template
    try:
        encoded = scorer.encode([Message(role="assistant", tool_calls=calls)])
    finally:
        scorer.tokenizer.chat_template = kept
    assert scorer.tokenizer.decode(encoded.ids) == "False True True "


@pytest.mark.parametrize(
    "arguments", ["[" * 200_000, '{"a": "\\ud800"}'], ids=["nested_deeply", "half_a_surrogate_pair"]
)
def test_arguments_that_cannot_be_read_stay_text(scorer, arguments):
    call = ToolCall(id="1", function=FunctionCall(name="f", arguments=arguments))
    asked = [Message(role="user", content="q"), Message(role="assistant", tool_calls=(call,))]
    assert isfinite(scorer.score([scorer.encode(asked)])[0].value)


def test_an_adapter_is_not_put_on_another_base(adapter, base, tmp_path):
    folder, other = shutil.copytree(adapter, tmp_path / "adapter"), shutil.copytree(base, tmp_path / "base")
    weights = load_file(other / "model.safetensors")
    save_file({name: weight + 0.1 for name, weight in weights.items()}, other / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(other)}))
    with pytest.raises(ModelError, match=r"is not the base that .* was trained on"):
        Scorer.load(folder, device="cpu")


def test_the_limit_is_that_of_training_as_far_as_the_model_has_positions(adapter, tmp_path):
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    limits = []
    for said in (64, 100_000, None):
        record = json.loads((folder / RECORD).read_text()) | {"max_length": said}
        (folder / RECORD).write_text(json.dumps(record))
        limits.append(Scorer.load(folder, device="cpu").max_length)
    assert limits == [64, 256, 256]  # the base has 256 positions


def test_weights_that_are_no_numbers_give_no_score(base, scorer):
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model.score.weight.data.fill_(float("nan"))
    broken = Scorer(model, scorer.tokenizer, 64)
    with pytest.raises(ValueError, match="the reward model gave nan; its weights hold NaN or overflow"):
        broken.score([broken.encode(conversations(1)[0])])
    with pytest.raises(ValueError, match="gave inf"):
        RewardScore(float("inf"))


def three_labels(folder):
    config = json.loads((folder / "config.json").read_text())
    labels = {str(i): f"LABEL_{i}" for i in range(3)}
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": labels}
    (folder / "config.json").write_text(json.dumps(config))


def as_it_is(folder):
    pass


def remove_tokenizer(folder):
    for file in folder.glob("*token*"):
        file.unlink()


def remove_template(folder):
    (folder / "chat_template.jinja").unlink()


def adapter_of_nothing(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "gone"}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "is not a folder; give the output of agentgrpo reward train or of agentgrpo reward merge"),
        (as_it_is, "is a Qwen3ForCausalLM with 2 labels, a reward model is a ...ForSequenceClassification with one"),
        (three_labels, "is a Qwen3ForSequenceClassification with 3 labels"),
        (remove_tokenizer, "has no tokenizer that can be read"),
        (remove_template, "has no chat template; agentgrpo reward train writes one beside the model"),
        pytest.param(
            adapter_of_nothing,
            "is an adapter of gone, which is not on this machine; merge it where the base is, with "
            f"`{agentgrpo_command('reward merge', '--adapter')} ",
            id="adapter_of_nothing",
        ),
    ],
)
def test_what_is_no_reward_model_is_refused_with_the_reason(base, tmp_path, spoil, words):
    folder = shutil.copytree(base, tmp_path / "model")
    spoil(folder)
    with pytest.raises(ModelError, match=re.escape(words)):
        Scorer.load(folder, device="cpu")
