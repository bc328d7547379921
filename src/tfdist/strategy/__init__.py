"""Make the tf.distribute.Strategy that fits a cluster: `make_strategy(cluster)`."""

from tfdist.strategy.making import StrategyName, make_strategy

__all__ = ["StrategyName", "make_strategy"]
