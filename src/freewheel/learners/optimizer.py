"""The optimiser as a function of flat vectors: clip, Adam, the scale that keeps float16 gradients from vanishing, the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from freewheel.config import LearnerConfig
from freewheel.errors import Diverged

# Keeps a gradient of norm 0 from being divided by it.
CLIP_EPS = 1e-6
# Powers of two, which change no digit of a number; at 1 the gradient is as the loss made it.
FIRST_SCALE, LEAST_SCALE, MOST_SCALE = 2.0**16, 1.0, 2.0**24
# Numbers that an eager step works on at a time: what lies between its operations stays in the cache.
PIECE = 1 << 16
# Bad updates in a row after which training stops.
MOST_BAD = 10
# Good updates in a row after which twice the scale is tried.
GROW_AFTER = 2000


@dataclass
class State:
    """Everything that an update changes, in place."""

    weights: Tensor  # parameters, then buffers
    target: Tensor
    mean: Tensor  # Adam's, of the gradient
    square: Tensor
    decay: Tensor  # beta1 and beta2 to the power of the updates carried out: for Adam's bias correction
    updates: Tensor  # updates asked for, the skipped ones too, int64
    bad_in_row: Tensor  # updates skipped since the last that was carried out, int64
    scale: Tensor  # fp16: factor on the loss while its gradient is computed
    good_in_row: Tensor  # fp16: updates carried out since the scale changed or one was skipped, int64

    @classmethod
    def around(cls, weights: Tensor, num_params: int, num_groups: int = 1, has_target: bool = True) -> State:
        """Of a training that begins with these weights, which are not copied. With several groups counts have a line for each."""
        each = () if num_groups == 1 else (num_groups,)
        zeros = torch.zeros(num_params, device=weights.device)
        count = torch.zeros(each, dtype=torch.int64, device=weights.device)
        return cls(
            weights=weights,
            target=weights.clone() if has_target else torch.zeros(1, device=weights.device),
            mean=zeros,
            square=zeros.clone(),
            decay=torch.ones((*each, 2), device=weights.device),
            updates=count,
            bad_in_row=count.clone(),
            scale=torch.full(each, FIRST_SCALE, device=weights.device),
            good_in_row=count.clone(),
        )

    def of_group(self, index: int, params: slice) -> State:
        """The same memory, as one of several groups sees it."""
        counts = (self.decay, self.updates, self.bad_in_row, self.scale, self.good_in_row)
        decay, updates, bad, scale, good = (tensor[index] for tensor in counts)
        return State(
            self.weights[params], self.target, self.mean[params], self.square[params], decay, updates, bad, scale, good
        )


class Adam:
    """Steps the first `num_params` of the weights, in place; `is_scaled` gradients are of loss * scale."""

    def __init__(
        self,
        config: LearnerConfig,
        num_params: int,
        device: torch.device,
        is_scaled: bool,
        clip_norm: float,
        decays: bool = True,
    ) -> None:
        self.config, self.num_params, self.is_scaled, self.clip_norm = config, num_params, is_scaled, clip_norm
        self._decays = decays and config.optimizer == "adamw"
        self._betas = torch.tensor([config.beta1, config.beta2], device=device)

    def __call__(self, state: State, lr: Tensor, gradient: Tensor, loss: Tensor, piece: int = 0) -> Tensor:
        """The norm before clipping. Masked: where loss or gradient is not finite every factor is 0 and nothing changes.

        With a `piece` the numbers are stepped so many at a time, else all at once, as a compiled graph wants it.
        """
        config = self.config
        if self.is_scaled:  # before the norm: what is clipped is the true gradient
            gradient = gradient / state.scale
        norm: Tensor = torch.linalg.vector_norm(gradient)
        is_good = torch.isfinite(norm + loss)
        good = is_good.float()
        state.updates.add_(1)
        state.bad_in_row.add_(self._counts(state, norm, loss)).mul_(~is_good)
        if self.is_scaled:
            _rescale(state, is_good, torch.isfinite(loss))
        state.decay.mul_(torch.where(is_good, self._betas, 1.0))
        # Before the first good update the means are 0: the guard only keeps 0/0 out.
        mean_share, square_share = (1 - state.decay).clamp(min=1e-12)
        clip = (self.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0) if self.clip_norm > 0 else torch.ones_like(norm)
        # Stacked, so that a compiled graph works these out once and not for every weight.
        rate = lr * good
        factors = torch.stack(
            [
                clip,
                good * (1 - config.beta1),
                good * (1 - config.beta2),
                rate / mean_share,
                square_share.rsqrt(),
                1 - rate * config.weight_decay,
            ]
        )
        vectors = state.weights[: self.num_params], state.mean, state.square, gradient
        if not 0 < piece < self.num_params:
            self._step(*vectors, is_good, factors)
            return norm
        pieces = [torch.split(vector, piece) for vector in vectors]
        for params, mean, square, part in zip(*pieces, strict=True):
            self._step(params, mean, square, part, is_good, factors)
        return norm

    def _counts(self, state: State, norm: Tensor, loss: Tensor) -> Tensor | int:
        """Whether a bad update counts as one: not while a smaller scale may cure it."""
        if not self.is_scaled:
            return 1
        return torch.isfinite(norm) | ~torch.isfinite(loss) | (state.scale <= LEAST_SCALE)

    def _step(
        self, params: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, is_good: Tensor, factors: Tensor
    ) -> None:
        clip, take_mean, take_square, rate, spread, keep = factors
        gradient = torch.where(is_good, gradient * clip, 0.0)
        mean.lerp_(gradient, take_mean)
        square.lerp_(gradient.square(), take_square)
        if self._decays:
            params.mul_(keep)
        params.sub_(rate * mean / (square.sqrt() * spread + self.config.adam_eps))


def lr_at(config: LearnerConfig, updates: int, share_done: float) -> float:
    """The learning rate after so many updates. `share_done` (0 to 1) is the part of the run's steps that is over."""
    rising = min((updates + 1) / config.lr_warmup_updates, 1.0) if config.lr_warmup_updates else 1.0
    if config.lr_schedule == "linear":
        course = 1.0 - share_done
    elif config.lr_schedule == "cosine":
        course = _cosine(share_done)
    elif config.lr_schedule == "restarts":
        since = max(updates - config.lr_warmup_updates, 0) % config.lr_restart_updates
        course = _cosine(since / config.lr_restart_updates)
    else:
        return config.lr * rising
    return config.lr * rising * (config.lr_end + (1.0 - config.lr_end) * course)


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))


def check_finite(state: State, updates: int, lr: float) -> None:
    bad = state.bad_in_row.item() if state.bad_in_row.ndim == 0 else int(state.bad_in_row.max())
    if bad >= MOST_BAD:
        raise Diverged(
            f"the loss or its gradient was not finite in {bad} updates in a row (update {updates:,}, learning rate {lr:.2g}). "
            "The weights are as before them. Lower learner.lr, set learner.clip_norm, or bound rewards with "
            "world.reward_scale or world.reward_clip."
        )


def _rescale(state: State, is_good: Tensor, is_loss_finite: Tensor) -> None:
    """Half the scale after a gradient that overflowed, twice after many that did not."""
    state.good_in_row.add_(1).mul_(is_good)
    grows = state.good_in_row >= GROW_AFTER
    overflowed = ~is_good & is_loss_finite  # a smaller scale does not help a loss that is not finite
    factor = torch.where(grows, 2.0, torch.where(overflowed, 0.5, 1.0))
    state.scale.mul_(factor).clamp_(LEAST_SCALE, MOST_SCALE)
    state.good_in_row.mul_(~grows)
