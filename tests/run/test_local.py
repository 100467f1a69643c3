"""The local runtime's corners: what a learner that is started anew is told, waits that end, drops that are counted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import freewheel
from freewheel.config import assemble
from freewheel.errors import ConfigError
from freewheel.learners.forms import Form
from freewheel.learners.precision import tried
from freewheel.learners.ratio import STEPS, STOP
from freewheel.report.phases import COUNTERS
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run import channel as channels
from freewheel.run import local as locals_
from freewheel.run import pinning
from freewheel.run import supervisor as supervisors
from freewheel.run.acting import Acting
from freewheel.run.callback import Moment
from freewheel.run.channel import Channel, pair
from freewheel.run.job import FIRST_ACTOR, Job
from freewheel.run.layout import choose
from freewheel.run.learning import Learning
from freewheel.run.local import Local, plan
from freewheel.run.member import Member
from freewheel.run.state import REPLAY_FILE
from freewheel.run.supervisor import Supervisor

TINY: dict[str, Any] = {
    "runtime": "local",
    "world.lanes": 4,
    "net.hidden": (16,),
    "replay.rows": 2000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 16,
    "learner.ratio": 8.0,
    "learner.workers": 1,
    "eval_episodes": 0,
    "log.tensorboard": False,
}


def job(**settings: Any) -> Job:
    config = assemble("CartPole-v1", {**TINY, **settings}, "none")
    return plan(config, "CartPole-v1", None, None, choose(config, 2))


def train(tmp_path: Path, env: Any = "CartPole-v1", **settings: Any) -> freewheel.Run:
    steps = settings.pop("steps", 60)
    given = {**TINY, "log.folder": str(tmp_path), **settings}
    return freewheel.train(env, steps=steps, preset="none", settings=given)


@pytest.mark.parametrize(
    ("heard", "adopt"),
    [({"package": ["/one.pt2", "/two.pt2"]}, ["/one.pt2", "/two.pt2"]), ({"compiler_ended": 3, "why": "no g++"}, None)],
)
def test_a_learner_that_is_started_anew_is_told_what_came_of_compiling(
    heard: dict[str, Any], adopt: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sink([]) as sink, Progress(10, is_quiet=True) as progress:
        local = Local(job(), sink, progress, [], Moment())
        told: list[Any] = []
        ahead: list[str] = []
        learner, compiler = local._supervisor.learner, local._supervisor.compiler
        monkeypatch.setattr(local._supervisor, "tell", lambda member, message: told.append((member, message)))
        monkeypatch.setattr(local._supervisor, "go_ahead", lambda package: ahead.append(package))
        local._hear(learner, {"stack": 5})
        assert told == []
        local._hear(compiler, heard)
        local._hear(local._supervisor.actors[0], {"stack": 5})
        local._hear(learner, {"stack": 5})
        assert told == [(learner, {"adopt": adopt})] * 2
        assert ahead == (["/two.pt2"] if adopt else [])
        local._supervisor.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_ahead_needs_a_core_that_the_learner_leaves(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locals_, "num_cores", lambda: 2)
    before = torch.get_num_threads()
    try:
        assert (job(**{"learner.threads": threads}).ahead is None) == (threads == 2)
    finally:
        torch.set_num_threads(before)


def test_a_run_that_ends_before_its_update_is_compiled_does_not_wait_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, **{"learner.compile": "on"})
    assert 60 <= run.result["steps"] < 70
    assert "compiled updates" not in capfd.readouterr().err


def test_what_a_process_takes_to_begin_is_part_of_its_account() -> None:
    given = job()
    ours, theirs = pair()
    page = given.ledger.page(FIRST_ACTOR)
    with ours, theirs:
        page.start(page.phase("start"))  # as the supervisor does when it asks for one
        time.sleep(0.03)
        Acting(given, 0, 0, Channel(theirs))
        page.enter(page.phase("stop"))
    assert given.ledger.snapshot(FIRST_ACTOR).phases_ns["start"] >= 30e6


def test_an_actor_takes_weights_again_that_were_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = job()
    ours, theirs = pair()
    with ours, theirs:
        acting = Acting(given, 0, 0, Channel(theirs))
        acting.vector = torch.zeros(given.board.num_bytes // 4)
        given.board.publish(acting.vector + 7)
        fetch, answers = given.board.fetch, [None, None]

        def overtaken(vector: torch.Tensor, newer_than: int | None = None) -> int | None:
            if answers:
                vector.fill_(-1.0)  # half of one version and half of another
                return answers.pop()
            return fetch(vector)

        monkeypatch.setattr(given.board, "fetch", overtaken)
        acting._fetch()
        assert acting.version == 1
        assert bool((acting.vector == 7).all())


def test_messages_that_nobody_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MOST_WAITING", 2)
    given = job()
    ours, theirs = pair()
    with ours, theirs:
        channel = Channel(theirs)
        acting = Acting(given, 0, 0, channel)
        sent = 0
        while channel.num_dropped < 3:  # the socket's buffer takes some hundred
            channel.send({"text": "x" * 10_000})
            sent += 1
            assert sent < 10_000
        acting._report()
        acting._report()
    assert given.ledger.snapshot(FIRST_ACTOR).counters[COUNTERS[COUNTERS.index("dropped_messages")]] == 3


def fixed() -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A vector env that is made for four lanes and no other number."""
    return gymnasium.make_vec("CartPole-v1", 4, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT)


