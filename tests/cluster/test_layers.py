"""Layers, optimizers and options whose graphs are unlike most others' do what they do in one process."""

import numpy as np
import pytest
import tensorflow as tf
from clusters import IN_STEP, SETUPS, on

COMPARED_WITH = "one_device"
CASES = [
    f"model_cases.{name}" for name in ("on_sequences", "looked_up", "by_rows", "with_options", "written")
]
TOLERANCE = {"rel": 1e-10, "abs": 1e-10}  # float64: sums in another order
# What they compute on several devices of one process, mirrored workers compute over a network; and workers at their
# own pace run the graphs of those in step, whose numbers can be compared.
AGAIN = ("mirrored", "parameter_server")
STRATEGIES = on(SETUPS, again=AGAIN)


@pytest.fixture(scope="module")
def alone(cluster_once):
    found = cluster_once("models_alone", "one_device", ["model_cases.keras_itself"])
    return found.chief["model_cases.keras_itself"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dense_layers_over_sequences_learn_what_one_process_learns(strategy, finished, alone):
    found = finished(strategy).chief["model_cases.on_sequences"]

    assert found["steps"] == 12
    if strategy in IN_STEP:
        assert found["loss"] == pytest.approx(alone["on_sequences"], **TOLERANCE)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layers_look_words_up_in_tables(strategy, finished):
    found = finished(strategy).chief["model_cases.looked_up"]

    assert found["loss"] == pytest.approx(found["of_predicted"], rel=1e-5)
    assert found["losses"][0] > found["losses"][1] > found["loss"]
    if strategy in IN_STEP:
        alone = finished("one_device").chief["model_cases.looked_up"]
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)


@pytest.mark.parametrize("strategy", on(SETUPS, again=["one_device", "mirrored", "parameter_server_sync"]))
def test_functions_of_data_sets_look_up_in_branches(strategy, finished):
    found = finished(strategy).chief["model_cases.looked_up"]

    assert found["in_branches"] == [[0.0], [1.0], [-9.0], [2.0]] * 6


@pytest.mark.parametrize("strategy", on(IN_STEP[1:], again=AGAIN))
def test_optimizers_that_update_rows_do_what_they_do_in_one_process(strategy, finished):
    ours, alone = (finished(name).chief["model_cases.by_rows"] for name in (strategy, "one_device"))

    assert ours.keys() == alone.keys()
    for name, weights in alone.items():
        for mine, its in zip(ours[name], weights, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_how_a_step_is_compiled_changes_no_result(strategy, finished):
    found = finished(strategy).chief["model_cases.with_options"]

    for result in found.values():
        assert result["steps"] == 6
        if strategy in IN_STEP:
            assert result["losses"] == pytest.approx(found[""]["losses"], rel=1e-5)


@pytest.mark.skipif(tf.keras.__version__ < "3", reason="Keras 2 updates variables within its graph")
@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server", "parameter_server_sync"])
def test_evaluation_and_prediction_write_what_layers_write(strategy, finished):
    found = finished(strategy).chief["model_cases.written"]

    assert (
        "writes outside while it is called, a variable that belongs to none of its layers" in found["refused"]
    )
    if strategy in IN_STEP:  # workers at their own pace write over each other
        line = "layer _CountsByTensorFlow: assigns to a tf.Variable while it is called, which replicas cannot"
        assert line in found["of TensorFlow"]
        assert found["calls"] == 6
        assert found["losses"] == pytest.approx([(1 + 4 + 9) / 3, (16 + 25 + 36) / 3])
        mean = 0.0
        for batch in ([1, 2, 3, 4], [5, 6, 7]) * 2:  # the second has a short part on the last replica
            mean = (mean + np.mean(batch)) / 2
        assert found["mean"] == pytest.approx(mean, rel=1e-12)
    assert found["losses"][0] < found["losses"][1]
    assert found["draws"] == 4
    assert found["dropped"][0] != found["dropped"][1]
