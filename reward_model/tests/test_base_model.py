import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from agentgrpo.chat.tokenizer import load_tokenizer
from agentgrpo.checks import UsageError, require
from agentgrpo.hub import ModelError
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.weights import weight_files, weights_sha256
from reward_model.scorer import check_base

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_base_of_our_own_is_taken(base):
    tokenizer = load_tokenizer(base)
    check_base(base)
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.fixture
def copy(base, tmp_path):
    return shutil.copytree(base, tmp_path / "base")


def configure(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def check(folder):
    """Check as training does."""
    require(base_model=folder)
    load_tokenizer(folder)
    check_base(folder)


def remove_tokenizer(folder):
    for file in folder.glob("*token*"):
        file.unlink()


def remove_template(folder):
    (folder / "chat_template.jinja").unlink()


def make_adapter_of_it(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")


def three_labels(folder):
    labels = {str(i): f"LABEL_{i}" for i in range(3)}
    configure(folder, architectures=["Qwen3ForSequenceClassification"], id2label=labels)


def encoder_decoder(folder):
    (folder / "config.json").write_text(
        json.dumps({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})
    )


def token_classifier(folder):
    configure(folder, architectures=["Qwen3ForTokenClassification"])


def encoder(folder):
    plain = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(plain))


def more_tokens_than_embeddings(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<new{i}>" for i in range(3)])
    tokenizer.save_pretrained(folder)


def config_of_a_larger_vocabulary(folder):
    configure(folder, vocab_size=1000)


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "does not exist; give a Hugging Face folder"),
        (remove_tokenizer, "has no tokenizer that can be read"),
        (
            remove_template,
            "has no chat template, so a conversation cannot be rendered; give one with --chat-template-path FILE",
        ),
        pytest.param(
            make_adapter_of_it,
            f"holds an adapter, expected a whole model; merge it by `{agentgrpo_command('merge', '--adapter')} ",
            id="make_adapter_of_it",
        ),
        (three_labels, "is a classifier with 3 labels (Qwen3ForSequenceClassification); a reward model has one output"),
        (encoder_decoder, "is an encoder-decoder (T5ForConditionalGeneration); a reward model needs a decoder"),
        (token_classifier, "has the head of another task (Qwen3ForTokenClassification); expected a ...ForCausalLM"),
        (encoder, "the classifier of bert has no `score` head"),
        (more_tokens_than_embeddings, "take the tokenizer that belongs to the model, or resize the embeddings"),
        (config_of_a_larger_vocabulary, "1 of another shape (model.embed_tokens.weight: 295x32, expected 1000x32)"),
        (remove_weights, "has no weights (*.safetensors)"),
    ],
)
def test_what_cannot_become_a_reward_model_is_refused_with_the_reason(copy, spoil, words):
    spoil(copy)
    with pytest.raises((ModelError, UsageError), match=re.escape(words)):
        check(copy)


def test_a_classifier_with_one_label_is_a_base(copy):
    configure(copy, architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"})
    with pytest.raises(ModelError, match=r"1 missing \(score.weight\)"):
        check(copy)
    weights = load_file(copy / "model.safetensors") | {"score.weight": torch.zeros(1, 32)}
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    check(copy)


def test_a_template_can_be_given_as_a_file_or_as_another_models_folder(copy, base, tmp_path):
    remove_template(copy)
    (tmp_path / "own.jinja").write_text(CHATML)
    assert load_tokenizer(copy, tmp_path / "own.jinja").chat_template == CHATML
    assert load_tokenizer(copy, base).chat_template == AutoTokenizer.from_pretrained(base).chat_template
    with pytest.raises(ModelError, match="has no chat template either"):
        load_tokenizer(base, copy)
    with pytest.raises(ModelError, match=r"nowhere.jinja does not exist; name a Jinja file or a model folder"):
        load_tokenizer(base, tmp_path / "nowhere.jinja")


def test_the_hash_is_of_the_weights_and_sees_swapped_shards(tmp_path):
    one, two = {"a": torch.zeros(2)}, {"a": torch.ones(2)}
    for folder, order in (("straight", (one, two)), ("swapped", (two, one))):
        (tmp_path / folder).mkdir()
        for name, tensors in zip(("1.safetensors", "2.safetensors"), order, strict=True):
            save_file(tensors, tmp_path / folder / name)
    straight = weights_sha256(tmp_path / "straight")
    assert straight != weights_sha256(tmp_path / "swapped")
    (tmp_path / "swapped" / "2.safetensors").rename(tmp_path / "swapped" / "0.safetensors")
    assert straight != weights_sha256(tmp_path / "swapped")  # the same bytes in the same order under other names
    (tmp_path / "straight" / "README.md").write_text("x")
    assert weights_sha256(tmp_path / "straight") == straight
    assert [load_file(file)["a"].tolist() for file in weight_files(tmp_path / "straight")] == [[0, 0], [1, 1]]
