"""Augmentation: labels weigh what pixels weigh, draws follow their laws, and the generator of others is not touched."""

import math
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.training.tasks._images import Augmentation, cut_and_mixed, drawn_from, mixed_up

NONE = {"magnitude": 0.0, "mixup": 0.0, "cutmix": 0.0, "erasing": 0.0, "smoothing": 0.0}


def own_colours(count: int, size: int = 16) -> torch.Tensor:
    """Images each of one value, its own number."""
    return torch.arange(count, dtype=torch.float64)[:, None, None, None].expand(count, 3, size, size)


def expected_values(weights: torch.Tensor) -> torch.Tensor:
    return weights.double() @ torch.arange(weights.shape[1], dtype=torch.float64)


def test_mixup_weighs_labels_as_pixels():
    pixels, weights = own_colours(6), torch.eye(6, dtype=torch.float64)
    for share in (0.0, 0.3, 1.0):
        mixed, labels = mixed_up(pixels, weights, share)
        torch.testing.assert_close(mixed, expected_values(labels)[:, None, None, None].expand_as(mixed))
        torch.testing.assert_close(labels.diagonal(), torch.full((6,), share, dtype=torch.float64))
        torch.testing.assert_close(labels.sum(1), torch.ones(6, dtype=torch.float64))


def test_cutmix_weighs_labels_by_the_area_of_the_box():
    pixels, weights = own_colours(6, 24), torch.eye(6, dtype=torch.float64)
    areas = set()
    with drawn_from(0):
        for share in torch.linspace(0, 1, 41).tolist():
            cut, labels = cut_and_mixed(pixels, weights, share)
            torch.testing.assert_close(cut.mean((1, 2, 3)), expected_values(labels))
            foreign = cut[0, 0] != 0
            rows, columns = foreign.any(1), foreign.any(0)
            assert int(foreign.sum()) == int(rows.sum()) * int(columns.sum())  # one box
            assert set(cut[0].unique().tolist()) <= {0.0, 5.0}
            side = int(24 * math.sqrt(1 - share))
            assert max(int(rows.sum()), int(columns.sum())) <= side
            areas.add(int(foreign.sum()))
    assert len(areas) > 10


def test_the_whole_box_is_inside_for_a_share_of_a_pixel_and_none_for_all():
    pixels, weights = own_colours(2, 10), torch.eye(2, dtype=torch.float64)
    with drawn_from(1):
        for _ in range(30):
            cut, _ = cut_and_mixed(pixels, weights, 0.985)
            assert int((cut[0, 0] != 0).sum()) == 1
            assert torch.equal(cut_and_mixed(pixels, weights, 1.0)[0], pixels)


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.8, 0.2])
def test_shares_of_mixup_follow_beta(alpha):
    augmentation = Augmentation(**{**NONE, "mixup": alpha})
    pixels, weights = own_colours(2, 1), torch.eye(2, dtype=torch.float64)
    with drawn_from(3):
        result = torch.stack([augmentation.mixed(pixels, weights)[1][0, 0] for _ in range(2000)])
    # Beta(α, α): mean 1/2, variance 1/(4 (2 α + 1)), and E x⁴ by its moments.
    variance = 1 / (4 * (2 * alpha + 1))
    kurtosis = 3 - 6 / (2 * alpha + 3)
    assert float(result.mean()) == pytest.approx(0.5, abs=5 * math.sqrt(variance / 2000))
    assert float(result.var()) == pytest.approx(variance, abs=5 * variance * math.sqrt((kurtosis - 1) / 2000))


def test_a_batch_has_mixup_or_cutmix_with_the_same_chance():
    augmentation = Augmentation(**{**NONE, "mixup": 0.8, "cutmix": 1.0})
    pixels, weights = own_colours(2, 16), torch.eye(2, dtype=torch.float64)
    with drawn_from(5):
        several = [len(augmentation.mixed(pixels, weights)[0][1].unique()) for _ in range(800)]
    # A cut image has two values where the box is neither empty nor everything; a mixed one has one.
    cut = np.mean([count == 2 for count in several])
    assert cut == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / 800) + 0.02)


