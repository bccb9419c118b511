"""What `scripts.pages.chat_templates` tries is what TRL would take for training; the page has what it finds."""

import pytest
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template

from scripts.pages.chat_templates import PROTOCOLS, byte_tokenizer, families, look
from sql_agent.model_check import training_template


@pytest.mark.parametrize("name", families())
def test_trl_itself_has_the_same_version_for_training(name):
    """`training_template` reads TRL's files, for it would take seconds to import TRL."""
    family = families()[name]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(*family.special), eos_token=family.eos)
    tokenizer.chat_template = family.template
    try:
        expected = get_training_chat_template(tokenizer)
    except ValueError:
        expected = None
    assert training_template(family.template) == expected


WITHOUT_TOOLS = {"Llama 3", "Gemma 3", "SmolLM2"}


@pytest.mark.parametrize("name", families())
def test_conversations_of_every_family_go_on_exactly(name):
    """The page is made of what `look` finds, so what it has to find stands here."""
    found = [look(families()[name], protocol)[0] for protocol in PROTOCOLS]
    assert found == ["no tools" if name in WITHOUT_TOOLS else "exact", "exact", "exact"]
