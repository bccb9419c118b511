"""Makes and reads the signed address at which a user's own agent calls the policy. Pure.

The only thing that every client of every framework accepts is a base URL. So the URL carries what the proxy has to know
and no client would send: the model server, the sampling parameters of the run, the seed. It is signed with the run's
token, so it also permits calls, for this rollout and nothing else; its end is asked for at the same address without the
signature (`without_signature`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass

# Header of a call with the name of the agent that makes it, percent-encoded.
AGENT_HEADER = "x-agentgrpo-agent"
PREFIX = "/as/"
_SIGNED = re.compile(r"/as/([A-Za-z0-9_-]{1,2000})\.([0-9a-f]{64})(/rollout/([^/]+)/attempt/([^/]+)/?.*)", re.DOTALL)


@dataclass(frozen=True)
class RolloutSampling:
    rollout_id: str
    attempt_id: str
    model: str
    """Name of the model server."""
    temperature: float
    max_tokens: int
    """Longest reply, in tokens; an agent may ask for fewer."""
    seed: int | None = None


def signed_prefix(sampling: RolloutSampling, token: str) -> str:
    """The beginning of the path of the rollout's requests; `/rollout/ID/attempt/ID/v1` follows."""
    said = base64.urlsafe_b64encode(json.dumps(asdict(sampling)).encode()).decode().rstrip("=")
    return f"{PREFIX}{said}.{_signature(said, token)}"


def read_signed(path: str, token: str) -> tuple[RolloutSampling, str] | None:
    """Sampling that a path carries, and the rest of the path from `/rollout/`.

    None if the signature is not one of this run, or belongs to another rollout.
    """
    match = _SIGNED.fullmatch(path)
    if match is None or not hmac.compare_digest(match[2], _signature(match[1], token)):
        return None
    try:
        fields = json.loads(base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    sampling = RolloutSampling(**fields)
    return (sampling, match[3]) if (sampling.rollout_id, sampling.attempt_id) == (match[4], match[5]) else None


def without_signature(url: str) -> str:
    # A request to it has to show the run's token.
    server, _, signed = url.partition(PREFIX)
    return f"{server}/{signed.partition('/')[2]}"


def _signature(said: str, token: str) -> str:
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()
