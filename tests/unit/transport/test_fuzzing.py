"""Whatever strangers send to a listener, it lets none in, raises nothing, keeps nothing, and serves the others."""

import random

import fuzzing
import pytest

pytest.importorskip("tensorflow")

SESSIONS = 400


@pytest.mark.parametrize("target", fuzzing.ATTACKS)
def test_mutated_sessions_come_to_nothing(target):
    found = fuzzing.ATTACKS[target](SESSIONS, random.Random(20170104))
    assert (found.sessions, found.let_in, found.errors, found.left) == (SESSIONS, 0, [], 0)
    assert found.kilobytes < 20_000
    assert found.genuine
