"""`agentgrpo tasks medical`: the command of the example `examples/medical`, which only the repository has."""

from __future__ import annotations

import sys

from agentgrpo.commands import failed
from agentgrpo.user_files import load_object
from sql_agent.names import ENVIRONMENTS, check_name


def main() -> int:
    try:
        check_name("medical")
    except ValueError as error:
        return failed(error)
    command, _ = load_object(ENVIRONMENTS["medical"].replace("medical.py:Medical", "medical_data.py:main"))
    return command(sys.argv[1:])
