"""The sizes of a model of one variable, for the tests of what the doctor says about memory and speed."""

from tfdist.trainer.model_and_replica_sizes import ModelSizes, VariableSizes


def sizes_of(value, *, slots=0, private=0, libraries=0):
    """Return the sizes of a model whose layers and data take no memory."""
    variable = VariableSizes("kernel", (value // 4,), value, slots=slots)
    return ModelSizes((variable,), 0, 0, 1, 0, 0, private, libraries)
