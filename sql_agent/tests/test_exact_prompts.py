"""What the engine sampled goes back to it as the same ids."""

from sql_agent.verl_plugin.exact_prompts import ReplyMemory, continue_exactly, conversation_key

EOS = 99
SYSTEM = {"role": "system", "content": "rules"}
ASK = {"role": "user", "content": "how many?"}


def call(call_id, text=None):
    function = {"name": "execute_sql", "arguments": "{}"}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": call_id, "function": function}]}


def test_sampled_ids_stay_and_only_what_follows_the_reply_is_taken_from_the_template():
    known = [1, 2, 30, 31, EOS]  # 30, 31 were sampled; the template would write 35 instead
    rendered_reply = [1, 2, 35, EOS, 10]  # 10: the line break after the end of a turn
    rendered = [1, 2, 35, EOS, 10, 40, 41, 50]
    assert continue_exactly(known, rendered_reply, rendered, EOS) == [1, 2, 30, 31, EOS, 10, 40, 41, 50]


def test_a_reply_cut_before_its_end_is_closed():
    assert continue_exactly([1, 30], [1, 35, EOS, 10], [1, 35, EOS, 10, 40], EOS) == [1, 30, EOS, 10, 40]


def test_a_template_that_rewrites_history_has_no_seam():
    assert continue_exactly([1, 30, EOS], [1, 35, EOS], [7, 35, EOS, 40], EOS) is None


def test_a_reply_with_tool_calls_is_known_by_their_ids_however_it_is_written_down():
    memory = ReplyMemory()
    memory.remember([SYSTEM, ASK, call("call-1", "let me look")], [1, 2, 3])
    rewritten = [SYSTEM, ASK, call("call-1", None), {"role": "tool", "tool_call_id": "call-1", "content": "[]"}]
    assert memory.recall(rewritten) == (3, [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, call("call-2")]) is None


def test_a_plain_reply_is_known_by_the_whole_text():
    reply = {"role": "assistant", "content": "three"}
    assert conversation_key([SYSTEM, ASK, reply]) == conversation_key([SYSTEM, {**ASK}, {**reply, "tool_calls": None}])
    assert conversation_key([SYSTEM, ASK, reply]) != conversation_key([SYSTEM, reply])


def test_the_oldest_conversation_is_forgotten_first():
    memory = ReplyMemory(capacity=2)
    for name in ("a", "b", "c"):
        memory.remember([call(name)], [1])
    assert [memory.recall([call(name)]) is not None for name in ("a", "b", "c")] == [False, True, True]
