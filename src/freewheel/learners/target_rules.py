"""How target networks follow: which part of the vectors each rule moves, and how far after so many updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freewheel.contracts import ParamGroup, TargetRule
from freewheel.nets.flat import Flat

Rules = list[tuple[slice, TargetRule]]


def rules_of(flat: Flat, slices: Sequence[slice], groups: Sequence[ParamGroup]) -> Rules:
    """What each rule moves: the parameters of its group, and the buffers of the same modules."""
    if len(groups) == 1:
        found = [(slice(0, flat.size), groups[0].target)]
    else:
        found = [(own, group.target) for own, group in zip(slices, groups, strict=True)]
        at = flat.num_params
        for name, shape in flat.buffer_shapes.items():
            rule = next((group.target for group in groups if name.startswith(group.prefix)), None)
            found.append((slice(at, at + shape.numel()), rule))
            at += shape.numel()
    return [(own, rule) for own, rule in found if rule is not None]


def move_within(rules: Rules, updates: int) -> bool:
    """Whether a target moves within a call of so many updates, not only at its end."""
    return any(rule.every_updates % updates or rule.refresh_updates % updates for _, rule in rules)


def share_at(rule: TargetRule, updates: Any) -> Any:
    """How far the target moves towards the weights after so many updates: a number, or a tensor where `updates` is one."""
    share = (updates % rule.every_updates == 0) * rule.tau
    if rule.refresh_updates:
        is_copied = 1.0 * (updates % rule.refresh_updates == 0)
        share = is_copied + (1.0 - is_copied) * share
    return share
