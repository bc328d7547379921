"""Make the tf.distribute.Strategy that fits a cluster: `make_strategy(cluster)`."""

from tfdist.strategy.making import StrategyName, check_strategy, make_strategy

__all__ = ["StrategyName", "check_strategy", "make_strategy"]
