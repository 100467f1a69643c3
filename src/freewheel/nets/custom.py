"""The user's own networks: imported, made and checked before training starts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.imports import find_name
from freewheel.nets.inputs import example
from freewheel.spec import Space

Body = str | nn.Module | Callable[..., nn.Module]
# Prefix of net.body for a network that was given as a Python object.
GIVEN = "given:"


def given_body(body: Any, name: str) -> Any:
    """The network that was given in Python, or else the name in net.body."""
    given = name if body is None else body
    if isinstance(given, str) and given.startswith(GIVEN):
        raise ConfigError(
            f"this run's network was given as an object ({given.removeprefix(GIVEN)}), and a run stores weights but no code. "
            "Give it again: body=... in Python. A network named by --net.body module:name is imported again."
        )
    return given


def make_body(body: Body, obs_space: Space, stack: int) -> nn.Module:
    """A module from what the user gave: a module, a function that makes one, or "package.module:name" of either.

    A module is copied: the user's does not change, and two networks of a run never share weights.
    """
    who = f"net.body={body!r}" if isinstance(body, str) else f"the network {getattr(body, '__name__', body)}"
    found = _imported(body) if isinstance(body, str) else body
    made = copy.deepcopy(found) if isinstance(found, nn.Module) else _called(who, found, obs_space, stack)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{who} gave {type(made).__name__}; a network is a torch.nn.Module.")
    return made


def output_of(body: nn.Module, obs_space: Space, stack: int) -> tuple[int, ...]:
    """The shape of its output for one observation, found by running it once in evaluation mode."""
    who = f"the network {type(body).__name__}"
    was_training = body.training
    batch: Any = example(obs_space, stack)
    try:
        with torch.no_grad():
            out: Any = body.eval()(batch)
    except Exception as error:
        is_dict = isinstance(batch, dict)
        shape = {name: tuple(part.shape) for name, part in batch.items()} if is_dict else tuple(batch.shape)
        raise ConfigError(
            f"{who} failed on two observations of {obs_space}, as a batch of shape {shape}: {error} "
            "It gets raw observations: bytes stay bytes, and with world.stack > 1 frames come after the batch dimension."
        ) from error
    finally:
        body.train(was_training)
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim < 1 or out.shape[0] != 2:
        gave = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(f"{who} gave {gave} for a batch of 2 observations; it should give floats, one line for each.")
    for name, parameter in body.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"{who} has parameter {name} of {parameter.dtype}; weights are float32. Call .float() on it."
            )
        if not parameter.requires_grad:
            raise ConfigError(
                f"{who} has parameter {name} with requires_grad=False, and all parameters of a policy learn. Make it a buffer."
            )
    return tuple(out.shape[1:])


def _imported(where: str) -> Any:
    module_name, _, name = where.partition(":")
    if not module_name or not name:
        raise ConfigError(
            f"net.body={where!r} is neither auto, mlp, cnn, impala nor an import string like 'my_nets:Body'."
        )
    return find_name(where, "Name an nn.Module, or a function that makes one from the observation space.")


def _called(who: str, make: Any, obs_space: Space, stack: int) -> Any:
    if not callable(make):
        raise ConfigError(f"{who} is {type(make).__name__}; give a torch.nn.Module, or a function that makes one.")
    try:
        more = {"stack": stack} if "stack" in inspect.signature(make).parameters else {}
        return make(obs_space, **more)
    except Exception as error:
        raise ConfigError(
            f"{who} failed to build from {obs_space} (stack={stack}): {type(error).__name__}: {error} "
            "It is called with the observation space, and with stack= if it has that parameter."
        ) from error
