"""The digits: what is held out stays held out, an item depends on seed and draw alone, accuracy is what it says."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.training.tasks._images import Digits
from tokendynamics.training.tasks._labelled_images import EpochOrder, held_out

EVERY = load_digits()


def keys(pixels: torch.Tensor) -> list[bytes]:
    return [np.round((pixel[0].numpy() + 1) * 8).astype(np.uint8).tobytes() for pixel in pixels]


def batch(task: Digits, split: str) -> dict[str, torch.Tensor]:
    items = getattr(task, split)
    return task.evaluation_batch([items[number] for number in range(len(items))])


def test_the_splits_are_disjoint_stratified_and_all_of_the_data():
    count = 1151
    task = Digits.of("digits", {}, seed=3, draws=count)
    by_name = {split: batch(task, split) for split in ("training", "validation", "test")}
    assert [len(by_name[split]["labels"]) for split in by_name] == [count, 287, 359]
    parts = [set(keys(by_name[split]["pixel_values"])) for split in by_name]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 1797
    wanted = {image.astype(np.uint8).tobytes(): label for image, label in zip(EVERY.images, EVERY.target, strict=True)}
    assert len(wanted) == 1797  # no image is there twice
    assert set().union(*parts) == wanted.keys()
    for split, share in (("validation", 0.16), ("test", 0.2)):
        for key, label in zip(keys(by_name[split]["pixel_values"]), by_name[split]["labels"].tolist(), strict=True):
            assert wanted[key] == label
        per_class = np.bincount(by_name[split]["labels"], minlength=10) / np.bincount(EVERY.target)
        assert np.abs(per_class - share).max() < 1 / 174  # one image of the smallest class


def test_what_is_held_out_does_not_depend_on_the_seed_of_the_run():
    one, other = (Digits.of("digits", {}, seed=seed, draws=4) for seed in (0, 1))
    for split in ("validation", "test"):
        for name, values in batch(one, split).items():
            assert torch.equal(values, batch(other, split)[name])
    assert not torch.equal(batch(one, "training")["pixel_values"], batch(other, "training")["pixel_values"])


def test_an_item_depends_on_seed_and_draw_alone():
    forward, backward = (Digits.of("digits", {}, seed=5, draws=3000) for _ in range(2))
    draws = [0, 7, 1150, 1151, 1152, 2999]
    wanted = {draw: forward.training[draw] for draw in draws}
    for draw in reversed(draws):
        item = backward.training[draw]
        assert item["label"] == wanted[draw]["label"]
        assert np.array_equal(item["pixels"], wanted[draw]["pixels"])
    with pytest.raises(IndexError):
        forward.training[3000]


def test_an_epoch_takes_every_item_once_and_epochs_differ():
    order = EpochOrder(40, seed=2, draws=130)
    epochs = [[order[draw] for draw in range(start, start + 40)] for start in (0, 40, 80)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != [EpochOrder(40, seed=3, draws=40)[draw] for draw in range(40)]


def test_some_of_every_class_are_held_out_and_some_are_kept():
    labels = [0] * 100 + [1] * 2 + [2]
    kept, apart = held_out(labels, 0.01, seed=0)
    assert sorted([*kept, *apart]) == list(range(103))
    assert [labels[number] for number in apart] == [0, 1]
    assert not np.array_equal(apart, held_out(labels, 0.01, seed=1)[1])


def test_accuracy_counts_the_class_among_the_first_and_the_first_five():
    task = Digits.of("digits", {}, seed=0, draws=1)
    logits = torch.tensor([10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1]).repeat(4, 1)
    scores = task.scores(logits, torch.tensor([0, 4, 5, 9]))
    assert scores.tolist() == [[1, 1], [0, 1], [0, 0], [0, 0]]
    assert task.measures(1.5, scores) == {"top1": 25.0, "top5": 50.0, "loss": 1.5}
    assert task.measure in task.measures(1.5, scores)


def test_the_processor_beside_the_weights_gives_the_pixels_of_the_task(tmp_path):
    from tokendynamics.pretrained.encoding import load_image_processor

    task = Digits.of("digits", {}, seed=0, draws=1)
    task.save_inputs(tmp_path)
    processor = load_image_processor(tmp_path)
    pixels = batch(task, "test")["pixel_values"][0]
    grey = ((pixels[0].numpy() + 1) * 127.5).round().astype(np.uint8)
    read = processor(Image.fromarray(grey).convert("RGB"), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(read, pixels, rtol=0, atol=1.01 / 255)  # half a level of 255, over the deviation 0.5


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("mnist", {}, "data: expected 'digits'"),
        ("digits", {"context": 3}, "options: expected none for 'digits', got context"),
    ],
)
def test_other_data_and_options_are_refused(data, options, message):
    with pytest.raises(ArgumentValueError, match=message):
        Digits.of(data, options, seed=0, draws=1)
