"""The padding token is one that no conversation ends with."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentgrpo.chat.tokenizer import choose_pad_token
from agentgrpo.hub import ModelError

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>\n{% endfor %}"
ENDS_WITH_EOS = "{% for m in messages %}{{ m.role }} {{ m.content }}</s>{% endfor %}"


def a_tokenizer(template: str = CHATML, extra: tuple[str, ...] = (), **special: str) -> PreTrainedTokenizerFast:
    """One token a byte; special tokens of its own as named."""
    words = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>", *extra)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        pytest.param(a_tokenizer(eos_token="<|im_end|>", pad_token="<pad>", unk_token="<unk>"), "<pad>", id="its_own"),
        pytest.param(a_tokenizer(eos_token="<|im_end|>", unk_token="<unk>"), "<unk>", id="none_but_unknown"),
        pytest.param(
            a_tokenizer(eos_token="<|im_end|>", extra=("<|reserved_7|>",)), "<|reserved_7|>", id="none_but_reserved"
        ),
        pytest.param(a_tokenizer(eos_token="<|im_end|>"), "<|im_end|>", id="the_end_where_a_line_break_follows_it"),
        pytest.param(
            a_tokenizer(ENDS_WITH_EOS, eos_token="</s>", pad_token="</s>", unk_token="<unk>"),
            "<unk>",
            id="not_its_own_where_conversations_end_with_it",
        ),
        pytest.param(
            a_tokenizer(ENDS_WITH_EOS, eos_token="</s>", extra=("<|finetune_right_pad_id|>",)),
            "<|finetune_right_pad_id|>",
            id="not_the_end_where_conversations_end_with_it",
        ),
    ],
)
def test_the_padding_token_is_one_that_no_conversation_ends_with(tokenizer, expected):
    assert choose_pad_token(tokenizer) == expected


def test_without_such_a_token_the_model_is_refused():
    words = "conversations end with '</s>', which must not be it; add a token to the tokenizer"
    with pytest.raises(ModelError, match=words):
        choose_pad_token(a_tokenizer(ENDS_WITH_EOS, eos_token="</s>"))
