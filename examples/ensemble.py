"""Train an ensemble member by member on whichever task is free, and combine what the members say.

    tfdist launch --job member=2 -- python examples/ensemble.py

Each member is a small network that learns a noisy curve from a sample of its own. A member whose task is lost
is trained by another one. On several machines, TF_CONFIG says where the tasks are:

    {"cluster": {"chief": ["a:2222"], "member": ["b:2222", "c:2222"]}, "task": {"type": "member", "index": 0}}
"""

import tensorflow as tf

import tfdist

MEMBERS, POINTS, UNITS, STEPS, RATE = 8, 200, 32, 2000, 0.03


def curve(x: tf.Tensor) -> tf.Tensor:
    """Compute the curve that the networks learn."""
    return tf.sin(3.0 * x)


def drawn(shape: tuple[int, ...], member: tf.Tensor, what: int) -> tf.Tensor:
    """Draw numbers that follow from the member alone, on whichever task it is trained."""
    return tf.random.stateless_normal(shape, tf.stack([member, what]))


def answers(weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Compute the outputs of a network."""
    inner, inner_bias, outer, outer_bias = weights
    return tf.tanh(x @ inner + inner_bias) @ outer + outer_bias


@tf.function
def trained_member(member: tf.Tensor) -> tf.Tensor:
    """Train one member; give what it says at the points of the test. This runs on the task."""
    points = POINTS - 20 * member
    x = 2.0 * tf.tanh(drawn((POINTS, 1), member, 0)[:points])
    y = curve(x) + 0.3 * drawn((POINTS, 1), member, 1)[:points]
    weights = [
        2.0 * drawn((1, UNITS), member, 2),
        drawn((UNITS,), member, 3),
        drawn((UNITS, 1), member, 4) / UNITS**0.5,
        tf.zeros((1,)),
    ]
    for _ in tf.range(STEPS):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean((answers(weights, x) - y) ** 2)
        weights = moved(weights, tape.gradient(loss, weights))
    return answers(weights, test_points())


@tf.autograph.experimental.do_not_convert  # AutoGraph of TensorFlow 2.12 has a zip of its own, without strict
def moved(weights: list[tf.Tensor], slopes: list[tf.Tensor]) -> list[tf.Tensor]:
    """Move weights down their slopes."""
    return [weight - RATE * slope for weight, slope in zip(weights, slopes, strict=True)]


def test_points() -> tf.Tensor:
    """Return the points of the test."""
    return tf.linspace(-2.0, 2.0, 101)[:, None]


def main() -> None:
    """Compute for the chief; or be the chief, have the members trained, and combine them."""
    cluster = tfdist.ClusterConfig.from_environment()
    if not cluster.is_chief:
        tfdist.serve(cluster)
        return
    with tfdist.connect(cluster) as remote:
        said = remote.map(trained_member, range(MEMBERS), job="member")
        together = remote.reduce("mean", said)
    truth = curve(test_points())
    alone = [float(tf.reduce_mean((each - truth) ** 2)) for each in said]
    combined = float(tf.reduce_mean((together - truth) ** 2))
    print(f"squared error: {sum(alone) / MEMBERS:.4f} by one member, {combined:.4f} by {MEMBERS} together")


if __name__ == "__main__":
    main()
