"""Figures of a run as a few plain lines."""

from __future__ import annotations

from typing import Any


def table(result: dict[str, Any]) -> str:
    def shown(name: str) -> str:
        value = result.get(name)
        return "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"

    lines = [
        f"run             {result['run']}",
        f"steps           {shown('steps')} in {shown('seconds')} s ({shown('steps_per_s')}/s)",
        f"updates         {shown('updates')} ({shown('updates_per_s')}/s), ratio {shown('ratio')}",
        f"return          {shown('return_mean')} (mean of the last 100 training episodes)",
    ]
    if result.get("eval_return_mean") is not None:
        how = "drawn actions" if result.get("eval_sampled") else "greedy"
        lines.append(f"evaluation      {shown('eval_return_mean')} ({how})")
    return "\n".join(lines)
