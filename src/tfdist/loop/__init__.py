"""Train, evaluate and predict with a compiled Keras model under any strategy."""

from tfdist.loop.agreement import Agreement as Agreement
from tfdist.loop.agreement import wait_for_all as wait_for_all
from tfdist.loop.evaluation import evaluate as evaluate
from tfdist.loop.evaluation import run_tests as run_tests
from tfdist.loop.executions import Totals as Totals
from tfdist.loop.gauge import SECONDS as SECONDS
from tfdist.loop.gauge import STEPS as STEPS
from tfdist.loop.gauge import Failure as Failure
from tfdist.loop.lost import naming_lost_tasks as naming_lost_tasks
from tfdist.loop.prediction import predict as predict
from tfdist.loop.session import Runner as Runner
from tfdist.loop.session import Session as Session
from tfdist.loop.session import Step as Step
from tfdist.loop.state import State as State
from tfdist.loop.state import take_from_chief as take_from_chief
from tfdist.loop.training import fit as fit
