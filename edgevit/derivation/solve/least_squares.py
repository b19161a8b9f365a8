"""Refit an FFN's output weights to the neurons that are kept (NuWa, OFP-MLP), from second moments alone.

With h [e] the neurons of one token, C = E[h h^T] and r the kept ones, W_2' = argmin E|W_2 h - W_2' h_r|^2 solves
W_2' C_rr = W_2 C_:r: one Cholesky factorisation of a small matrix, instead of the pseudo-inverse of a (images * tokens)
x r matrix. Where there is an output bias it is refitted, too, which makes C the covariance.

The same moments show which neurons to keep, better than activations do: `removal_order` repeatedly removes the neurons
whose removal costs least after the others are refitted (optimal brain surgeon's saliency).

A ridge determines W_2' where the calibration tokens do not. With mode `least_squares` it draws W_2' to zero; with
`compensate` it draws W_2' to the base's columns: optimal brain surgeon's update for the removal of all other neurons at
once, with C + ridge as its Hessian. Without a ridge both modes are equal. A ridge in units of the mean square
of r neurons bounds the condition number by 1 + r / ridge: no eigenvalue is above the sum of all, or below the ridge.

C of all neurons serves every choice of r. Where r is known beforehand, `Regression` takes h_r and the FFN's own output
alone: a fraction of the work and of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.derivation.measure.statistics import add_outer, symmetric
from edgevit.derivation.measure.thinning import GROUPS
from edgevit.derivation.solve.factorise import one_thread
from edgevit.errors import DataError
from edgevit.network.anatomy import Ffn

_TINY = torch.finfo(torch.float64).tiny
_RIDGES = (inf, 10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4)  # ridges to choose from, the strongest first
SINGLE_RIDGE = 1e-3  # ridge where no other images judge it
_Refit = Literal["least_squares", "compensate", "remove"]


def _cholesky(gram: Tensor, ridge: float) -> Tensor:
    """The lower Cholesky factor of a matrix of second moments [r, r], of which the lower triangle is read."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        raise DataError(
            f"the second moments of {len(gram)} neurons over the calibration images are singular (ridge {ridge:g}); "
            f"raise the ridge, or use more images"
        )
    return lower


