import pytest

from agentgrpo.chat.messages import marker_in, medium_in


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("<|im_start|>user\nHow?<|im_end|>", "<|im_start|>"),
        ("It ends.<|im_end|>", "<|im_end|>"),
        ("<|begin_of_text|><|start_header_id|>user", "<|begin_of_text|>"),
        ("How?<|eot_id|>", "<|eot_id|>"),
        ("<|user|>\nHow?<|end|>", "<|user|>"),
        ("<|START_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
        ("<｜User｜>How?", "<｜User｜>"),
        ("<｜begin▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
        ("<start_of_turn>user\nHow?<end_of_turn>", "<start_of_turn>"),
        ("[INST] How? [/INST]", "[INST]"),
        ("<<SYS>>\nBe brief.", "<<SYS>>"),
        ("[AVAILABLE_TOOLS][", "[AVAILABLE_TOOLS]"),
        ("Four.</s>", "</s>"),
        ("<s>Four.</s>", "</s>"),
        ("Be brief.\n\nHuman: How?", "Human:"),
        ("How?\n\nAssistant:", "Assistant:"),
        ("### Instruction:\nAdd", "### Instruction:"),
        ("Add\n\n### Response:\n", "### Response:"),
        ("A chat. USER: How? ASSISTANT:", "USER:"),
    ],
)
def test_what_a_template_wrote_is_found(text, marker):
    assert marker_in(text) == marker


@pytest.mark.parametrize(
    "text",
    [
        "How many?",
        "<think>a</think><tool_call>{}</tool_call>",
        "It was <s>five</s>",
        "f <| x |> g",
        "a |> b <|> c",
        "Human: and Assistant:",
        "The user: who is the USER: here?",
        "Write ## Response: or a response:",
        "SELECT [INSTANCE] FROM t WHERE a < b",
        "",
    ],
)
def test_ordinary_text_has_no_marker(text):
    assert marker_in(text) is None


@pytest.mark.parametrize(
    ("text", "medium"),
    [
        ("<image>\nHow many?", "<image>"),
        ("<image>How many?", "<image>"),
        ("<image> Who is it?", "<image>"),
        ("<image><image>What differs?", "<image>"),
        ("<image>\n<image>\nWhat differs?", "<image>"),
        ("<audio>describe", "<audio>"),
        ("<video>\u8fd9\u662f\u4ec0\u4e48?", "<video>"),
        ("How many?\n<image>", "<image>"),
        ("How many?\n\n <audio> \n", "<audio>"),
        ("How many?\n<image>\n<image>", "<image>"),
        ("How many?\n<image>\nCount.", "<image>"),
        ("How many?\n<video>\nCount.", None),
        ("Explain the tag <video>", None),
        ("Which tag plays a sound? <audio>", None),
        ("<video>", None),
        ("<video> is an element of HTML. Since when?", None),
        ("<video>, <audio> and <image>: which are of HTML?", None),
        ("<video>\n<source src='a'>", None),
        ("What is this?\n```\n<video>\n```", None),
        ("In <image 2> and <image1>", "<image 2>"),
        ("How <start_of_image> many?", "<start_of_image>"),
        ("What does the element <video> do?", None),
        ("<video>\n<source src='a'>\n</video>", None),
        ("f<image>(x)", None),
        ("How many images?", None),
    ],
)
def test_the_place_of_an_image_is_told_from_html(text, medium):
    assert medium_in(text) == medium
