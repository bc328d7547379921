"""Run a cluster on Ray: parameter servers, a chief, an evaluator and workers, each by an actor of its own.

    import tfdist.ray

    report = tfdist.ray.launch("configs/ps2w.yaml", resources={"worker": {"GPU": 1}})

It needs Ray: pip install 'tfdist[ray]'.
"""

from tfdist.engines.ray.launch import launch

__all__ = ["launch"]
