"""Make the tf.distribute.Strategy that fits a cluster: `make_strategy(cluster)`."""

from tfdist.strategy.connecting import connecting, is_connected
from tfdist.strategy.making import StrategyName, check_strategy, make_strategy

__all__ = ["StrategyName", "check_strategy", "connecting", "is_connected", "make_strategy"]
