"""Write a trained model so that others can serve it, and prove that they can: `export(model, ...)`."""

from tfdist.saved_model.writing import export

__all__ = ["export"]
