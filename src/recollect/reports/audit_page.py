"""The result of an audit as one HTML page, without a script."""

from __future__ import annotations

import base64
import hashlib
from html import escape

from recollect.audit.results import PARTS, Check, Verification
from recollect.base.formatting import tiny

STYLE = """
:root { color-scheme: light dark; --ok: light-dark(#1d6b41, #7fd6a5); --bad: light-dark(#a3261c, #ff9c92);
  --warn: light-dark(#964b00, #f5b26a); --muted: light-dark(#5a6068, #a0a6b0);
  --rule: light-dark(#e1e3df, #2e333b); }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; background: light-dark(#fcfcfb, #131519);
  color: light-dark(#1a1d21, #e9eaec); font: 400 1rem/1.5 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1rem; margin: 2rem 0 0.3rem; }
.note { color: var(--muted); font-size: 0.875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; table-layout: fixed; min-width: 46rem; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 0.6rem 0.4rem 0;
  border-top: 1px solid var(--rule); overflow-wrap: break-word; }
thead th { color: var(--muted); font-weight: 400; }
col.check { width: 13%; } col.verdict { width: 8%; } col.number { width: 9%; } col.found { width: 31%; }
td.number { font-variant-numeric: tabular-nums; }
.ok { color: var(--ok); } .failed { color: var(--bad); font-weight: 600; } .warning { color: var(--warn); }
.skipped, .not { color: var(--muted); }
pre { white-space: pre-wrap; }
"""
HEAD = ("check", "verdict", "measured", "tolerance", "finding", "likely cause", "fix")


def render(result: Verification) -> str:
    """The page: one table for each part. It holds no script and loads nothing."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"Audit of {result.env}"
    parts = [_part(title, checks) for part, title in PARTS.items() if (checks := _of(result, part))]
    notes = f'<p class="note">Reduced to save time: {escape(", ".join(result.notes))}</p>'
    verdict = "ok" if result.ok else "failed"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="{verdict}">{escape(result.summary)}</p>\n'
        f"{notes if result.notes else ''}{''.join(parts)}</body>\n</html>\n"
    )


def _of(result: Verification, part: str) -> list[Check]:
    return [check for check in result.checks if check.part == part]


def _part(title: str, checks: list[Check]) -> str:
    columns = "".join(f'<col class="{name}">' for name in ("check", "verdict", "number", "number", "found"))
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    rows = "".join(map(_row, checks))
    return (
        f'<h2>{escape(title)}</h2>\n<div class="scroll"><table><colgroup>{columns}<col><col></colgroup>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )


def _row(check: Check) -> str:
    kind = check.status.split()[0]
    name = f"{check.name} ({check.group})" if check.group else check.name
    more = [text for text in check.advice if not text.startswith(("Likely cause: ", "Fix: "))]
    found = escape(check.found) + "".join(f"<br>{escape(text)}" for text in more)
    found += f"<pre>{escape(check.frames)}</pre>" if check.frames else ""
    return (
        f'<tr><th scope="row">{escape(name)}</th><td class="{kind}">{escape(check.status)}</td>'
        f'<td class="number">{_number(check.measured)}</td><td class="number">{_number(check.tolerance)}</td>'
        f"<td>{found}</td><td>{escape(check.cause)}</td><td>{escape(check.fix)}</td></tr>\n"
    )


def _number(x: float | None) -> str:
    return "" if x is None else tiny(x)
