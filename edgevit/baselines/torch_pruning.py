"""What the library torch-pruning says goes together, by its own measures (DepGraph, Fang et al., CVPR 2023).

Its dependency graph of the network groups the weights that go with a unit. Its Taylor importance, with the library's
defaults, is the mean over the layers of a group of sum |w dL/dw|, L the task's cross-entropy over calibration images;
its magnitude is the mean of the sums of w^2; both are then divided by their mean over the group, and leave biases out.
As in its pruner, a dimension leaves every head of an attention alike, from queries, keys, values and output, and a head
is worth the mean of its dimensions. Units are ranked as `grouping` says, by default isomorphically (ECCV 2024). How
much stays is found as for all methods that rank units, so that the budget is met in the shape that is asked for.
`taylor` with `terms=each` sums the same terms, and those of biases, over groups of this project; by its default, terms
of opposite signs cancel.

    pip install 'edgevit[rivals]'
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, valued, weights_times_gradients
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import AttentionUnits
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.errors import OptionError
from edgevit.network.families import family_of
from edgevit.train.settings import Training

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(RankOptions):
    # What of attention goes: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding go, too.
    importance: Literal["taylor", "magnitude"] = "taylor"  # Which of the library's measures.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images")


def check_training(config: Config, training: Training) -> None:
    """Refuse to begin without the library.

    Raises:
        OptionError: torch-pruning is not installed.
    """
    _library()


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.task.train.subset(config.calibration_images), problem.network
    library = _library()
    with problem.stopwatch.stage("importance"):
        network.to(problem.compute.device).eval()
        if config.importance == "magnitude":
            values, measure = valued(network, lambda _, weight: weight), library.importance.GroupMagnitudeImportance()
        else:
            # Its Taylor importance multiplies weights by their gradients: here they have been, and those are 1.
            values = weights_times_gradients(network, images, problem.columns, problem.passes)
            measure = library.importance.GroupTaylorImportance()
            for parameter in values.parameters():
                parameter.grad = torch.ones_like(parameter)
        scores = scores_of(values, measure)
    return ranked.derive_by_rank(problem, config, scores)


def scores_of(network: nn.Module, measure: Any) -> Scores:
    """What every unit of a network is worth by one of torch-pruning's measures.

    Raises:
        OptionError: the library cannot follow the network, or groups otherwise than its pruner does.
    """
    family = family_of(network)
    blocks = family.read(network)
    layers = {m.weight.data_ptr(): m for m in network.modules() if isinstance(m, nn.Linear)}
    example = torch.zeros(1, *family.input_size(network), device=next(network.parameters()).device)
    library = _library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of tokens and positions, which belong to no layer
        graph = library.DependencyGraph().build_dependency(network, example_inputs=example)

    def worth(layer: nn.Module, cut: Any, units: int) -> Tensor:
        try:
            found: Tensor | None = measure(graph.get_pruning_group(layer, cut, list(range(units))))
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            found, told = None, f": {error}"
        else:
            told = "" if found is None else f": {len(found)} units of {units}"
        if found is None or len(found) != units:
            raise OptionError(f"torch-pruning cannot group the units of this network{told}; try --method taylor")
        return found.detach().double().cpu()

    of_blocks = []
    for block in blocks:
        by_head, neurons = torch.empty(0, 0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        if (a := block.attention) is not None:
            last = layers[a.wo.data_ptr()]
            by_head = worth(last, library.prune_linear_in_channels, a.heads * a.vo).reshape(a.heads, a.vo)
        if (f := block.ffn) is not None:
            last = layers[f.w2.data_ptr()]
            neurons = worth(last, library.prune_linear_in_channels, f.neurons)
        dims = by_head.mean(0).expand(len(by_head), -1)
        of_blocks.append(UnitScores(dims, dims, by_head.mean(1), neurons))
    return Scores(of_blocks, worth(last, library.prune_linear_out_channels, blocks[-1].embed))


def _library() -> Any:
    try:
        return import_module("torch_pruning")
    except ImportError:
        raise OptionError(
            "method torch_pruning needs the library torch-pruning, which is not installed; "
            "try: pip install 'edgevit[rivals]', or --method taylor"
        ) from None


METHOD = Method(
    Config, ranked.default_steps, derive, cuts=ranked.cuts, check_training=check_training, cuts_half_blocks=True
)
