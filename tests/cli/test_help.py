"""--help shows the settings of the algorithm alone; others are refused, with the reason."""

from __future__ import annotations

import pytest

from freewheel.cli.main import main
from freewheel.config import assemble
from freewheel.doctor.trial import try_apart


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main(["train", "CartPole-v1", *words, "--help"])
    return capsys.readouterr().out


def test_help_is_that_of_the_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    dqn, ppo = shown(capsys), shown(capsys, "--algo", "ppo")
    for flag in ("--q.gamma", "--replay.alpha", "--explore.ladder-base", "--learner.ratio"):
        assert flag in dqn
        assert flag not in ppo
    for flag in ("--ppo.clip", "--rollout.rows", "--net.shared"):
        assert flag in ppo
        assert flag not in dqn
    for flag in ("--q.num-taus", "--q.num-atoms"):  # of other algorithms with the same part
        assert flag not in dqn


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algo", "ppo", "--q.gamma", "0.9"], "it belongs to c51, dqn, iqn, qrdqn, rainbow"),
        (["--ppo.clip", "0.1"], "it belongs to appo, ppo"),
        (["--q.num-taus", "8"], "it belongs to iqn"),
        (["--learner.lrr", "1e-3"], "Did you mean --learner.lr"),
        (["--batch-size", "32"], "Did you mean --learner.batch_size"),
    ],
)
def test_what_is_not_its_own_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--runtime", "sequential", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_doctor_fits_the_network_of_ppo() -> None:
    given = {"algo": "ppo", "runtime": "sequential"}
    facts = {fact.name: fact for fact in try_apart(assemble("Pendulum-v1", given, "none"), 60.0)}
    assert [fact.shown for fact in facts.values() if fact.state == "problem"] == []
    assert facts["network"].shown.endswith("weights for ppo")
    assert "rollout" in facts
    assert "replay" not in facts