def test_a_vector_env_of_a_fixed_number_is_taken_as_it_is(tmp_path: Path) -> None:
    run = train(tmp_path, fixed, steps=200, **{"world.kind": "vector", "local.actors": 1, "learner.compile": "off"})
    assert run.result["runtime"] == "local"
    assert run.result["updates"] > 0


def test_a_slack_has_no_effect_on_free_actors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.slack_steps.*no effect"):
        train(tmp_path, **{"local.free": True, "local.slack_steps": 50})


def test_a_process_ahead_of_eager_updates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.ahead.*no effect: learner\.compile=off"):
        train(tmp_path, **{"learner.compile": "off", "local.ahead": False})


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_precision_that_was_asked_for_is_told_of(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freewheel.learners.precision.choose", lambda asked, device: ("fp32", f"{asked} dies here"))
    given = {"runtime": runtime, "learner.precision": "bf16"}
    given = {**TINY, **given, "log.folder": str(tmp_path), "learner.compile": "off"}
    if runtime == "sequential":
        del given["learner.workers"]
    freewheel.train("CartPole-v1", steps=40, preset="none", settings=given)
    assert "precision=fp32: bf16 dies here." in capsys.readouterr().err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two cores")
def test_with_pin_on_the_learner_and_the_others_keep_to_cores_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: dict[int, set[int]] = {}
    monkeypatch.setattr(pinning, "_bind", bound.__setitem__)
    train(tmp_path, steps=1_500, **{"local.pin": "on"})  # long enough to be looked at while the actor lives
    masks = {frozenset(cores) for cores in bound.values()}
    assert len(bound) >= 2
    assert len(masks) == 2
    assert min(len(mask) for mask in masks) == 1
    assert sorted(core for mask in masks for core in mask) == sorted(os.sched_getaffinity(0))


def test_a_learner_sleeps_while_its_update_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are due, and the package comes after a second: the learner may not look around for it all the time."""
    made = job(**{"learner.compile": "on"})
    ours, theirs = pair()
    with ours, theirs:
        supervisor, channel = Channel(ours), Channel(theirs)
        learning = Learning(made, 0, channel)
        made.counts.add(STEPS, 500)
        num_waits = 0
        wait = channel.wait

        def counted(timeout_s: float) -> bool:
            nonlocal num_waits
            num_waits += 1
            if num_waits == 3:
                supervisor.send({"adopt": None})
            elif num_waits == 1:
                assert wait(0.01) is False  # nobody says anything: it would have slept
            return wait(timeout_s if num_waits == 3 else 0.0)

        def called() -> None:
            made.counts.add(STOP, 2)
            made.governor().add_updates(made.governor().due())

        monkeypatch.setattr(channel, "wait", counted)
        monkeypatch.setattr(learning, "_call", called)
        learning._train()
        learning._close()
    assert num_waits == 3
    assert made.governor().updates > 0


def test_a_hurried_end_saves_the_weights_before_the_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = job(**{"checkpoint.replay": True})
    made.checkpoints = tmp_path
    ours, theirs = pair()
    with ours, theirs:
        learning = Learning(made, 0, Channel(theirs))
        saved: list[list[str]] = []
        monkeypatch.setattr(learning, "_train", lambda: made.counts.add(STOP, 2))
        monkeypatch.setattr(learning, "_save_now", lambda files=None: saved.append(list(files or {})))
        learning.run()
    assert saved == [[], [REPLAY_FILE]]


def test_more_workers_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locals_, "pick_device", lambda asked, setting="": torch.device("mps"))
    monkeypatch.setattr(locals_.form_trial, "choose", lambda *_: (Form(), "", ""))
    with pytest.raises(ConfigError, match=r"learner\.workers=2 share updates on .* and learner\.device=mps"):
        job(**{"learner.workers": 2})


def test_a_process_ahead_that_cannot_live_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    supervisor = Supervisor(job(), notes.append, lambda member, message: None)
    try:
        started: list[Member] = []
        monkeypatch.setattr(supervisor, "_start", started.append)
        for _ in range(5):
            supervisor._died(supervisor.ahead, -9)
        assert supervisor.failed is None
        assert started == [supervisor.ahead] * 3
        assert notes[-1] == "ahead ended (killed by SIGKILL); training goes on without it."
        supervisor._died(supervisor.actors[0], -9)
        assert started[-1] is supervisor.actors[0]
    finally:
        supervisor.close()


def test_a_worker_that_is_late_is_replaced_whether_it_lives_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    supervisor = Supervisor(job(), notes.append, lambda member, message: None)
    try:
        hung, gone = supervisor.workers = [Member("worker", i, None) for i in (1, 2)]
        done: list[tuple[str, Member]] = []
        monkeypatch.setattr(Member, "is_alive", property(lambda member: member is hung))
        monkeypatch.setattr(Member, "kill", lambda member: done.append(("kill", member)))
        monkeypatch.setattr(supervisor, "_start", lambda member: done.append(("start", member)))
        supervisor.replace_late(1)
        supervisor.replace_late(2)
        assert done == [("kill", hung), ("start", gone)]
        assert notes[0].startswith("worker-1 gave no gradient in time and is replaced. Its stack:")
    finally:
        monkeypatch.undo()
        supervisor.close()


def test_a_compiler_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    supervisor = Supervisor(job(), notes.append, lambda member, message: None)
    try:
        compiler = supervisor.compiler
        killed: list[str] = []
        monkeypatch.setattr(Member, "is_alive", property(lambda member: member is compiler))
        monkeypatch.setattr(Member, "is_stopped", property(lambda member: False))
        monkeypatch.setattr(compiler, "kill", lambda: killed.append("compiler"))
        compiler.started_s = 100.0
        supervisor._watch(compiler, 100.0 + supervisors.COMPILE_S)
        assert killed == []
        supervisor._watch(compiler, 101.0 + supervisors.COMPILE_S)
        assert killed == ["compiler"]
        assert "compiler has taken more than 900 s" in notes[-1]
    finally:
        monkeypatch.undo()
        supervisor.close()


def test_every_second_of_every_role_is_accounted_for(tmp_path: Path) -> None:
    run = train(tmp_path, steps=3000, **{"learner.compile": "off"})
    roles = run.result["account"]["roles"]
    assert set(roles) >= {"learner", "actor-0", "supervisor"}
    for name, role in roles.items():
        assert 0.98 <= role["closed"] <= 1.02, f"{name}: {role}"


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_actors_of_fewer_bits_say_what_they_give(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if precision == "bf16" and "why" in (found := tried("bf16", "cpu")):
        pytest.skip(found["why"])
    given = {"local.act_precision": precision, "world.stack": 2, "learner.compile": "off", "learner.ratio": 1.0}
    run = train(tmp_path, "freewheel/Catch-v0", steps=300, **given)
    assert run.result["updates"] > 0
    assert len(run.episodes) > 0
    assert f"local.act_precision={precision}: " in capsys.readouterr().err


def test_acting_in_bf16_is_refused_where_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "freewheel.learners.precision.tried", lambda name, device: {"why": "the probe died with SIGILL"}
    )
    with pytest.raises(
        ConfigError, match=r"act_precision=bf16 does not run on this machine \(the probe died with SIGILL"
    ):
        job(**{"local.act_precision": "bf16"})


def test_numbers_of_a_pool_are_refused_where_auto_takes_none(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"world\.min_ready was given, but has no effect: world\.kind=auto is no pool here"
    ):
        train(tmp_path, **{"world.min_ready": 2})
