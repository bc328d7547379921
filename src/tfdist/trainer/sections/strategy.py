"""The section `strategy`: how the tasks share the work."""

from typing import Annotated, Any

from tfdist._utils.shared_config_types import doc
from tfdist.strategies.options import ProcessOptions
from tfdist.strategies.strategy_names import StrategyName


class StrategySection(ProcessOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the strategy, that is how the tasks share the work, and its devices."""

    name: Annotated[StrategyName, doc("auto selects the one that fits the cluster and the devices.")] = "auto"

    def serving(self) -> dict[str, Any]:
        """Return the arguments of `serve`, except the cluster."""
        timeout = {} if self.start_timeout is None else {"start_timeout": self.start_timeout}
        return {"device": self.device, "memory_growth": self.memory_growth, **timeout}
