"""Remove units by the groups and measures of the library torch-pruning (DepGraph, Fang et al., CVPR 2023).

Its dependency graph groups the weights that are removed with a unit. Its Taylor importance, with the library's
defaults, is the mean over the layers of a group of sum |w dL/dw|, L the task's cross-entropy over calibration images;
its magnitude is the mean of the sums of w^2. Both are then divided by their mean over the group, and ignore biases. As
in its pruner, a dimension is removed from queries, keys, values and output of every head, and the score of a head is
the mean of its dimensions. Units are ranked as `grouping` says, by default isomorphically (ECCV 2024). Sizes are chosen
as for all methods that rank units, so that the budget is met in the requested shape. `taylor` with `terms=each` sums
the same terms, and those of biases, over the groups of edgevit; by its default, terms of opposite signs cancel.

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
from edgevit.baselines.common.importance import Scores, unit_scores, valued, weights_times_gradients
from edgevit.baselines.common.ranked import AttentionUnits, RankOptions
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.errors import OptionError
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units of attention are removed: dimensions of every head (widths), whole heads (heads), or both.
    attention: AttentionUnits = "both"
    cut_embedding: bool = True  # Whether channels of the embedding are removed, too.
    importance: Literal["taylor", "magnitude"] = "taylor"  # Which measure of the library.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        check_number("torch_pruning.calibration_images", self.calibration_images, COUNT)


def check_training(config: Config, training: Training) -> None:
    """Check that the library is installed.

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
            # Its Taylor importance multiplies weights by gradients. The values are these products, so gradients are 1.
            values = weights_times_gradients(network, images, problem.passes)
            measure = library.importance.GroupTaylorImportance()
            for parameter in values.parameters():
                parameter.grad = torch.ones_like(parameter)
        scores = scores_of(values, measure)
    return ranked.derive_by_rank(problem, config, scores)


def scores_of(network: Network, measure: Any) -> Scores:
    """Score every unit of a network by one of torch-pruning's measures.

    Raises:
        OptionError: the library cannot trace the network, or its groups are not those of its pruner.
    """
    blocks = network.read()
    layers = {m.weight.data_ptr(): m for m in network.modules() if isinstance(m, nn.Linear)}
    example = torch.zeros(1, *network.input_size, device=next(network.parameters()).device)
    library = _library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tokens and positions, which belong to no layer
        graph = library.DependencyGraph().build_dependency(network, example_inputs=example)

    def worth(layer: nn.Module, cut: Any, units: int) -> Tensor:
        try:
            scores: Tensor | None = measure(graph.get_pruning_group(layer, cut, list(range(units))))
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            scores, detail = None, f": {error}"
        else:
            detail = "" if scores is None else f": {len(scores)} units of {units}"
        if scores is None or len(scores) != units:
            raise OptionError(f"torch-pruning cannot group the units of this network{detail}; try --method taylor")
        return scores.detach().double().cpu()

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
        of_blocks.append(unit_scores([dims, dims], neurons, by_head.mean(1)))
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
    Config,
    ranked.default_steps,
    derive,
    search_space=ranked.search_space,
    check_training=check_training,
    cuts_half_blocks=True,
)
