"""The options of forge, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from edgevit.derivation.allocate.embedding import check_width
from edgevit.errors import OptionError
from edgevit.train.distil import TeacherOptions
from edgevit.train.products import multiplies_bf16


@dataclass(frozen=True)
class Config(TeacherOptions):
    # Whose answers are learnt: the base's, restricted to the classes, as it is (restricted) or after training on them
    # (finetuned); or nobody's (none).
    teacher: Literal["none", "restricted", "finetuned"] = "restricted"
    # The weight of the final tokens' squared error, relative to the teacher's square; 0 leaves the tokens alone.
    token_weight: float = 1.0
    calibration_images: int = 512  # The number of training images from which the closed form is computed.
    sensitivity_images: int = 64  # The number of training images on which gradients are taken, the sensitivities.
    # The number of training images on which it is measured what the loss is with each block changed or left out.
    measured_images: int = 16
    # Whether passes of images multiply in bf16, where the processor has it: up to 3 times as fast. Sums, what is felt
    # along directions, what is solved and what is tried on the validation images stay in fp32.
    bf16: bool = True
    # What widths are judged by: what the loss feels (fisher), or the output that each module loses (none).
    sensitivity: Literal["fisher", "none"] = "fisher"
    # How the budget is spent: over all widths, heads and blocks at once (joint), all cut alike (uniform), or as the
    # method vulcan does.
    allocation: Literal["joint", "uniform", "vulcan"] = "joint"
    drop_heads: bool = True  # Whether whole heads may go; those of a block that stay have one width.
    # Whether whole blocks may go; with sensitivity=none none does, as nothing says what one is worth.
    drop_blocks: bool = True
    # Whether the attention or the FFN of a block may go without the other; with sensitivity=none none does.
    drop_sites: bool = True
    # Whether a search looks for the sites that stay, where a plan leaves out a quarter of them and loses more than 0.01
    # nats: it solves plans that differ in a few of them, and goes on from the one nearest to the base's answers.
    search_sites: bool = True
    # Whether the embedding may be narrowed, by a change of basis of all blocks at once; only with allocation=joint and
    # sensitivity=fisher. By a cost table it may be as narrow as that lists.
    cut_embedding: bool = True
    # Whether what reads a narrower embedding takes tokens back as fits them best, and directions are chosen for that
    # where few stay (decision 010); else it takes them back by the transposed rotation to the largest directions.
    fit_decoders: bool = True
    embed_width: int = 0  # The embedding's width, if it may be narrowed; 0: the one that is measured to lose least.
    # Whether some tokens leave behind blocks of the deeper half: never; for a budget in MACs where more than 0.01 nats
    # are lost, as measured or else predicted, and that comes clearly nearer to the base's answers on the validation
    # images (tried); or where it is predicted to lose less, by a cost table that lists fewer tokens, too (predicted).
    cut_tokens: Literal["never", "tried", "predicted"] = "tried"
    # Whether output weights are solved again, block by block, for the slim network's own inputs.
    sequential: bool = True
    # How strongly the refit of output weights is drawn to zero, in units of the neurons' mean square.
    ridge: float = 1e-4
    # Whether what reads normalised tokens is aligned to the base's: where more than 0.01 nats are lost, as measured or
    # else predicted, and kept where it helps on the validation images.
    align: bool = True
    # Whether the head is fitted again to the base's answers: where more than 0.01 nats are lost, as measured or else
    # predicted, and kept where it helps on the validation images.
    refit_head: bool = True
    sequential_ridge: float = 1e-3  # How strongly the sequential solution is drawn to the refit, in the same units.

    @property
    def by_loss(self) -> bool:
        """Whether losses are known in nats."""
        return self.sensitivity == "fisher"

    @property
    def quick(self) -> bool:
        """Whether bf16 is asked for, and there."""
        return self.bf16 and multiplies_bf16()

    @property
    def cuts_embedding(self) -> bool:
        return self.cut_embedding and self.allocation == "joint" and self.by_loss

    @property
    def searches_sites(self) -> bool:
        return (
            self.search_sites and self.allocation == "joint" and self.by_loss and self.drop_sites and self.drop_blocks
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images", "sensitivity_images", "measured_images")
        check_width("forge", self.embed_width)
        if self.cut_tokens == "predicted" and not self.cuts_embedding:
            raise OptionError(
                "forge.cut_tokens=predicted needs cut_embedding=true, allocation=joint, sensitivity=fisher"
            )
        if self.embed_width and not self.cuts_embedding:
            raise OptionError(
                f"forge.embed_width={self.embed_width} needs cut_embedding=true, allocation=joint, sensitivity=fisher"
            )
        for name in ("ridge", "sequential_ridge"):
            if not 0 <= getattr(self, name) < inf:
                raise OptionError(f"forge.{name}={getattr(self, name):g} is not a number of at least 0")
