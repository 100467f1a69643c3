"""A linear map whose weights are blurred by noise from outside: exploration that the network learns to dose."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """weight = mean + sigma * outer(f(noise of outputs), f(noise of inputs)), f(x) = sign(x) sqrt(|x|).

    Reads `num_noise` standard normals of the network's noise vector, from place `first_noise` on. Without a vector it is the mean.
    """

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float, first_noise: int) -> None:
        super().__init__()
        self.num_inputs, self.num_noise, self.first_noise = num_inputs, num_inputs + num_outputs, first_noise
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            return F.linear(x, self.weight, self.bias)
        mine = noise[self.first_noise : self.first_noise + self.num_noise]
        mine = mine.sign() * mine.abs().sqrt()
        of_inputs, of_outputs = mine[: self.num_inputs], mine[self.num_inputs :]
        weight = self.weight + self.weight_sigma * torch.outer(of_outputs, of_inputs)
        return F.linear(x, weight, self.bias + self.bias_sigma * of_outputs)
