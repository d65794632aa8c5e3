"""Groups of similar direction among the tokens of trained networks, as Figure 8 finds them in pretrained ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from reproductions.positional import fig8
from reproductions.positional.by_seed import Key
from reproductions.positional.trained import (
    PROJECTIONS,
    network_of,
    short_trainings,
    texts_of_test,
    trained,
    working_folder,
)
from reproductions.record import Quantity
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.training import Experiment, Record

Groups = dict[str, dict[str, fig8.Grouped]]
"""By network and variant."""
Paths = dict[str, dict[str, xr.Dataset | None]]


@dataclass(frozen=True)
class Sample:
    """What is grouped.

    Attributes:
        texts: Of the test split, how many.
        tokens: Of each.
        draws: Sets of directions without groups, for each text and layer.
        seed: Of the texts; that of the directions is the next one.
    """

    texts: int
    tokens: int
    draws: int
    seed: int

    @property
    def words(self) -> str:
        """What of it is chosen here."""
        return (
            f"{self.texts} texts of {self.tokens} bytes of the test split (seed {self.seed}), and, as in Figure 8, how "
            f"groups are found and what chance is ({self.draws} rotations of each text's directions among each other, "
            f"seed {self.seed + 1})"
        )


def trained_groups(
    regimes: Sequence[str],
    variants: Sequence[str],
    sample: Sample,
    *,
    seeds: Sequence[int],
    layers: int,
    steps: int,
    folder: str | Path | None,
    progress: bool | Progress,
) -> tuple[dict[Key, Record], Groups, Paths]:
    """Train networks, and group the tokens of texts of the test split in the last layers of the divergent ones.

    Args:
        regimes: To train, "divergence" among them.
        variants: Of the networks, such as "no-ffn".
        sample: Of texts and chance.
        seeds: Of weights and data.
        layers: Of the networks.
        steps: Of training.
        folder: Where trained networks are kept and taken from.
        progress: Of the trainings, and of the networks.

    Returns:
        What became of the trainings; the groups in networks that finished; and the first text's paths in the first
        network of each projection, to be drawn.
    """
    wanted = short_trainings({regime: {"regime": regime} for regime in regimes}, seeds, layers, steps)
    with working_folder(folder) as place, reporting(progress) as report:
        trainings = trained(wanted, place, report)
        return trainings, *_grouped(wanted, trainings, place, variants, sample, report)


def _grouped(
    wanted: Mapping[Key, Experiment],
    trainings: Mapping[Key, Record],
    folder: Path,
    variants: Sequence[str],
    sample: Sample,
    report: Progress,
) -> tuple[Groups, Paths]:
    chosen = {
        key: experiment for key, experiment in wanted.items() if key[1] == "divergence" and trainings[key].finished
    }
    ids = texts_of_test(next(iter(wanted.values())), sample.tokens, sample.texts, sample.seed)
    groups: Groups = {}
    paths: Paths = {}
    rotations = (sample.draws, sample.seed + 1)
    for (output, _, seed), experiment in tracked(list(chosen.items()), report, "networks whose tokens are grouped"):
        ckpt = network_of(experiment, folder)
        under = {variant: ckpt.under(variant) for variant in variants}
        name = f"{PROJECTIONS[output]}, seed {seed}"
        groups[name] = {
            variant: fig8.groups(variant_network, ids, *rotations) for variant, variant_network in under.items()
        }
        if output not in paths:
            paths[output] = {
                variant: fig8.drawn_paths(variant_network, ids[0]) for variant, variant_network in under.items()
            }
    return groups, paths


def compared_groups(groups: Groups) -> list[Quantity]:
    """Return what is compared of every network and variant; see `reproductions.positional.fig8.compared`."""
    return [
        quantity
        for name, of_network in groups.items()
        for variant, grouped in of_network.items()
        for quantity in fig8.compared(f"{name}, {fig8.VARIANTS[variant]}", grouped, claimed=True)
    ]
