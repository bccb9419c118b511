"""What a rollout's calls said, as one conversation: every message once, in the order of the calls."""

from sql_agent.lightning.call_log import CallLog


def user(text):
    return {"role": "user", "content": text}


def said(text, *calls):
    functions = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": text} | ({"tool_calls": functions} if functions else {})


def answer(message, prompt=10, completion=3):
    whole = {"refusal": None, "tool_calls": [], **message}  # as vLLM writes it
    return {"choices": [{"message": whole}], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def played(*calls):
    log = CallLog()
    for sent, reply in calls:
        log.add(sent, answer(reply))
    return log


def test_a_conversation_is_kept_once_though_every_request_repeats_it():
    first, look = [user("how many?")], said(None, ("1", "count", '{"of": "pears"}'))
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    log = played((first, look), ([*first, look, result], said("3")))
    assert log.messages == [*first, look, result, said("3")]
    assert (log.calls, log.prompt_tokens, log.completion_tokens) == (2, 20, 6)


def test_a_reply_that_the_client_writes_anew_is_the_same_reply():
    first, look = [user("how many?")], said(None, ("1", "count", '{"of": "pears"}'))
    anew = {"tool_calls": [{"id": "1", "function": {"name": "count", "arguments": '{"of":"pears"}'}}]}
    log = played((first, look), ([*first, {"role": "assistant", "content": "", **anew}], said("3")))
    assert log.messages == [*first, look, said("3")]


def test_a_handoff_adds_its_instructions_and_what_is_new():
    desk, clerk, question = ({"role": "system", "content": text} for text in ("desk", "clerk", "how many?"))
    over = said(None, ("1", "transfer_to_clerk", "{}"))
    done = {"role": "tool", "tool_call_id": "1", "content": "clerk"}
    log = played(([desk, question], over), ([clerk, question, over, done], said("3")))
    assert log.messages == [desk, question, over, clerk, done, said("3")]


def test_a_question_that_is_asked_twice_is_there_twice():
    log = played(([user("again?")], said("no")), ([user("again?"), said("no"), user("again?")], said("no")))
    assert log.messages == [user("again?"), said("no"), user("again?"), said("no")]


def test_text_blocks_are_their_text():
    block = {"role": "user", "content": [{"type": "text", "text": "how many?"}]}
    assert played(([user("how many?")], said("3")), ([block, said("3"), user("sure?")], said("yes"))).messages == [
        user("how many?"), said("3"), user("sure?"), said("yes"),
    ]  # fmt: skip


def test_a_failure_is_forgotten_with_the_next_reply():
    log = CallLog(failure="502")
    log.add([user("how many?")], answer(said("3")))
    assert log.failure is None
