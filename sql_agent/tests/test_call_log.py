"""What a rollout's calls said, as conversations, and where in them the model's replies stand."""

from sql_agent.model_address.call_log import CallLog


def user(text):
    return {"role": "user", "content": text}


def said(text, *calls):
    functions = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text} | ({"tool_calls": functions} if functions else {})


def answer(message, prompt=10, completion=3, cached=0):
    whole = {"refusal": None, "tool_calls": [], **message}  # as vLLM writes it, which names no cached tokens if none is
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage |= {"prompt_tokens_details": {"cached_tokens": cached} if cached else None}
    return {"choices": [{"message": whole}], "usage": usage}


def played(*calls):
    log = CallLog()
    for number, (sent, reply) in enumerate(calls):
        log.add(sent, answer(reply, cached=8 * number))
    return log.to_dict()


def test_a_conversation_is_kept_once_though_every_request_repeats_it():
    first, look = [user("how many?")], said(None, ("1", "count", '{"of": "pears"}'))
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    assert played((first, look), ([*first, look, result], said("3"))) == {
        "messages": [*first, look, result, said("3")],
        "replies": [1, 3],
        "calls": 2,
        "prompt_tokens": 20,
        "cached_tokens": 8,
        "completion_tokens": 6,
        "refused": None,
        "unread": 0,
        "failure": None,
    }


def test_a_reply_that_the_client_writes_anew_is_the_same_reply():
    first, look = [user("how many?")], said(None, ("1", "count", '{"of": "pears"}'))
    anew = {"tool_calls": [{"id": "1", "function": {"name": "count", "arguments": '{"of":"pears"}'}}]}
    log = played((first, look), ([*first, {"role": "assistant", "content": "", **anew}], said("3")))
    assert (log["messages"], log["replies"]) == ([*first, look, said("3")], [1, 2])


def test_brackets_may_be_as_deep_as_a_policy_writes_them():
    """At some depth they can still be read and no longer be written; the proxy answered such a call by 500."""
    for depth in range(900, 1100):
        look = said(None, ("1", "count", "[" * depth + "]" * depth))
        assert played(([user("how many?"), look], said("3")))["replies"] == [2]


def test_a_handoff_is_a_conversation_of_its_own_and_the_replies_of_both_are_known():
    desk, clerk, question = ({"role": "system", "content": text} for text in ("desk", "clerk", "how many?"))
    over = said(None, ("1", "transfer_to_clerk", "{}"))
    done = {"role": "tool", "tool_call_id": "1", "content": "clerk"}
    log = played(([desk, question], over), ([clerk, question, over, done], said("3")))
    assert log["messages"] == [desk, question, over, clerk, question, over, done, said("3")]
    assert log["replies"] == [2, 7]


def test_conversations_that_are_held_at_once_stay_apart():
    a, b = ([user(name)] for name in "ab")
    go = user("go on")
    log = played((a, said("1")), (b, said("2")), ([*b, said("2"), go], said("4")), ([*a, said("1"), go], said("3")))
    assert log["messages"] == [*a, said("1"), go, said("3"), *b, said("2"), go, said("4")]
    assert log["replies"] == [1, 5, 7, 3]


def test_the_same_question_to_three_agents_is_there_three_times():
    asked = [user("q?")]
    log = played((asked, said("1")), (asked, said("2")), (asked, said("3")))
    assert log["messages"] == [*asked, said("1"), *asked, said("2"), *asked, said("3")]


def test_text_blocks_are_their_text():
    block = {"role": "user", "content": [{"type": "text", "text": "how many?"}]}
    log = played(([user("how many?")], said("3")), ([block, said("3"), user("sure?")], said("yes")))
    assert log["messages"] == [user("how many?"), said("3"), user("sure?"), said("yes")]


def test_a_request_that_failed_is_a_failure_until_the_same_one_is_answered():
    log = CallLog()
    log.fail([user("a")], "502")
    log.add([user("b")], answer(said("3")))
    assert log.to_dict()["failure"] == "502"
    log.add([user("a")], answer(said("3")))
    assert log.to_dict()["failure"] is None