def test_smoothed_labels_add_to_one_and_keep_the_class():
    labels = Augmentation(**{**NONE, "smoothing": 0.1}).labelled(torch.tensor([3, 0]), 4)
    torch.testing.assert_close(labels, torch.tensor([[0.025, 0.025, 0.025, 0.925], [0.925, 0.025, 0.025, 0.025]]))
    everything = Augmentation(**{**NONE, "mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1})
    with drawn_from(2):
        for _ in range(20):
            _, weights = everything.mixed(own_colours(5), everything.labelled(torch.arange(5), 7))
            torch.testing.assert_close(weights.sum(1), torch.ones(5))
            assert float(weights.min()) >= 0.1 / 7 - 1e-6


def test_a_box_of_noise_is_put_into_a_quarter_of_the_images():
    augmentation = Augmentation(**{**NONE, "erasing": 0.25})
    pixels = torch.full((2000, 3, 20, 20), 7.0)
    with drawn_from(4):
        erased = augmentation.erased(pixels)
    changed = (erased != 7.0).any(1)
    assert torch.equal((erased != 7.0).all(1), changed)  # a box is there in every colour
    share = float(changed.flatten(1).any(1).double().mean())
    assert share == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 2000))
    boxes = changed[changed.flatten(1).any(1)]
    rows, columns = boxes.any(2).sum(1).double(), boxes.any(1).sum(1).double()
    assert torch.equal(boxes.sum((1, 2)).double(), rows * columns)
    # The area is even from 0.02 to 1/3 of the image, but for sides that are whole and end at 20.
    assert float((rows * columns).mean() / 400) == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    assert float((rows * columns).max() / 400) < 1 / 3 + 0.05
    noise = erased[erased != 7.0]
    assert float(noise.mean()) == pytest.approx(0, abs=5 / math.sqrt(len(noise)))
    assert float(noise.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * len(noise)))


def test_each_image_has_operations_of_its_own_and_stays_an_image():
    augmentation = Augmentation(**{**NONE, "magnitude": 9.0})
    with drawn_from(6):
        image = torch.rand(1, 3, 16, 16)
        shown = augmentation.rand_augmented(image.repeat(24, 1, 1, 1))
    assert shown.shape == (24, 3, 16, 16)
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 1
    assert len({entry.numpy().tobytes() for entry in shown}) > 12


def test_a_seed_gives_the_same_pixels_whatever_was_drawn_before():
    augmentation = Augmentation()
    pixels = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def seen(*seeds: int) -> list[torch.Tensor]:
        with drawn_from(*seeds):
            erased = augmentation.erased(augmentation.rand_augmented(pixels))
            return list(augmentation.mixed(erased, augmentation.labelled(torch.arange(4), 4)))

    first = seen(0, 128)
    torch.rand(7)
    assert all(map(torch.equal, first, seen(0, 128)))
    assert not torch.equal(first[0], seen(0, 132)[0])
    assert not torch.equal(first[0], seen(1, 128)[0])


def test_nothing_is_changed_where_everything_is_off():
    augmentation = Augmentation(**NONE)
    pixels = torch.rand(3, 3, 8, 8)
    assert torch.equal(augmentation.erased(augmentation.rand_augmented(pixels)), pixels)
    mixed, weights = augmentation.mixed(pixels, augmentation.labelled(torch.tensor([2, 0, 1]), 3))
    assert torch.equal(mixed, pixels)
    assert weights.argmax(1).tolist() == [2, 0, 1]
    assert weights.sum() == 3


PROGRAM = """
import random, sys
import numpy, torch
from tokendynamics.training.tasks._images import Augmentation, drawn_from

def states():
    return [torch.get_rng_state().tolist(), str(numpy.random.get_state()), random.getstate()]

before = states()
with drawn_from(0, 1):
    augmentation = Augmentation()
    for _ in range(20):
        augmentation.mixed(augmentation.erased(augmentation.rand_augmented(torch.rand(3, 3, 8, 8))), torch.eye(3))
print(states() == before, [name for name in ("torchvision", "timm") if name in sys.modules])
"""


@pytest.mark.slow
def test_no_generator_of_others_is_disturbed_and_neither_torchvision_nor_timm_imported():
    """In a process of its own: the type checks of the tests draw from Python's generator."""
    text = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert text.stdout.strip() == "True []"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"magnitude": 30.0}, "magnitude: expected a number from 0 to below 30, got 30.0"),
        ({"mixup": -1.0}, "mixup: expected a number from 0, got -1.0"),
        ({"cutmix": math.inf}, "cutmix: expected a number from 0, got inf"),
        ({"erasing": 1.5}, "erasing: expected a chance from 0 to 1, got 1.5"),
        ({"smoothing": 1.0}, "smoothing: expected a share from 0 to below 1, got 1.0"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(choices, message):
    with pytest.raises(ArgumentValueError, match=message):
        Augmentation(**choices)


def test_the_defaults_are_those_of_the_paper():
    printed = {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1, "erasing": 0.25}  # D.4.2; RandAugment's are not printed
    assert printed.items() <= asdict(Augmentation()).items()
