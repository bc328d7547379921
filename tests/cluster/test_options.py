"""Each option of make_strategy does what it says, in processes that train."""

import signal

import pytest
from clusters import LONGEST, run_cluster
from test_lost import begun, lose, says

from tfdist.transport.authentication import SECRET

SEEN = "option_cases.seen"
CASES = [SEEN]


@pytest.mark.slow
def test_an_exchange_that_lacks_a_worker_ends_in_time(tmp_path):
    # The worker is stopped and not killed: TensorFlow itself would wait for its heartbeat for longer.
    options = {
        "communication": {"implementation": "ring", "bytes_per_pack": 1024, "timeout": 600.0},
        "precision": "mixed_bfloat16",
        "intra_op_threads": 2,
        "inter_op_threads": 7,
    }
    case = {"options": options, "first": [SEEN], "workers": 2}
    with begun(tmp_path, "multi_worker_mirrored", "option_cases.fitting_in_a_hurry", **case) as (
        running,
        _,
    ):
        stopped, lost = lose(running, "worker:1", by=signal.SIGSTOP)
        (tmp_path / "lost").touch()
        try:
            finished = running.wait(LONGEST, failures_expected=True)
        finally:
            stopped.kill()

    says(
        finished,
        "worker:0",
        "fit",
        f"{lost}: an exchange waited for a task for longer than communication.timeout",
    )
    assert finished.results["worker:0"][SEEN] == {
        "exchanges": 3,  # of 4096 bytes each
        "hints": ["ring"],
        "threads": [2, 7],
        "compute_dtype": "bfloat16",
        "variable_dtype": "float32",
        "computed_in": "bfloat16",
    }


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_what_is_not_said_is_tcp_between_tasks_with_a_secret(strategy, finished):
    found = finished(strategy).chief[SEEN]
    assert (found["exchanges"], found["computed_in"]) == (0, "float32")


@pytest.mark.slow
def test_what_is_not_said_is_tensorflows_without_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv(SECRET, "")
    found = run_cluster(tmp_path, "multi_worker_mirrored", [SEEN], workers=2).chief[SEEN]
    assert (found["exchanges"], found["hints"]) == (1, ["auto"])
