"""Ray's command for a worker: asks verl's driver for a fork (`worker_forks`), else starts one as Ray does.

Ray runs this file in place of its own of the same name (_private/workers/setup_worker.py), whose name raylet knows. It
imports little, because every worker waits for it. It stays while the worker lives, and ends as the worker ended; when
this process is killed, the worker is too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys

ADDRESS = "AGENTGRPO_WORKER_FORKS"
"""The variable with the path of the socket on which forks are asked for."""
# Ray's own file, next to the worker's code, which is the first argument that Ray passes on.
_UPSTREAM = "setup_worker.py"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    asked, worker = parser.parse_known_args(argv)
    context = json.loads(asked.serialized_runtime_env_context)
    code = None
    if asked.language == "PYTHON" and _is_plain(context):
        code = ask(os.environ[ADDRESS], worker, with_variables(os.environ, context.get("env_vars", {})))
    if code is None:
        upstream = os.path.join(os.path.dirname(worker[0]), _UPSTREAM)
        os.execv(sys.executable, [sys.executable, upstream, *argv])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _is_plain(context: dict[str, object]) -> bool:
    """Whether the worker differs from Ray's default in its environment alone."""
    return not context.get("command_prefix") and not context.get("override_worker_entrypoint")


def with_variables(before: dict[str, str] | os._Environ[str], given: dict[str, str]) -> dict[str, str]:
    """As `ray._private.utils.update_envs`, which works on the environment of its process."""
    found = dict(before)
    for name, value in given.items():
        found[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return found


def ask(address: str, argv: list[str], environment: dict[str, str]) -> int | None:
    """Wait for a forked worker's end.

    Returns:
        Its exit code, negative for a signal; None if nobody forks.
    """
    order = json.dumps({"argv": argv, "environment": environment, "folder": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as forks:
        try:
            forks.connect(address)
            socket.send_fds(forks, [len(order).to_bytes(4, "big")], [0, 1, 2])
            forks.sendall(order)
            forked = forks.recv(1)
        except OSError:
            return None
        if not forked:
            return None
        # from here on there was a worker, so whatever happens no other is started in its place
        try:
            code = forks.recv(16)
        except OSError:
            code = b""
    return int(code) if code else -signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1:])
