"""The tables of `tfdist estimate`: one column for tasks that need the same."""

from tfdist.cli.estimate import _print_tables
from tfdist.diagnostics.estimate_memory_and_traffic import TaskEstimate, one_of_each
from tfdist.trainer.model_and_replica_sizes import ModelSizes, VariableSizes


def test_equal_neighbours_of_a_role_share_a_column():
    memory = {"variables": 5_000_000}
    estimates = [
        TaskEstimate("chief:0", memory),
        *(TaskEstimate(f"worker:{index}", memory, sent=1) for index in range(12)),
        TaskEstimate("ps:0", memory, sent=1),
        TaskEstimate("ps:1", memory, sent=2),
    ]
    merged = one_of_each(estimates)
    assert [each.task for each in merged] == ["chief:0", "worker:0…11", "ps:0", "ps:1"]
    assert (merged[1].memory, merged[1].sent) == (memory, 1)


def test_the_numbers_are_megabytes_and_milliseconds(capsys):
    sizes = ModelSizes((VariableSizes("v", (2,), 8_000_000),), 1, 1, 1, 1, 1, 1, 480_000_000)
    estimate = TaskEstimate(
        "worker:0", {"variables": 8_000_000, "gradients": 1_600_000}, 55_000_000, 12_500_000
    )
    _print_tables("multi_worker_mirrored", sizes, [estimate])
    rows = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {("variables", "8"), ("gradients", "2"), ("in", "all", "10"), ("data,", "shared", "55")} <= rows
    assert ("worker:0", "12.50", "100.0", "10.0") in rows
