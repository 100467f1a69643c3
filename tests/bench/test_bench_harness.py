"""The mathematics of a case, and the shape of what is printed."""

import json

import pytest

from freewheel.bench.buffer_processes import NUMPY, BufferProgram
from freewheel.bench.harness import Case, interleave, progress, report, times_better
from freewheel.bench.replay import num_windows
from freewheel.bench.replay_plan import Stage, fit, plan
from freewheel.bench.settings import ReplaySettings, split_list
from freewheel.bench.worker.rows import parse_obs
from freewheel.errors import ConfigError


def test_times_are_better_when_lower_and_rates_when_higher() -> None:
    assert times_better("us", 20.0, [100.0, 60.0]) == 3.0
    assert times_better("bytes/row", 7.0, [56.0]) == 8.0
    assert times_better("rows/s", 600.0, [100.0, 200.0]) == 3.0
    assert times_better("us", 20.0, []) is None


def test_a_record_has_what_the_design_asks_for() -> None:
    case = Case("uniform/f32[8]/256", "us", ours=[30.0, 10.0, 20.0])
    case.peers = {"cpprb": [100.0, 90.0, 110.0], "sb3": [60.0, 50.0, 70.0]}
    case.baselines = {"numpy": [1.0, 1.0, 1.0]}
    record = case.record()
    assert record["case"] == "uniform/f32[8]/256"
    assert record["ours"] == 20.0
    assert record["unit"] == "us"
    assert record["peers"] == {"cpprb": 100.0, "sb3": 60.0}
    assert record["ratio"] == 3.0  # the best peer counts, the baseline does not
    assert record["baselines"] == {"numpy": 1.0}
    assert record["spread"]["ours"] == [10.0, 30.0]


def test_a_named_baseline_takes_the_place_of_peers() -> None:
    case = Case("per_cost/f32[171]/256", "us", ours=[40.0], baselines={"ours uniform": [30.0]})
    case.baseline = "ours uniform"
    record = case.record()
    assert record["ratio"] == 0.75
    assert record["peers"] == {}
    assert record["baseline"] == "ours uniform"


def test_without_a_peer_the_ratio_is_null() -> None:
    assert Case("uniform/f32[8]/256", "us", ours=[20.0]).record()["ratio"] is None


def test_rounds_take_everybody_in_turn() -> None:
    order = []

    def measure(who: str) -> float:
        order.append(who)
        return float(len(order))

    measures = {("case", who): (lambda who=who: measure(who)) for who in ("ours", "cpprb", "sb3")}
    with progress("test", 6) as bar:
        figures = interleave(measures, 2, bar)
    assert order == ["ours", "cpprb", "sb3", "ours", "cpprb", "sb3"]
    assert figures["case", "cpprb"] == [2.0, 5.0]


def test_the_last_line_is_the_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"cpu": "some", "cores": 2}
    case = Case("bytes/u8[4,84,84]", "bytes/row", ours=[7.0], peers={"sb3": [56.0]}, extra={"notes": ["[8] ran"]})
    report("replay", machine, [case], as_json=True)
    *above, last = capsys.readouterr().out.splitlines()
    assert any("bytes/u8[4,84,84]" in text for text in above)  # brackets are not taken for markup
    assert any("[8] ran" in text for text in above)
    line = json.loads(last)
    assert list(line) == ["bench", "machine", "cases"]
    assert line["cases"][0]["ratio"] == 8.0
    report("replay", machine, [case], as_json=False)
    assert "{" not in capsys.readouterr().out


def test_commas_inside_brackets_belong_to_the_shape() -> None:
    assert split_list("f32[8],u8[4,84,84], f32[171]") == ("f32[8]", "u8[4,84,84]", "f32[171]")


def test_the_default_run_has_all_operations() -> None:
    names = {stage.case(batch).name for stage in plan(ReplaySettings()) for batch in stage.batches}
    assert {"add/f32[8]/1", "add/f32[8]/64", "uniform/u8[4,84,84]/32", "prioritized/f32[171]/4096"} <= names


def test_windows_are_counted_as_they_will_be_run() -> None:
    settings = ReplaySettings(obs=("f32[8]",), batches=(32, 256), rounds=3)
    peer = BufferProgram(NUMPY.program, has_prioritized=True)
    # add/1, add/64 and two uniform batches: ours, the peer and numpy; two prioritized: ours and the peer
    assert num_windows(plan(settings), {"peer": peer, "numpy": NUMPY}, settings) == 3 * (3 + 3 + 2 * 3 + 2 * 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ReplaySettings(obs=("f64[3]",)), "f64"),
        (ReplaySettings(capacity=100), "--capacity 100"),
        (ReplaySettings(capacity=0), "--capacity 0"),
        (ReplaySettings(batches=()), "--batches"),
        (ReplaySettings(rounds=0), "--rounds 0"),
        (ReplaySettings(seconds=0.0), "--seconds 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: ReplaySettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(settings)


def test_peers_that_do_not_fit_together_come_in_turn() -> None:
    stage = Stage("uniform", parse_obs("u8[4,84,84]"), 100_000, (32,))
    names, size = ["cpprb", "sb3", "torchrl"], stage.other_bytes
    assert fit(names, stage, 3 * size) == ([names], None)
    groups, note = fit(names, stage, 2 * size)
    assert groups == [["cpprb", "sb3"], ["torchrl"]]
    assert note is not None
    assert "cpprb and sb3, then torchrl" in note
    groups, note = fit(names, stage, size - 1)
    assert groups == [[]]
    assert note is not None
    assert "ours ran alone" in note
