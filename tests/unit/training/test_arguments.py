"""Arguments of fit, evaluate and predict are taken as Keras takes them, or refused in one line."""

import numpy as np
import pytest

from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from tfdist.training.arguments import (  # noqa: E402  # after the check that TensorFlow is there
    callbacks_of,
    refuse_unknown,
    validation_epochs,
    verbosity,
    whole_number,
)

keras = tf.keras


@pytest.mark.parametrize("value", [4, np.int64(4), 64 / 16, np.float32(4)])
def test_a_whole_number_may_be_of_any_type(value):
    found = whole_number("steps_per_epoch", value, 1)
    assert type(found) is int
    assert found == 4


@pytest.mark.parametrize(
    ("value", "words"), [(2.5, "received 2.5. Pass 2"), (0, "received 0"), (True, "True"), ("4", "'4'")]
)
def test_what_is_no_whole_number_is_refused(value, words):
    with pytest.raises(ConfigError, match="steps: expected a whole number of at least 1") as caught:
        whole_number("steps", value, 1)
    assert words in str(caught.value)


def test_callbacks_may_be_none_or_one_or_lists():
    one, other = keras.callbacks.Callback(), keras.callbacks.TerminateOnNaN()
    assert callbacks_of(None) == []
    assert callbacks_of(one) == [one]
    assert callbacks_of([one, (other,), None]) == [one, other]
    assert callbacks_of(keras.callbacks.CallbackList([one, other])) == [one, other]
    one.callbacks = [other]  # an attribute of a user's own
    assert callbacks_of([one]) == [one]


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (3, "expected Keras callbacks, received a int"),
        ([keras.callbacks.TerminateOnNaN], r"Pass TerminateOnNaN\(…\)"),
    ],
)
def test_what_is_no_callback_is_refused(callbacks, words):
    with pytest.raises(ConfigError, match=words):
        callbacks_of(callbacks)


def test_validation_may_be_due_after_some_epochs():
    assert validation_epochs(2) == 2
    assert validation_epochs([1, np.int64(3)]) == {1, 3}
    with pytest.raises(ConfigError, match="received 'all'"):
        validation_epochs("all")


def test_verbosity_is_that_of_keras():
    assert [verbosity(value) for value in ("auto", 2, False)] == [1, 2, 0]
    with pytest.raises(ConfigError, match="expected 0, 1, 2 or 'auto', received 'loud'"):
        verbosity("loud")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("validation", "has no argument 'validation'. Use validation_data"),
        ("workers", r"PyDataset\(workers=…\)"),
        ("epoch", "Did you mean 'epochs'"),
    ],
)
def test_unknown_arguments_name_what_to_write(name, words):
    def fit(model, x, epochs, **unknown):
        refuse_unknown(fit, unknown)

    with pytest.raises(ConfigError, match=f"fit: .*{words}"):
        fit(None, None, 1, **{name: 1})
