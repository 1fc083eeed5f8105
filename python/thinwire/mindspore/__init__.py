"""Thinwire for MindSpore 2.10: data-parallel training with compressed exchange, on MindSpore's own wheel.

Every rank runs the same program, started by `thinwire run`, msrun, torchrun or mpirun; no scheduler
process is needed. With `Model.train`, adoption is one callback:

    model.train(epochs, data, callbacks=[thinwire.mindspore.GradExchange(codec="auto")])

with `nn.TrainOneStepCell`, or inside `@ms.jit`, it is one cell:

    step = nn.TrainOneStepCell(network_with_loss, optimizer)
    step.grad_reducer = thinwire.mindspore.reducer(optimizer.parameters, codec="int8")

and in a custom loop it is one call:

    average = thinwire.mindspore.exchange(optimizer.parameters, codec="int8")
    loss, gradients = gradient_function(inputs, labels)
    optimizer(average(gradients))

`Adaptation` changes batch, learning rate and ranks by policies while a training runs.
`export_graph` writes a network as a model file for `thinwire plan make`. `Elastic` is for jobs whose
ranks die, leave and join under `Model.train`, and `ServerEmbedding` for tables on parameter servers.

Gradients are float32, float16 or bfloat16. On the CPU, everything works in PyNative and in Graph
mode. On Ascend and GPU, `exchange` and `broadcast_parameters` copy through host memory, which is
untested. The cells refuse to work there, because their operators run on the CPU.
"""

try:
    import mindspore as _mindspore  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"thinwire.mindspore needs MindSpore ({error}) (hint: pip install mindspore==2.10.0)"
    ) from None

from thinwire import deprecated
from thinwire.server.job import ParameterServer

from .adaptation import Adaptation
from .broadcast import broadcast_parameters
from .callback import GradExchange
from .cell import reducer
from .elastic.job import Elastic
from .export import export_graph
from .guard import guard
from .loop import exchange
from .pair_averaging import PairAveraging
from .residuals import load_residuals, save_residuals
from .rounds import Rounds
from .server.embedding import ServerEmbedding
from .server.optimizer import ServerOptimizer
from .synchronous_averaging import SynchronousAveraging
from .synchronous_sgd import SynchronousSGD

__all__ = [
    "Adaptation",
    "Elastic",
    "GradExchange",
    "PairAveraging",
    "ParameterServer",
    "Rounds",
    "ServerEmbedding",
    "ServerOptimizer",
    "SynchronousAveraging",
    "SynchronousSGD",
    "broadcast_parameters",
    "exchange",
    "export_graph",
    "guard",
    "load_residuals",
    "reducer",
    "save_residuals",
]

__getattr__ = deprecated.classes(
    __name__, {"Exchange": ("loop", "exchange"), "Reducer": ("cell", "reducer")}
)
