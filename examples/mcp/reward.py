"""Rewards the right value, and a tenth for an answer that asked the server."""


def reward(record) -> float:
    if str(record.output).strip() == record.task["row"]["answer"]:
        return 1.0
    return 0.1 if any(name == "execute_sql" for name, _ in record.calls) else 0.0
