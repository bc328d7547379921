"""Data sets are split among workers by example, whatever their options say."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.data import distribute  # noqa: E402  # after the check that TensorFlow is there

POLICIES = tf.data.experimental.AutoShardPolicy


def policy_of_parts(policy: POLICIES, *, is_split: bool) -> POLICIES:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    dataset = tf.data.Dataset.range(4).batch(2).with_options(options)
    sharded = distribute._sharded_by_example(dataset, is_split=is_split)
    return sharded.options().experimental_distribute.auto_shard_policy


def test_workers_do_not_all_read_all_examples(caplog: pytest.LogCaptureFixture) -> None:
    assert policy_of_parts(POLICIES.OFF, is_split=True) == POLICIES.DATA
    assert "auto_shard_policy=OFF is ignored" in caplog.text


def test_workers_read_files_of_their_own_if_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    assert policy_of_parts(POLICIES.FILE, is_split=True) == POLICIES.FILE
    assert policy_of_parts(POLICIES.OFF, is_split=False) == POLICIES.OFF
    assert not caplog.text
