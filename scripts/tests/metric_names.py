"""Whether a metric is registered in `sql_agent/metrics.yaml`."""

import re
from collections.abc import Iterable
from functools import cache

from scripts.pages.metrics import registry


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    names = [name for group in registry() for metric in group.metrics for name in metric.names]
    return {
        name: re.compile(re.sub(r"\\\.\\\.\\\.", ".+", re.sub(r"\b[A-Z]+\b", "[^/]+", re.escape(name))))
        for name in names
    }


def unregistered(names: Iterable[str]) -> list[str]:
    """Return the names that no entry of the registry has."""
    known = patterns().values()
    plain = {name: name.removeprefix("val/") for name in names}
    return [name for name, own in plain.items() if not any(each.fullmatch(own) for each in known)]
