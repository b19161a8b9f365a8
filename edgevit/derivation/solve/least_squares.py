"""Refit an FFN's output weights to the neurons that are kept (NuWa, OFP-MLP), from second moments alone.

With h [e] the neurons of one token, C = E[h h^T] and r the kept ones, W_2' = argmin E|W_2 h - W_2' h_r|^2 solves
W_2' C_rr = W_2 C_:r: one Cholesky factorisation of a small matrix, instead of the pseudo-inverse of a (images * tokens)
x r matrix. Where there is an output bias it is refitted, too, which makes C the covariance.

Which neurons to keep, the same moments say better than activations do: `removal_order` takes away, again and again, the
neurons whose removal costs least once the others have made up for it (optimal brain surgeon's saliency).

A ridge decides what the calibration tokens leave open. `least_squares` draws W_2' to zero; `compensate` draws it to the
columns that were there, which is optimal brain surgeon's update for the removal of all the others at once, C + ridge
being its Hessian. Without a ridge they are the same. In units of the mean square of r neurons it bounds the condition
number, at 1 + r / ridge: no eigenvalue is above the sum of all, or below the ridge.

C of all neurons serves every choice of r. Where r is known beforehand, `Regression` takes h_r and the FFN's own output
alone: a fraction of the work and of the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from edgevit.derivation.measure.statistics import add_outer
from edgevit.derivation.solve.factorise import one_thread
from edgevit.errors import DataError
from edgevit.network.anatomy import Ffn

_TINY = torch.finfo(torch.float64).tiny
Refit = Literal["least_squares", "compensate", "remove"]


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
    """Solve (gram + ridge * 1) X = right by Cholesky; the ridge is added to gram in place, which may be large.

    Shapes: gram [r, r], of which the lower triangle is read, and right [r, n], fp64.

    Raises:
        DataError: it is singular in spite of the ridge, or not finite.
    """
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(right, _cholesky(gram, ridge))


def refit(
    part: Ffn, neurons: Tensor, second: Tensor, mean: Tensor, objective: Refit = "least_squares", ridge: float = 1e-4
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
    """What an output bias can make up for of its neurons' mean [e]: all of it where there is one, else nothing."""
    return mean if part.b2 is not None else torch.zeros_like(mean)


class Regression:
    """Sums from which the best affine map from x [r] to y [d] is solved; memory does not grow with the samples.

    With z = [1 x y], the sums of z z^T but for y y^T, in one pass of matrix products: fp64 sums of products in the
    precision of x. Both x and y are taken about their means over the first batch: in fp32 the square of a large mean
    would round away the variance beside it.
    """

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.rows = 1 + inputs
        self.shift = zeros(self.rows + outputs)  # taken off z; none off its one
        self.sums = zeros(self.rows, self.rows + outputs)  # on and above the diagonal; the first is that of the weights
        self.room: Tensor | None = None  # for z of as many samples as there were last

    def add(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Take samples, best thousands at once. Shapes: x [T, r] and y [T, d] of one precision; weight [T]."""
        if not self.sums[0, 0]:
            self.shift[1:] = torch.cat([x.detach().mean(0), y.detach().mean(0)]).double()
        shift = self.shift.to(x)
        if self.room is None or len(self.room) != len(x) or self.room.dtype != x.dtype:
            self.room = x.new_ones(len(x), len(shift))
        torch.sub(x.detach(), shift[1 : self.rows], out=self.room[:, 1 : self.rows])
        torch.sub(y.detach(), shift[self.rows :], out=self.room[:, self.rows :])
        add_outer(self.sums, self.room, weight)

    def map(self, change: Callable[[Tensor], Tensor]) -> Regression:
        """Change the sums, such as to their means over processes, whose shifts differ: the result has none."""
        changed = Regression(self.rows - 1, len(self.shift) - self.rows, self.sums.device)
        changed.sums = change(self._sums_about(changed.shift))
        return changed

    def solve(
        self, ridge: float = 1e-4, *, prior: Tensor | None = None, bias: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Weight [d, r] and bias [d], fp64, of least E|y - W x - b|^2 + lift |W - prior|^2.

        The lift is `ridge` times the mean square of x, as for `refit`; without a prior [d, r] it draws W to zero.

        Raises:
            DataError: nothing was added, or the sums leave the map open in spite of the ridge.
        """
        count = self.sums[0, 0]
        if not count > 0:
            raise DataError("no samples to fit a map to; use more calibration images")
        mean = self.shift + self.sums[0] / count
        mean[0] = 0
        centre = mean if bias else torch.zeros_like(mean)
        moments = self._sums_about(centre).div_(count)[1:]
        gram, cross = moments[:, 1 : self.rows], moments[:, self.rows :]
        x, y = centre[1 : self.rows], centre[self.rows :]
        lift = _lift(ridge, gram.diagonal() + x.square())
        if prior is not None:
            cross += lift * prior.detach().to(cross).mT
        with one_thread():
            weight = solve_ridge(gram.mT, cross, lift).mT
        return weight, y - weight @ x if bias else None

    def _sums_about(self, centre: Tensor) -> Tensor:
        """The sums of [1 x y] less a centre, instead of less the shift: [1 + r, 1 + r + d], the upper triangle."""
        move, first = self.shift - centre, self.sums[0]
        sums = torch.addr(self.sums, move[: self.rows], first)
        return sums.addr_(first[: self.rows] + first[0] * move[: self.rows], move)


@dataclass(frozen=True)
class Removal:
    """The order in which to remove neurons, and the cost of each. One order serves every width."""

    order: Tensor  # [e] int64, the first to be removed first
    cost: Tensor  # [e] growth of E|output error|^2 as each goes, in that order, the rest refitted; fp64

    def remaining(self, width: int) -> Tensor:
        """The neurons that remain at this width, in their own order: [width]."""
        return self.order[len(self.order) - width :].sort().values


def removal_order(w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4, share: int = 32) -> Removal:
    """Order the neurons of a block by what their removal costs, all later ones being refitted after each group.

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
    """Which rows to fill from which, so that removed neurons come after the first `count`: a swap of pairs."""
    stay = torch.ones(len(removed), dtype=torch.bool, device=removed.device)
    stay[removed[removed >= count] - count] = False
    ahead, behind = removed[removed < count], count + stay.nonzero().squeeze(1)
    return torch.cat([ahead, behind]), torch.cat([behind, ahead])


def removal_in_order(order: Tensor, w2: Tensor, second: Tensor, mean: Tensor, *, ridge: float = 1e-4) -> Removal:
    """What a given order of removal costs: with the neurons as L z, the last ones in it span the first of z.

    So E|error|^2 of the best fit on any last r of them is the square of W_2 L beyond its first r columns.
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
    """The ridge in units of the mean square, and more than zero where that is zero."""
    return ridge * float(squares.mean().clamp_min(_TINY))
