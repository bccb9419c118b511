"""The scoring service: its routes and records from its OpenAPI, and its Prometheus metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reward_model.service.app import Service, make_app
from reward_model.service.metrics import REGISTRY
from scripts.pages.tables import code, table

HEAD = """# Scoring service

`agentgrpo reward serve` answers these requests, and describes them under `/openapi.json` and `/docs`. [Train and
serve a reward model](../guides/reward_model.md) shows them in use; its flags are among the
[commands](commands.md#reward-serve).

Bodies are JSON. Where the service has a token, a request needs the header `Authorization: Bearer TOKEN`.
"""
METRICS = """## Metrics

`GET /metrics` has these for Prometheus. Labels are routes, statuses and reasons, never a request's text.
"""
Json = Mapping[str, Any]


def page() -> str:
    api = make_app(Service(Path("model"), commit="unknown", deadline_s=30.0)).openapi()
    operations = [(f"{how.upper()} {path}", each) for path, ways in api["paths"].items() for how, each in ways.items()]
    routes = [
        (code(name), each["description"], content(each.get("requestBody")), content(each["responses"]["200"]))
        for name, each in operations
    ]
    errors: dict[tuple[str, str], list[str]] = {}
    for name, each in operations:
        for status, answer in each["responses"].items():
            if status != "200":
                errors.setdefault((status, answer["description"]), []).append(name)
    refused = [(status, what, code(*names)) for (status, what), names in errors.items()]
    records = "\n\n".join(
        f"### {name}\n\n{table(('field', 'type', 'default', 'meaning'), fields(kind))}"
        for name, kind in api["components"]["schemas"].items()
        if "properties" in kind
    )
    counted = [
        (code(each.name + "_total" * (each.type == "counter")), each.documentation, each.type)
        for each in REGISTRY.collect()
    ]
    return (
        f"{HEAD}\n## Routes\n\n{table(('route', 'does', 'body', 'answer'), routes)}\n\n"
        f"## Errors\n\nThe body of an error is a [Refusal](#refusal).\n\n"
        f"{table(('status', 'why', 'routes'), refused)}\n\n## Records\n\n{records}\n\n"
        f"{METRICS}\n{table(('metric', 'meaning', 'type'), counted)}\n"
    )


def content(part: Json | None) -> str:
    return type_of(part["content"]["application/json"]["schema"]) if part else ""


def fields(kind: Json) -> Iterator[tuple[str, str, str, str]]:
    for name, field in kind["properties"].items():
        shown = code(json.dumps(field["default"])) if field.get("default") is not None else ""
        default = "required" if name in kind.get("required", ()) else shown
        yield code(name), type_of(field), default, field.get("description", "")


def type_of(schema: Json) -> str:
    """A JSON schema in words; a record is a link to its table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if several := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(type_of(each) for each in several)
    if schema.get("type") == "array":
        most = f", {schema['maxItems']} at most" if "maxItems" in schema else ""
        return f"list of ({type_of(schema.get('items', {}))}){most}"
    if "const" in schema or "enum" in schema:
        return " or ".join(code(json.dumps(each)) for each in schema.get("enum", [schema.get("const")]))
    return schema.get("type", "any")
