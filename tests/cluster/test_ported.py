"""A script for Keras's own functions gives the same numbers on every strategy."""

import pytest
from clusters import IN_STEP, SETUPS, on
from ported_cases import by_keras

CASES = ["ported_cases.ported"]
EVERY_TIME = ["multi_worker_mirrored"]


@pytest.fixture(scope="module")
def expected():
    return by_keras()


# One process runs the same on one device or on several, and workers beside a ps take the parts of mirrored workers.
@pytest.mark.parametrize("strategy", on(SETUPS, again=[name for name in SETUPS if name not in EVERY_TIME]))
def test_what_keras_accepts_gives_the_same(strategy, finished, expected):
    found = finished(strategy).chief["ported_cases.ported"]

    assert type(found["alone"]) is list
    assert found["indices"] == expected["indices"]
    assert set(found["history"]) == set(expected["history"])
    assert len(found["history"]["val_loss"]) == 2
    assert len(found["predicted"][0]) == 1
    assert len(found["stopped"]) == 2
    if strategy not in IN_STEP:
        return
    for kind in ("history", "arrays"):
        assert set(found[kind]) == set(expected[kind])
        for name, values in expected[kind].items():
            assert found[kind][name] == pytest.approx(values, rel=1e-4)
    assert found["is_kept"]  # the arrays that a generator has yielded parts of
    for name in ("alone", "steps", "stopped", "generated"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    for ours, theirs in zip(found["predicted"], expected["predicted"], strict=True):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(other, abs=1e-4)
