"""The sections `data` and `model`."""

from typing import Annotated, Any, Literal

import msgspec

from tfdist._utils.shared_config_types import Positive, doc


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the data set, and how it is read."""

    name: Annotated[
        str,
        doc(
            "mnist, cifar10 or another image set of tensorflow-datasets; digits or shapes; or a path to a"
            " folder of images by class, of TFRecord files or of idx files, or to an .npz file."
        ),
    ] = "mnist"
    dir: Annotated[str | None, doc("The folder of tensorflow-datasets; TFDS_DATA_DIR by default.")] = None
    if_unavailable: Annotated[
        Literal["fail", "digits", "shapes"],
        doc("What follows if the data are unavailable: an error, or training on drawn images."),
    ] = "fail"
    one_hot: Annotated[
        bool | None,
        doc("Whether labels are one-hot. By default they are, if Keras's loss needs one-hot labels."),
    ] = None
    batch_size: Annotated[
        int,
        doc(
            "Examples in one step: of all workers together; with parameter_server, of one worker.",
            ge=1,
            le=2**31 - 1,
        ),
    ] = 128
    augment: Annotated[
        Literal["none", "shift", "shift_flip", "crop_flip", "cifar10_2016"],
        doc("The random augmentation of training images."),
    ] = "none"
    image_size: Annotated[
        tuple[Positive, Positive] | None,
        doc("Height and width to resize to; without it, all images must have one size."),
    ] = None

    def wanted(self) -> dict[str, Any]:
        """Return the arguments of `open_data`."""
        return {
            "name": self.name,
            "data_dir": self.dir,
            "if_unavailable": self.if_unavailable,
            "image_size": self.image_size,
        }


class ModelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the model."""

    name: Annotated[str, doc("mnist_cnn, cifar10_cnn, resnet, or my_package.my_module:build.")] = "mnist_cnn"
    options: Annotated[
        dict[str, Any],
        doc("Arguments for the function that builds the model, such as {dropout: 0.4}."),
    ] = {}
