"""Fewer channels for the tokens of a whole network, in closed form: keep what the norms that read them see most of.

Tokens x [d] are only added to, and read through LayerNorms: n = (x - mean) / sqrt(var + eps). With the
d' - 1 directions Q [d, d' - 1] that hold most of the normalised tokens, all orthogonal to the ones vector, and any
orthonormal basis U [d', d' - 1] of what is orthogonal to the ones vector in d' dimensions,

    x' = E x,    E = sqrt(d' / d) U Q^T

has mean 0, and where Q holds x - mean wholly its variance is that of x; so its LayerNorm, of d' channels and with the
same eps, gives E n, and E^T d / d' takes it back. Writers W become E W, readers W become W E^T d / d'. At d' = d
nothing is lost. (SliceGPT, Ashkboos et al. 2024, for RMSNorm; here for LayerNorm.)

Below, E^T d / d' is not the best way back. The directions Q are those of all norms together, and at each of them what
is left out goes with what is kept; and a LayerNorm divides by less than it did. With m and C the mean and covariance of
the n that one norm gives, weighted by sensitivity, and E' = k E, k^2 = d' / E|E n|^2, as it rescales them,

    D = C E'^T (E' C E'^T + ridge)^-1,    t = m - D E' m

is the D and t of least E|n - D n' - t|^2 (`judged_decoder`), whatever reads them: a reader W becomes W D, with the bias
W t. It is drawn to E^T d / d' where the tokens say little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import pi, sqrt

import torch
from torch import Tensor

from edgevit.derivation.solve.factorise import one_thread
from edgevit.derivation.solve.least_squares import least_of
from edgevit.network.anatomy import Decoder, decoder
from edgevit.train.products import exact_products

_REFINING_STEPS = 6  # number of steps: of 4 to 10 the best, or nearly, on both data sets at every width (decision 011)
_REFINING_RIDGE = 1e-4  # ridge in units of the mean square of the encoded tokens
_DECODER_RIDGE = 1e-3  # ridge in units of the mean square of the normalised tokens, which is 1
_DECODER_RIDGES = (10.0, 1.0, 0.1, 0.01, 1e-3)  # ridges to choose from, the strongest first


def flat_basis(width: int) -> Tensor:
    """Orthonormal columns [d, d - 1] that are orthogonal to the ones vector: cosines, of which each spreads evenly.

    So the largest directions of the tokens are shared by all channels, and no channel is an outlier.
    """
    rows = torch.arange(width, dtype=torch.float64).unsqueeze(1)
    waves = torch.arange(1, width, dtype=torch.float64)
    return sqrt(2 / width) * torch.cos(pi * (rows + 0.5) * waves / width)


def nested_basis(width: int) -> Tensor:
    """Helmert's contrasts [d, d - 1]: orthonormal; the first d' - 1 use the first d' channels only, with a sum of zero.

    So tokens of a network that is given this basis (`encoder`) hold their largest directions in their first channels,
    and its first d' channels are what it would be at that width (`prefix`), but for what all of them share.
    """
    counts = torch.arange(1, width, dtype=torch.float64)
    contrasts = torch.ones(width, width - 1, dtype=torch.float64).triu()
    contrasts[torch.arange(1, width), torch.arange(width - 1)] = -counts
    return contrasts / (counts * (counts + 1)).sqrt()


def prefix(width: int, of: int) -> Tensor:
    """E [d', d] that keeps the first d' = `width` channels: what they share is no direction, and norms take it away."""
    return sqrt(width / of) * torch.eye(width, of, dtype=torch.float64)


def channel_encoder(channels: Tensor, width: int) -> Tensor:
    """The matrix [d', d] by which tokens keep these channels [d'] of `width` (`plan.EmbedPlan`), in fp64.

    A LayerNorm does not see its scale, d' / d; with it those that read tokens keep their weights as they are.
    """
    encode = torch.zeros(len(channels), width, dtype=torch.float64)
    encode[torch.arange(len(channels)), channels.cpu()] = len(channels) / width
    return encode


def principal(moment: Tensor) -> Tensor:
    """The directions Q [d, d - 1] of a second moment [d, d] of normalised tokens, the largest first; on the CPU."""
    with one_thread():
        basis = flat_basis(len(moment))
        _, vectors = torch.linalg.eigh(basis.mT @ moment.double().cpu() @ basis)  # ascending
        directions: Tensor = basis @ vectors.flip(-1)
        return directions


def encoder(
    directions: Tensor, width: int, basis: Callable[[int], Tensor] = flat_basis, *, mean: bool = False
) -> Tensor:
    """E [d', d] for d' = `width`, from all directions [d, d - 1]; `basis` is U [d', d' - 1] of a width.

    Args:
        mean: whether x' has the mean of x, which a norm that reads several tokens side by side sees, in place of 0.
    """
    whole = len(directions)
    with one_thread():
        encode: Tensor = sqrt(width / whole) * basis(width) @ directions[:, : width - 1].mT
        return encode + 1 / whole if mean else encode


def refined(directions: Tensor, width: int, moments: Sequence[Tensor], worth: Sequence[float]) -> Tensor:
    """Directions [d, width - 1] from which all norms' tokens are predicted best, each by its fitted decoder.

    With C_l the covariance of what norm l gives and w_l what it is worth to the answers, they maximise

        sum_l w_l tr[(Z C_l Z^T)^-1 Z C_l^2 Z^T],

    the share of the tokens that Z n explains. A few steps of L-BFGS start from the largest directions. More steps
    explain more, but lose more where a fifth of the width or more remains: the variance that is kept becomes less even
    over the tokens, and the norm divides by it. Of Z only its span matters. With A = (Z C Z^T)^-1 Z C^2 and
    B = (Z C Z^T)^-1 Z C, the gradient of one term is 2 (A - A Z^T B).

    Shapes: directions [d, d - 1]; moments [d + 1, d + 1] as for `judged_decoder`. In fp32, on the CPU.
    """
    with exact_products(directions.device, wide=True):
        terms, whole = [], 0.0
        for moment, weight in zip(moments, worth, strict=True):
            covariance = moment[:-1, :-1].float() - torch.outer(moment[:-1, -1], moment[:-1, -1]).float()
            if (worth_of_term := weight * float(covariance.trace())) > 0:
                terms.append((weight, covariance, covariance @ covariance))
                whole += worth_of_term
        if not terms:
            return directions[:, : width - 1]
        identity = torch.eye(width - 1)
        z = directions[:, : width - 1].mT.float().contiguous().requires_grad_()
        optimiser = torch.optim.LBFGS([z], max_iter=_REFINING_STEPS, line_search_fn="strong_wolfe")

        def unexplained() -> float:
            explained, at, z.grad = 0.0, z.detach(), torch.zeros_like(z)
            for weight, covariance, square in terms:
                b = at @ covariance
                gram = b @ at.mT
                factor = torch.linalg.cholesky(gram + _REFINING_RIDGE * gram.diagonal().mean() * identity)
                a, b = torch.cholesky_solve(at @ square, factor), torch.cholesky_solve(b, factor)
                by = a @ at.mT
                explained += weight * float(by.trace())
                z.grad -= (2 * weight / whole) * (a - by @ b)
            return 1 - explained / whole

        optimiser.step(unexplained)  # type: ignore[no-untyped-call]
        solution = z.detach().double().mT
        spanned: Tensor = torch.linalg.qr(solution - solution.mean(0)).Q
        return spanned


@dataclass(frozen=True)
class _Moments:
    """Second moments of tokens n [d] and of E n [d'] in the precision of the sums: linear in the images they are of."""

    weight: Tensor  # sum of the images' weights, the divisor of all sums
    mean: Tensor  # [d] sum of n
    encoded: Tensor  # [d'] sum of E n
    cross: Tensor  # [d, d'] sum of n (E n)^T
    gram: Tensor  # [d', d'] sum of E n (E n)^T

    @classmethod
    def of(cls, encode: Tensor, moment: Tensor) -> _Moments:
        """Shapes: encode [d', d]; moment [d + 1, d + 1], of [n 1]^T [n 1]."""
        encode, second, mean = encode.to(moment.dtype), moment[:-1, :-1], moment[:-1, -1]
        cross = second @ encode.mT
        return cls(moment[-1, -1], mean, encode @ mean, cross, encode @ cross)

    def map(self, change: Callable[..., Tensor], *others: _Moments) -> _Moments:
        """Apply a linear function to each of the sums."""
        names = [field.name for field in fields(self)]
        return _Moments(*(change(*(getattr(moments, name) for moments in (self, *others))) for name in names))

    def means(self) -> _Moments:
        """The means over the images; 0 if there are none."""
        weight = self.weight.clamp_min(torch.finfo(self.weight.dtype).tiny)
        return self.map(lambda sums: sums / weight)

    @property
    def rescaling(self) -> Tensor:
        """k, by which the norm rescales E n: k^2 E|E n|^2 = d'."""
        square = self.gram.trace()
        return (len(self.gram) / square).sqrt() if square > 0 else square.new_ones(())  # 0: no output depends on it

    def decoder(self, plain: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """D [d, d'] and t [d] of means over images, D drawn to `plain`."""
        scaled = self.rescaling * self.encoded
        cross = self.rescaling * self.cross - torch.outer(self.mean, scaled)
        gram = self.rescaling**2 * self.gram - torch.outer(scaled, scaled)
        gram.diagonal().add_(ridge)
        weight = torch.cholesky_solve((cross + ridge * plain).mT, torch.linalg.cholesky(gram)).mT
        return weight, self.mean - weight @ scaled

    def error(self, weight: Tensor, bias: Tensor, rescaling: Tensor) -> float:
        """The sum of |n - D k E n - t|^2 less that of |n|^2, which no decoder changes."""
        scaled = rescaling * weight
        explained = scaled @ self.gram - 2 * self.cross
        shifted = self.weight * bias + 2 * (scaled @ self.encoded - self.mean)
        return float((explained * scaled).sum(dtype=torch.float64) + (shifted * bias).sum(dtype=torch.float64))


def judged_decoder(encode: Tensor, moments: Sequence[Tensor], *, rescaled: bool = True) -> Decoder:
    """The decoder that predicts one norm's tokens best from those of a narrower embedding.

    Its ridge has the least error on groups of images that it is not fitted to; it is `_DECODER_RIDGE` for one group.

    Args:
        rescaled: whether a LayerNorm of d' channels rescales the tokens x' = E x first. If not, x' itself is decoded,
            and E (D x' + t) = x': what is read again is not changed.

    Shapes: encode [d', d]; moments [d + 1, d + 1], the sum of [n 1]^T [n 1] over the tokens n of each group of images.
    Their precision is that of the sums. On the CPU.
    """
    # Products with the encoder are made once for all ridges.
    with one_thread(), exact_products(encode.device, wide=True):
        groups = [_Moments.of(encode, moment) for moment in moments]
        whole = groups[0].map(lambda *sums: torch.stack(sums).sum(0), *groups[1:])
        plain = decoder(encode).weight.to(whole.gram)
        parts = [group for group in groups if group.weight > 0]

        def fitted_to(means: _Moments, ridge: float) -> tuple[Tensor, Tensor]:
            return means.decoder(plain if rescaled else plain / means.rescaling, ridge)

        def error(ridge: float) -> float:
            total = 0.0
            for held_out in parts:
                others = whole.map(torch.sub, held_out)
                means = others.means()
                # The lift of the sum stays the same with fewer images.
                fitted = fitted_to(means, ridge * float(whole.weight / others.weight))
                total += held_out.error(*fitted, means.rescaling)
            return total

        ridge = _DECODER_RIDGE if len(parts) < 2 else least_of(_DECODER_RIDGES, error)
        means = whole.means()
        weight, bias = fitted_to(means, ridge)
        return Decoder((weight if rescaled else means.rescaling * weight).double(), bias.double())
