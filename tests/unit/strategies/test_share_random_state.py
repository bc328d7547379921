"""The state of the generators of Python, NumPy and PyTorch goes from one worker to the others, to the bit."""

import random
import sys
import types

import numpy as np

from tfdist.strategies.share_random_state import share_random_state


def _drawn():
    return [random.random(), random.gauss(0, 1), *np.random.normal(size=3), np.random.randint(100)]


def _shared(prepare_chief, prepare_other):
    """Return what the chief draws before and after sharing, and what another worker draws then."""
    prepare_chief()
    said = []
    share_random_state(lambda numbers: said.extend(numbers) or numbers, is_chief=True)
    chiefs = _drawn()
    prepare_other()
    share_random_state(
        lambda numbers: [one + other for one, other in zip(said, numbers, strict=True)], is_chief=False
    )
    return chiefs, _drawn()


def _seed(seed, draws):
    random.seed(seed)
    np.random.seed(seed)
    for _ in range(draws):
        random.gauss(0, 1)
        np.random.normal()


def test_others_draw_what_the_chief_draws():
    for draws in (0, 1, 2):  # each second normal number was kept from the first
        chiefs, others = _shared(lambda draws=draws: _seed(1, draws), lambda: _seed(2, 1))
        assert chiefs == others


def test_state_that_all_have_seeded_stays():
    _seed(5, 1)
    expected = _drawn()
    chiefs, others = _shared(lambda: _seed(5, 1), lambda: _seed(5, 1))
    assert chiefs == others == expected


class _Torch(types.ModuleType):
    """The generator of PyTorch 2.14 for the CPU, as share_random_state sees it."""

    def __init__(self, first):
        super().__init__("torch")
        self.state = np.arange(first, first + 5056).astype(np.uint8)

    def get_rng_state(self):
        return types.SimpleNamespace(numpy=lambda: self.state)

    def from_numpy(self, array):
        return array

    def set_rng_state(self, state):
        self.state = state


def test_others_shuffle_by_pytorch_as_the_chief_does_where_both_have_imported_it(monkeypatch):
    chiefs, others = _Torch(1), _Torch(2)
    for of_chief, of_other, expected in (
        (chiefs, others, chiefs),
        (None, _Torch(3), _Torch(3)),
        (chiefs, None, None),
    ):
        _shared(
            lambda torch=of_chief: monkeypatch.setitem(sys.modules, "torch", torch),
            lambda torch=of_other: monkeypatch.setitem(sys.modules, "torch", torch),
        )
        assert sys.modules["torch"] is of_other
        assert expected is None or (of_other.state == expected.state).all()
