import tensorflow as tf

from tfdist.loop.timing import Timing


def test_the_clock_is_read_before_and_after():
    timing = Timing(tf.distribute.OneDeviceStrategy("/device:CPU:0"))

    @tf.function
    def measured(x):
        begun = timing.begun(x)
        result = tf.while_loop(
            lambda now: now < begun + 0.2,
            lambda _: tf.timestamp(),
            [begun],
        )
        return timing.ended(begun, result)

    [[seconds, steps]] = measured(tf.constant(1.0)).numpy()
    assert steps == 1
    assert seconds >= 0.2