def solve_ridge(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Solve (gram + ridge * 1) X = right by Cholesky; the ridge is added to gram in place, as gram may be large.

    Shapes: gram [r, r], of which the lower triangle is read, and right [r, n], fp64.

    Raises:
        DataError: it is singular in spite of the ridge, or not finite.
    """
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(right, _cholesky(gram, ridge))


def refit(
    part: Ffn, neurons: Tensor, second: Tensor, mean: Tensor, objective: _Refit = "least_squares", ridge: float = 1e-4
) -> Ffn:
    """Keep these neurons of an FFN and refit its output weights and bias to them.

    `ridge` is in units of the kept neurons' mean square: a share of their variance would be zero where few tokens leave
    no variance. Shapes: neurons [r] int64; second [e, e] and mean [e], moments of the neurons as the output layer
    reads them.
    """
    neurons = neurons.to(part.w1.device)
    slim = part.keep(neurons)
    if objective == "remove":
        return slim
    # Small solves where the moments are: on the CPU unless the caller put them elsewhere.
    index, w2, mean = neurons.to(second.device), part.w2.detach().to(second), mean.to(second)
    centre = refittable_mean(part, mean)
    gram = second[index][:, index]
    lift = _lift(ridge, gram.diagonal())
    gram = gram - torch.outer(centre[index], centre[index])
    right = second[index] @ w2.mT - torch.outer(centre[index], w2 @ centre)  # C_r: W_2^T of the centred moments
    if objective == "compensate":
        right += lift * w2[:, index].mT
    with one_thread():
        new = solve_ridge(gram, right, lift).mT
    bias = None if part.b2 is None else (part.b2.detach().to(w2) + w2 @ mean - new @ mean[index]).to(part.b2)
    return replace(slim, w2=new.to(part.w2), b2=bias)


def refittable_mean(part: Ffn, mean: Tensor) -> Tensor:
    """The part of the neurons' mean [e] that the output bias can take in: all of it, or zeros without a bias."""
    return mean if part.b2 is not None else torch.zeros_like(mean)


def least_of(ridges: Sequence[float], error: Callable[[float], float]) -> float:
    """Find the ridge of least error: go on from the middle one while the error falls. It should have one minimum."""
    lowest = len(ridges) // 2
    errors = {lowest: error(ridges[lowest])}
    for step in (1, -1):
        while 0 <= (neighbour := lowest + step) < len(ridges) and neighbour not in errors:
            errors[neighbour] = error(ridges[neighbour])
            if errors[neighbour] >= errors[lowest]:
                break
            lowest = neighbour
    return ridges[lowest]


class Regression:
    """Sums from which the best affine map from x [r] to y [d] is solved; memory does not grow with the samples.

    The sums are those of z z^T with z = [1 x y], without y y^T. Products are computed in the precision of x and summed
    in fp64. The means of the first batch are subtracted from x and y: in fp32, squares of large means would round away
    the variance.

    Samples are summed in `GROUPS` groups. The ridge is chosen by the errors on each group of the map that is solved for
    the other groups. The tokens of an image are alike, so all of them must be in one group.
    """

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.rows = 1 + inputs
        self.shift = zeros(self.rows + outputs)  # subtracted from z; 0 for its entry 1
        # On and above the diagonals; the first entry is the sum of the weights.
        self.sums = zeros(GROUPS, self.rows, self.rows + outputs)
        self.room: Tensor | None = None  # memory for z, of as many samples as the batch before

    def add(self, x: Tensor, y: Tensor, weight: Tensor | None = None, groups: Tensor | None = None) -> None:
        """Add samples, best thousands at once.

        Shapes: x [T, r] and y [T, d] of one precision; weight [T]; groups [T], the group of each sample; None: all are
        in one.
        """
        if not self.shift.any():
            self.shift[1:] = torch.cat([x.detach().mean(0), y.detach().mean(0)]).double()
        shift = self.shift.to(x)
        if self.room is None or len(self.room) != len(x) or self.room.dtype != x.dtype:
            self.room = x.new_ones(len(x), len(shift))
        torch.sub(x.detach(), shift[1 : self.rows], out=self.room[:, 1 : self.rows])
        torch.sub(y.detach(), shift[self.rows :], out=self.room[:, self.rows :])
        if groups is None:
            add_outer(self.sums[0], self.room, weight)
            return
        for group, sums in enumerate(self.sums):
            rows = groups == group
            add_outer(sums, self.room[rows], None if weight is None else weight[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> Regression:
        """A copy with changed sums, such as means over processes. Shifts of processes differ; the copy has none."""
        changed = Regression(self.rows - 1, len(self.shift) - self.rows, self.sums.device)
        changed.sums = change(torch.stack([self._about(changed.shift, sums) for sums in self.sums]))
        return changed

    def restricted(self, inputs: Tensor, outputs: Tensor) -> Regression:
        """The regression of linear functions of y on some entries of x.

        Shapes: inputs [s] int64, ascending; outputs [n, d], the functions.
        """
        rows, outputs = F.pad(inputs + 1, (1, 0)), outputs.to(self.sums)
        part = Regression(len(inputs), len(outputs), self.sums.device)
        part.shift = torch.cat([self.shift[rows], outputs @ self.shift[self.rows :]])
        of_rows = self.sums[:, rows]
        part.sums = torch.cat([of_rows[:, :, rows], of_rows[:, :, self.rows :] @ outputs.mT], 2)
        return part

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean of x x^T [r, r] and of x [r] over all samples."""
        about = self._about(torch.zeros_like(self.shift), self.sums.sum(0)) / self.sums[:, 0, 0].sum()
        return symmetric(about[1:, 1 : self.rows]), about[0, 1 : self.rows]

    def solve(
        self,
        ridge: float | None = None,
        *,
        prior: Tensor | None = None,
        bias: bool = True,
        ridges: Sequence[float] = _RIDGES,
    ) -> tuple[Tensor, Tensor | None]:
        """Weight [d, r] and bias [d], fp64, of least E|y - W x - b|^2 + lift |W - prior|^2.

        The lift is `ridge` times the mean square of x, as for `refit`; without a prior [d, r] it draws W to zero. None
        takes the ridge of `chosen_ridge`, which is infinite where the prior alone fits best.

        Raises:
            DataError: nothing was added, or the sums leave the map open in spite of the ridge.
        """
        total = self.sums.sum(0)
        if not total[0, 0] > 0:
            raise DataError("no samples to fit a map to; use more calibration images")
        if ridge is None:
            ridge = self.chosen_ridge(prior=prior, bias=bias, ridges=ridges)
        centre = self._centre(total, bias)
        weight = self._weight(self._about(centre, total), centre, ridge * float(total[0, 0]), prior)
        return weight, centre[self.rows :] - weight @ centre[1 : self.rows] if bias else None

    def chosen_ridge(
        self, *, prior: Tensor | None = None, bias: bool = True, ridges: Sequence[float] = _RIDGES
    ) -> float:
        """Choose the ridge of least error on samples of other groups than those the map is solved for.

        The sum of squares and the lift grow alike with the samples, so a map of fewer samples is drawn to the prior by
        the same lift of the sum. With all samples in one group the ridge is `SINGLE_RIDGE`.
        """
        parts = [sums for sums in self.sums if sums[0, 0] > 0]
        if len(parts) < 2:
            return SINGLE_RIDGE
        total = self.sums.sum(0)
        folds = []
        for held_out in parts:
            others = total - held_out
            centre = self._centre(others, bias)
            folds.append((self._about(centre, others), centre, self._about(centre, held_out)))

        def error(ridge: float) -> float:
            lift = ridge * float(total[0, 0])
            maps = ((self._weight(others, centre, lift, prior), held_out) for others, centre, held_out in folds)
            return sum((self._error(weight, held_out) for weight, held_out in maps), 0.0)

        return least_of(ridges, error)

    def _centre(self, sums: Tensor, bias: bool) -> Tensor:
        """The means of z if there is a bias, else zeros."""
        centre = self.shift + sums[0] / sums[0, 0] if bias else torch.zeros_like(self.shift)
        centre[0] = 0
        return centre

    def _weight(self, about: Tensor, centre: Tensor, lift: float, prior: Tensor | None) -> Tensor:
        """Solve for the weight [d, r], given sums about a centre and the lift of the sums in units of x's mean square.

        An infinite lift gives the prior.
        """
        drawn_to = None if prior is None else prior.detach().to(about)
        if lift == inf:
            return about.new_zeros(about.shape[1] - self.rows, self.rows - 1) if drawn_to is None else drawn_to
        count = float(about[0, 0])
        gram, cross = about[1:, 1 : self.rows] / count, about[1:, self.rows :] / count
        lift = _lift(lift / count, gram.diagonal() + centre[1 : self.rows].square())
        if drawn_to is not None:
            cross += lift * drawn_to.mT
        with one_thread():
            return solve_ridge(gram.mT, cross, lift).mT

    def _error(self, weight: Tensor, about: Tensor) -> float:
        """The sum of |y - W x|^2 minus that of |y|^2 over samples, from their sums about a centre."""
        gram, cross = about[1:, 1 : self.rows], about[1:, self.rows :]
        explained = symmetric(gram) @ weight.mT - 2 * cross
        return float((explained * weight.mT).sum())

    def _about(self, centre: Tensor, sums: Tensor) -> Tensor:
        """The sums for [1 x y] minus a centre instead of the shift: [1 + r, 1 + r + d], the upper triangle."""
        move, first = self.shift - centre, sums[0]
        moved = torch.addr(sums, move[: self.rows], first)
        return moved.addr_(first[: self.rows] + first[0] * move[: self.rows], move)


@dataclass(frozen=True)
class Removal:
    """The order in which to remove neurons, and the cost of each. One order serves every width."""

    order: Tensor  # [e] int64: numbers of the neurons, the first to be removed first
    cost: Tensor  # [e] fp64, in that order: growth of E|output error|^2 as each is removed and the rest refitted

    def remaining(self, width: int) -> Tensor:
        """The neurons that remain at this width, in their own order: [width]."""
        return self.order[len(self.order) - width :].sort().values


def removal_order(w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4, share: int = 32) -> Removal:
    """Order the neurons of a block by what their removal costs; the remaining ones are refitted after each group.

    With G the inverse of the neurons' covariance, removing i costs |w_i|^2 / G_ii and a set S costs
    tr(W_S G_SS^-1 W_S^T). With G_SS = L L^T and V = L^-1 [G_S: W_S^T] the rest follow as G - V_G^T V_G and
    W - V_W^T V_G, in place: removed neurons move behind the remaining ones. One in `share` of the remaining neurons is
    removed at a time: an update per group is a matrix product, and a whole block costs little more than inverting its
    covariance. Larger groups would remove the last two of several near copies together.

    Shapes: w2 [d, e]; second [e, e] as for `refit`, mean [e] by `refittable_mean`.

    Raises:
        DataError: the covariance is singular in spite of the ridge.
    """
    inverse = torch.cholesky_inverse(_cholesky(_lifted_covariance(second, mean, ridge), ridge))
    w = w2.detach().to(second).mT.contiguous()  # [e, d]
    alive, order, cost = torch.arange(len(second), device=second.device), [], []
    count = len(second)
    while count > 0:
        g, w, alive = inverse[:count, :count], w[:count], alive[:count]
        saliency = torch.linalg.vector_norm(w, dim=1).square() / g.diagonal()
        removed = torch.argsort(saliency, stable=True)[: max(count // share, 1)]
        count -= len(removed)
        order.append(alive[removed])
        of, to = _swaps(removed, count)
        for rows in (g, g.mT, w, alive):
            rows[of] = rows[to]
        lower = _cholesky(g[count:, count:], ridge)
        update = torch.linalg.solve_triangular(lower, torch.cat([g[count:, :count], w[count:]], dim=1), upper=False)
        of_g, of_w = update[:, :count], update[:, count:]
        cost.append(saliency[removed] * (of_w.square().sum() / saliency[removed].sum().clamp_min(_TINY)))
        g[:count, :count].addmm_(of_g.mT, of_g, alpha=-1)
        w[:count].addmm_(of_g.mT, of_w, alpha=-1)
    return Removal(torch.cat(order), torch.cat(cost))


def _swaps(removed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Pairs of rows to swap, so that removed neurons come after the first `count`: target and source of each row."""
    stay = torch.ones(len(removed), dtype=torch.bool, device=removed.device)
    stay[removed[removed >= count] - count] = False
    ahead, behind = removed[removed < count], count + stay.nonzero().squeeze(1)
    return torch.cat([ahead, behind]), torch.cat([behind, ahead])


def removal_in_order(order: Tensor, w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4) -> Removal:
    """The costs of removal in a given order.

    With L the Cholesky factor of the neurons' covariance in the reverse order, h = L z. The last r neurons of the order
    span the first r entries of z, so E|error|^2 of the best fit on them is the square of W_2 L without r columns.
    """
    last_first = order.flip(0)
    covariance = _lifted_covariance(second, mean, ridge)[last_first][:, last_first]
    spanned = w2.detach().to(second)[:, last_first] @ _cholesky(covariance, ridge)
    return Removal(order, spanned.square().sum(0).flip(0))


def _lifted_covariance(second: Tensor, mean: Tensor, ridge: float) -> Tensor:
    covariance = second - torch.outer(mean, mean)
    covariance.diagonal().add_(_lift(ridge, second.diagonal()))
    return covariance


def _lift(ridge: float, squares: Tensor) -> float:
    """The ridge times the mean square; above zero even if that is zero."""
    return ridge * float(squares.mean().clamp_min(_TINY))
