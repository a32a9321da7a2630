"""Rows of ``evaluations.jsonl``, by the actions that were evaluated: greedy or sampled."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def mode_of(row: Row) -> str:
    """The actions of a row, or of ``best`` in the status: "greedy" or "sampled". Old runs were greedy."""
    return "sampled" if row.get("mode") == "sampled" else "greedy"


def in_mode(row: Row, mode: str) -> Row | None:
    """The figures of a row with these actions; None if they were not measured."""
    if mode_of(row) == mode:
        return row
    other = row.get(mode)  # of eval_mode "both"
    if not isinstance(other, dict):
        return None
    return {name: row[name] for name in ("steps", "seconds") if name in row} | other
