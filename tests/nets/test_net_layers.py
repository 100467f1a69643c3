"""Layers and heads: noise, dueling, fractions, norms and first weights, against numbers worked out by hand or by loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from freewheel.nets.layers import activation, dense, initialize, norm
from freewheel.nets.value_net import FractionEmbedding, NoisyLinear, QHead


def test_noise_blurs_weights_as_factors() -> None:
    layer = NoisyLinear(2, 1, sigma=0.5, first_noise=3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(0.5)
    noise = torch.tensor([99.0, 99.0, 99.0, 4.0, -9.0, 0.25, 99.0])  # f: 2, -3 for the inputs, 0.5 for the output
    s = 0.5 / math.sqrt(2)
    x = torch.tensor([[1.0, 10.0]])
    want = (1 + s * 0.5 * 2) * 1 + (2 + s * 0.5 * -3) * 10 + 0.5 + s * 0.5
    assert layer.num_noise == 3
    assert layer(x, noise).item() == pytest.approx(want, rel=1e-6)
    assert layer(x).item() == pytest.approx(21.5)


def test_noise_keeps_the_mean_and_has_the_variance_that_sigma_says() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(3, 2, sigma=0.5, first_noise=0)
    x = torch.tensor([[1.0, -2.0, 0.5]])
    draws = torch.randn(20_000, layer.num_noise)
    out = torch.func.vmap(lambda noise: layer(x, noise)[0])(draws)
    # f(x)^2 = |x|, of mean m = sqrt(2/pi): each weight's noise has variance sigma^2 m^2, the bias's sigma^2 m.
    m, s = math.sqrt(2 / math.pi), 0.5 / math.sqrt(3)
    variance = s**2 * (m**2 * (1 + 4 + 0.25) + m)
    assert torch.allclose(out.mean(0), layer(x)[0], atol=4 * math.sqrt(variance / len(draws)))
    assert out.var(0).tolist() == pytest.approx([variance] * 2, rel=0.06)


def test_each_noisy_layer_reads_its_own_part() -> None:
    head = QHead(4, 3, 2, dueling=True, noisy_sigma=0.5)
    assert head.num_noise == (4 + 6) + (4 + 2)
    spans = [range(m.first_noise, m.first_noise + m.num_noise) for m in head.modules() if isinstance(m, NoisyLinear)]
    assert sorted(place for span in spans for place in span) == list(range(head.num_noise))
    assert QHead(4, 3).num_noise == 0


@pytest.mark.parametrize("num_values", [None, 5])
def test_dueling_is_the_value_and_advantages_of_mean_zero(num_values: int | None) -> None:
    torch.manual_seed(0)
    head = QHead(4, 3, num_values, dueling=True)
    features = torch.randn(7, 4)
    out = head(features)
    assert head.value is not None
    value, advantage = head.value(features), head.advantage(features)
    for b in range(7):
        for k in range(num_values or 1):
            of_actions = [advantage[b, a * (num_values or 1) + k].item() for a in range(3)]
            for a in range(3):
                got = out[b, a] if num_values is None else out[b, a, k]
                want = value[b, k].item() + of_actions[a] - sum(of_actions) / 3
                assert got.item() == pytest.approx(want, abs=1e-5)
    # So an advantage raised for all actions alike changes nothing, and the mean over actions is the value.
    with torch.no_grad():
        head.advantage.bias += 3.0
    assert torch.allclose(head(features), out, atol=1e-5)
    assert torch.allclose(out.mean(1).reshape(7, -1), value, atol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_heads_give_the_shape_of_their_values(dueling: bool) -> None:
    features = torch.randn(2, 4)
    assert QHead(4, 3, dueling=dueling)(features).shape == (2, 3)
    assert QHead(4, 3, 1, dueling=dueling)(features).shape == (2, 3, 1)
    assert QHead(4, 3, 5, dueling=dueling)(features).shape == (2, 3, 5)
    assert QHead(4, 3, dueling=dueling)(torch.randn(2, 6, 4)).shape == (2, 6, 3)


def test_fractions_are_embedded_as_cosines() -> None:
    torch.manual_seed(0)
    embedding = FractionEmbedding(3, 4)
    features, taus = torch.randn(2, 3), torch.rand(2, 5)
    weight, bias = embedding.linear.weight.tolist(), embedding.linear.bias.tolist()
    out = embedding(features, taus)
    assert out.shape == (2, 5, 3)
    for b in range(2):
        for n in range(5):
            for f in range(3):
                waves = sum(math.cos(math.pi * i * taus[b, n].item()) * weight[f][i] for i in range(4))
                want = features[b, f].item() * max(0.0, waves + bias[f])
                assert out[b, n, f].item() == pytest.approx(want, abs=1e-5)


def test_batch_norm_goes_by_the_batch_in_training_and_by_its_statistics_after() -> None:
    torch.manual_seed(0)
    layers, _ = dense(2, (8,), "relu", "batch")
    x = torch.randn(64, 2) * 5 + 3
    trained = layers.train()(x)
    mean, var = layers.linear0(x).mean(0), layers.linear0(x).var(0)
    assert isinstance(layers.norm0, nn.BatchNorm1d)
    assert torch.allclose(layers.norm0.running_mean, 0.1 * mean, atol=1e-5)
    assert torch.allclose(layers.norm0.running_var, 0.9 + 0.1 * var, atol=1e-5)
    used = layers.eval()(x)
    assert not torch.allclose(trained, used)
    assert torch.allclose(used[:1], layers(x[:1]))


def test_norms_and_activations_by_name() -> None:
    assert norm("none", 4) is None
    assert isinstance(norm("layer", 4), nn.LayerNorm)
    assert isinstance(norm("batch", 4, is_image=True), nn.BatchNorm2d)
    over_image = norm("layer", 4, is_image=True)
    assert over_image is not None
    images = torch.randn(2, 4, 5, 5) * 3 + 1
    assert torch.allclose(over_image(images), nn.functional.layer_norm(images, (4, 5, 5)), atol=1e-5)
    assert activation("tanh")(torch.tensor(0.5)).item() == pytest.approx(math.tanh(0.5))
    names = [name for name, _ in dense(4, (8, 8), "relu", "layer")[0].named_parameters()]
    assert names[:3] == ["linear0.weight", "linear0.bias", "norm0.weight"]


def test_first_weights() -> None:
    torch.manual_seed(0)
    layers, size = dense(200, (400,), "relu", "none")
    assert size == 400
    initialize(layers, "he", "relu")
    assert layers.linear0.weight.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.05)
    assert not layers.linear0.bias.any()
    initialize(layers, "orthogonal", "tanh")
    gram = layers.linear0.weight.T @ layers.linear0.weight
    assert torch.allclose(gram, torch.eye(200) * (5 / 3) ** 2, atol=1e-4)
    initialize(layers, "xavier", "relu")
    assert layers.linear0.weight.abs().max().item() <= math.sqrt(2) * math.sqrt(6 / 600) + 1e-6
    before = layers.linear0.weight.clone()
    initialize(layers, "default", "relu")
    assert torch.equal(layers.linear0.weight, before)
