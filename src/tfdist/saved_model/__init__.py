"""Write a trained model so that others can serve it, and prove that they can: `export(model, ...)`."""

from tfdist.saved_model.writing import export, try_formats

__all__ = ["export", "try_formats"]
