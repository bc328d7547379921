"""Train, evaluate and predict with a compiled Keras model under any strategy."""

from tfdist.loop.evaluation import evaluate as evaluate
from tfdist.loop.prediction import predict as predict
from tfdist.loop.training import fit as fit
