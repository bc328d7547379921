"""Workers that make different calls of tfdist end in seconds, by a line that names what each was calling."""

import re

import pytest
from clusters import LONGEST, Running

from tfdist.cluster.config import ClusterConfig

APART = "call_cases.apart"
AGREED = "call_cases.agreed"
CASES = [APART, AGREED, "checkpointed", "gathered"]
LINE = re.compile(r"(?:ConfigError|tfdist): the workers are out of step: (.*?)\. Make the same calls")
OWN = {}  # over connections of tfdist's own
COLLECTIVES = {
    "communication": {"implementation": "ring"}
}  # TensorFlow's; the thread that compares is the same
IDS = ["own", "collectives"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_different_calls_are_refused_before_they_exchange_anything(strategy, finished):
    found = [result[APART] for result in finished(strategy).results.values()]

    assert found[0] == found[1]  # the calls after those, too
    pairs = {
        "predict": ("predict", "evaluate"),
        "evaluate": ("evaluate", "predict"),
        "barrier": ("barrier", "evaluate"),
        "save": ("save", "fit"),
    }
    for name, (chiefs, others) in pairs.items():
        line = found[0]["refused"][name]
        assert re.match(
            rf"the workers are out of step: worker:0 is in its (\w+) call, {chiefs}; "
            rf"worker:1 is in its \1 call, {others}\. Make the same calls in the same order",
            line,
        ), line
    assert found[0]["written"] == []


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_workers_in_step_take_as_many_steps_in_a_call_as_the_chief_wants(strategy, finished):
    chiefs, others = (result[AGREED] for result in finished(strategy).results.values())

    assert chiefs == others
    assert (chiefs[0], chiefs[20], chiefs[-1]) == (1, 1, 7)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_the_chief_alone_saves_a_checkpoint_of_a_loop_of_ones_own(strategy, finished):
    for result in finished(strategy).results.values():
        assert result["checkpointed"] == {"is restored": True, "count": 1}


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_types_that_collectives_do_not_take_are_gathered(strategy, finished):
    for result in finished(strategy).results.values():
        whole = result["gathered"].pop("int64")
        assert set(whole) == {-1, 0, 1}
        for dtype, numbers in result["gathered"].items():
            taken = {"bool": abs, "uint8": lambda number: number % 256}.get(dtype, float)
            assert numbers == list(map(taken, whole)), dtype


def ended(folder, case, options, *, has_ended):
    """Run a case in which the workers get out of step; return their statuses, and what they say.

    If a script `has_ended`, its process stays until the other worker has said so. The other would say that it is
    gone, if it heard that first.
    """
    cluster = ClusterConfig.local(workers=2)
    order = {
        "strategy": "multi_worker_mirrored",
        "options": options,
        "cases": [f"call_cases.{case}"],
        "folder": str(folder),
        **({"ends_after": "noted"} if has_ended else {}),
    }
    with Running(folder, cluster) as running:
        for task in cluster.tasks():
            running.start(task, order)
        if has_ended:
            names = [str(task) for task in cluster.tasks()]
            running.until(lambda: any(LINE.search(running.log(name)) for name in names), "one says why")
            (folder / "noted").touch()
        finished = running.wait(LONGEST, failures_expected=True)
    assert not any("Traceback" in log for log in finished.logs.values()), finished.logs
    said = {name: LINE.findall(log) for name, log in finished.logs.items()}
    return list(finished.exit_codes.values()), list(said.values())


@pytest.mark.slow
@pytest.mark.parametrize("options", [OWN, pytest.param(COLLECTIVES, marks=pytest.mark.again)], ids=IDS)
@pytest.mark.parametrize(
    ("case", "codes", "line"),
    [
        pytest.param(
            "ended",
            [2, 0],
            "worker:0 is in its 2nd call, predict; worker:1 has ended its script after its 1st call, fit",
            id="a worker has ended",
        ),
        pytest.param(
            "ended_first",
            [0, 2],
            "worker:0 has ended its script after its 1st call, fit; worker:1 is in its 2nd call, predict",
            marks=pytest.mark.again,
            id="the chief has ended",
        ),
        pytest.param(
            "caught",
            [2, 2],
            "worker:0 is in its 2nd call, fit; worker:1 is in its 3rd call, evaluate, "
            "and has left its 2nd call, fit, by ValueError: a bad file",
            id="a worker has caught its exception",
        ),
        pytest.param(
            "loaded",
            [2, 2],
            "worker:0 makes the variable kernel of a model after its 2nd call, save; "
            "worker:1 is in its 3rd call, barrier",
            id="the chief loads a model alone",
        ),
    ],
)
def test_a_worker_that_has_left_the_others_is_named(tmp_path, case, codes, line, options):
    found, said = ended(tmp_path, case, options, has_ended=0 in codes)
    assert found == codes
    assert said == [[line] if code else [] for code in codes]


@pytest.mark.slow
def test_a_worker_that_is_busy_is_named_and_awaited(tmp_path):
    cluster = ClusterConfig.local(workers=2)
    order = {"strategy": "multi_worker_mirrored", "options": {}, "folder": str(tmp_path)}
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, {**order, "cases": ["call_cases.busy"]})
        running.until(lambda: "has waited" in running.log("worker:1"), "the other says that it waits")
        (tmp_path / "told").touch()
        finished = running.wait(LONGEST)
    one, other = (result["call_cases.busy"]["loss"] for result in finished.results.values())
    assert one == other
    told = [line for line in finished.logs["worker:1"].splitlines() if "has waited" in line]
    assert len(told) == 1
    busy = "in its 2nd call, evaluate: worker:0 is in code of its own after its 1st call, fit"
    assert re.search(rf"worker:1: has waited \d+ s {busy}$", told[0])
    assert "has waited" not in finished.logs["worker:0"]
