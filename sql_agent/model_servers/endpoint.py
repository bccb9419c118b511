"""Checks that a model server answers and serves a model, before anything that takes longer."""

from __future__ import annotations

from pathlib import Path

import httpx

from sql_agent.model_servers.deadline_client import DeadlineClient, listed_models, lists_all, served_as
from sql_agent.model_servers.refusals import error_text
from sql_agent.model_servers.replies import SHOWN_CHARS, ReplyError, read_reply

NO_SUCH_ADDRESS = (404, 405, 501)
"""Statuses of a server that does not list its models."""


def check_endpoint(
    base_url: str, model: str, api_key: str, flags: tuple[str, str] = ("--base-url", "--model")
) -> Path | None:
    """End the command if no server answers or it does not serve the model.

    Args:
        flags: the flags that give the address and the name.
    Returns:
        The folder of the model, where the server names it (vLLM does, as `root`) and it is on this machine.
    Raises:
        SystemExit: the endpoint cannot be used; the message says what to do.
    """
    url = base_url.rstrip("/")
    try:
        with DeadlineClient(api_key) as client:
            answer = client.get(f"{url}/models", timeout_s=10.0)
            listed = {} if answer.status_code in NO_SUCH_ADDRESS else _listed(answer.raise_for_status())
            name = served_as(model, listed)
            if name is None and not lists_all(listed):
                _ask_once(url, model, client)
                return None
    except (httpx.HTTPError, httpx.InvalidURL, ReplyError) as failure:
        raise SystemExit(
            f"no model server at {url}/models: {failure}; start one, or give its address up to /v1 with {flags[0]}"
        ) from failure
    if name is None:
        raise SystemExit(
            f"{base_url} does not serve {model!r}; it serves {', '.join(listed)}: name one with {flags[1]}"
        )
    root = listed[name].get("root")
    return Path(root) if isinstance(root, str) and Path(root).is_dir() else None


def _listed(answer: httpx.Response) -> dict[str, dict[str, object]]:
    try:
        return listed_models(answer.json())
    except ValueError:
        return {}


def _ask_once(url: str, model: str, client: DeadlineClient) -> None:
    """Ask for a short reply, where a server does not list all its models.

    Raises:
        httpx.HTTPError, ReplyError: there is no reply.
    """
    asked = {"model": model, "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 16}
    answer = client.post(f"{url}/chat/completions", asked, timeout_s=60.0)
    if answer.status_code != 200:
        what = f"it does not list {model!r}, and {url}/chat/completions answers {answer.status_code}"
        raise ReplyError(f"{what}: {error_text(answer.content)[:SHOWN_CHARS]}")
    read_reply(answer.content)
