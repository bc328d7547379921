"""Logs have the names and values that Keras's have, and their text begins with the loss."""

import numpy as np

from tfdist.training.reports.logs import as_logs, as_text


def test_logs_are_numbers_of_python_or_arrays_in_the_order_of_names():
    logs = as_logs({"loss": np.float32(0.5), "each": {"b": np.ones(2), "a": 1}})
    assert list(logs) == ["a", "b", "loss"]
    assert logs["loss"] == 0.5
    assert type(logs["loss"]) is float
    assert logs["b"].tolist() == [1.0, 1.0]


def test_the_text_of_logs_begins_with_the_loss():
    logs = {"accuracy": 0.25, "f1": np.ones(2), "loss": 1.23456}
    assert as_text(logs) == "loss 1.2346, accuracy 0.2500, f1 [1.0000 1.0000]"
