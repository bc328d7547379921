"""Train MNIST on a master, workers and parameter servers that are given TF_CONFIG and nothing else.

    TF_CONFIG='{"cluster": {"master": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222"]},
                "task": {"type": "master", "index": 0}}' \\
    python examples/cloud_mnist/task.py --max_steps 2000 --checkpoint 200 --log_dir logs --model_dir models

This is the trainer of Google's Cloud ML of 2017, with its flags; the same command runs on every task. Workers
update the model each at its own pace. The master tests it every so many steps, and when the training has
ended, writes it for prediction: examples/cloud_mnist/client.py asks it. `tensorboard --logdir logs` shows the
curves. Without TF_CONFIG all of it happens in this process.
"""

import argparse
import json
import logging
import shutil
import sys
from pathlib import Path

from tfdist.cli.train import main as train
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import TfdistError

CONFIG = Path(__file__).with_name("mnist.yaml")


def main() -> None:
    """Read the flags, do this task's part, and put the model where it is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--max_steps", type=int, default=2000, help="steps of training, of all workers together"
    )
    parser.add_argument(
        "--checkpoint", type=int, default=200, help="steps from one test and checkpoint to the next"
    )
    parser.add_argument("--batch_size", type=int, default=50, help="examples of a step")
    parser.add_argument("--log_dir", type=Path, default=Path("logs"), help="for checkpoints and curves")
    parser.add_argument("--model_dir", type=Path, default=Path("models"), help="for the exported model")
    flags = parser.parse_args()
    changes = {
        "train.steps": flags.max_steps,
        "evaluation.every": flags.checkpoint,
        "checkpoint.every": flags.checkpoint,
        "summaries.every": flags.checkpoint,
        "data.batch_size": flags.batch_size,
    }
    report = flags.log_dir / "report.json"
    cluster = ClusterConfig.from_environment()
    is_master = cluster.is_chief and not cluster.is_evaluator
    if is_master:
        report.unlink(missing_ok=True)  # of an earlier run
    train(str(CONFIG), [f"{key}={value}" for key, value in changes.items()], run_dir=str(flags.log_dir))
    if is_master and report.exists():
        exported = Path(json.loads(report.read_text())["export"])
        model = flags.model_dir / exported.name
        shutil.copytree(exported, model, dirs_exist_ok=True)
        print(f"the model is in {model}")


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tfdist").setLevel(logging.INFO)
    try:
        main()
    except TfdistError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
