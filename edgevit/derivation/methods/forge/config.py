"""The options of forge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgevit.errors import OptionError
from edgevit.numbers import COUNT, check_number
from edgevit.train.products import multiplies_bf16

RIDGES = (1e-4, 1e-2, 0.3)  # ridges of the order of neurons and their refit, in units of the neurons' mean square


@dataclass(frozen=True)
class Config:
    neuron_orders = len(RIDGES)  # how often the neurons of each FFN are ordered
    calibration_images: int = 512  # The number of training images from which the closed form is computed.
    sensitivity_images: int = 64  # The number of training images on which sensitivities, from gradients, are taken.
    # The number of validation images on which the loss with each block changed or left out is measured.
    measured_images: int = 32
    # Whether passes of images multiply in bf16 where the processor has it: up to 3 times as fast. Sums, sensitivities
    # along directions, solutions and judgements on the validation images stay in fp32.
    bf16: bool = True
    drop_heads: bool = True  # Whether whole heads may be removed; the other heads of a block have one width.
    drop_blocks: bool = True  # Whether whole blocks may be removed.
    drop_sites: bool = True  # Whether the attention or the FFN of a block may be removed without the other.
    # Whether a search chooses the sites to remove, where the plan removes a quarter of them or more and loses more than
    # 0.01 nats: it solves plans that differ in a few sites and continues from the one nearest to the base's answers.
    search_sites: bool = True
    # Whether the embedding may be narrowed, by a change of basis of all blocks at once. With a cost table its width
    # must be one that the table lists.
    cut_embedding: bool = True
    # Whether the layers that read a narrower embedding get the best linear map back to the base's tokens, and few
    # directions are chosen for that; else they get the transposed rotation to the largest directions.
    fit_decoders: bool = True
    # Whether tokens may be removed after blocks of the deeper half: never; for a budget in MACs, where the plan loses
    # more than 0.01 nats and a plan with fewer tokens is clearly nearer to the base's answers on the validation images
    # (tried); or where the predicted loss is less, also with a cost table that lists fewer tokens (predicted).
    cut_tokens: Literal["never", "tried", "predicted"] = "tried"
    # Whether output weights are solved again, block by block, for the slim network's own inputs.
    sequential: bool = True
    # Whether layers that read normalised tokens are aligned to the base's tokens, where the plan loses more than 0.01
    # nats; kept if it helps on the validation images.
    align: bool = True
    # Whether the head is fitted again to the base's answers, where the plan loses more than 0.01 nats; kept if it helps
    # on the validation images.
    refit_head: bool = True

    @property
    def quick(self) -> bool:
        """Whether bf16 is allowed and the processor has it."""
        return self.bf16 and multiplies_bf16()

    @property
    def searches_sites(self) -> bool:
        return self.search_sites and self.drop_sites and self.drop_blocks

    def __post_init__(self) -> None:
        for name in ("calibration_images", "sensitivity_images", "measured_images"):
            check_number(f"forge.{name}", getattr(self, name), COUNT)
        if self.cut_tokens == "predicted" and not self.cut_embedding:
            raise OptionError("forge.cut_tokens=predicted needs cut_embedding=true")
