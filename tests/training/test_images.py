"""Images on disk: two layouts that hold the same, a test split that nothing is chosen on, wrong input by name."""

import json
import math
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.training.tasks import Task
from tokendynamics.training.tasks._images import Images, random_box

CLASSES = ("cat", "dog", "elk")
SMALL = {"image_size": 16, "validation_share": 0.25}
PLAIN = {"magnitude": 0, "mixup": 0, "cutmix": 0, "erasing": 0, "smoothing": 0}


def picture(label: int, number: int) -> Image.Image:
    """Every picture has a colour of its own, so that it can be told from the others."""
    width, height = 20 + number, 24
    colour = (60 * label + 40, 20 * number + 20, 200 if number % 2 else 90)
    return Image.new("RGB", (width, height), colour)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    for split, count, first in (("train", 8, 0), ("val", 2, 8)):
        for label, name in enumerate(CLASSES):
            (place / split / name).mkdir(parents=True)
            for number in range(first, first + count):
                picture(label, number).save(place / split / name / f"{number:02}.png")
    (place / "train" / "cat" / "notes.txt").write_text("no image")
    (place / "train" / "cat" / "._00.png").write_bytes(b"what macOS leaves")
    return place


@pytest.fixture(scope="module")
def parquet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    (place / "data").mkdir()
    for split, name in (("train", "train-00000-of-00001"), ("val", "validation-00000-of-00001")):
        files = sorted((folder / split).glob("*/[0-9]*.png"))
        rows = {
            "image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
            "label": [CLASSES.index(file.parent.name) for file in files],
        }
        features = Features({"image": ImageFeature(), "label": ClassLabel(names=list(CLASSES))})
        Dataset.from_dict(rows, features=features).to_parquet(place / "data" / f"{name}.parquet")
    return place


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` makes of Parquet files goes to a folder of the tests."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")


def whole(task: Images, split: str) -> dict[str, torch.Tensor]:
    items = getattr(task, split)
    return task.evaluation_batch([items[number] for number in range(len(items))])


def colours(batch: dict[str, torch.Tensor], task: Images) -> list[tuple[int, ...]]:
    """Return the colour of each image of one colour, in levels of 255."""
    mean, std = torch.tensor(task._processor.image_mean), torch.tensor(task._processor.image_std)
    flat = batch["pixel_values"].mean((2, 3)) * std + mean
    return [tuple(entry) for entry in (flat * 255).round().int().tolist()]


def wanted(label: int, number: int) -> tuple[int, ...]:
    return picture(label, number).getpixel((0, 0))


def test_test_is_val_and_validation_is_a_part_of_train_that_is_not_trained_on(folder):
    task = Images.of(str(folder), {**SMALL, **PLAIN}, seed=0, draws=18)
    assert isinstance(task, Task)
    test, validation = whole(task, "test"), whole(task, "validation")
    assert colours(test, task) == [wanted(label, number) for label in range(3) for number in (8, 9)]
    assert test["labels"].tolist() == [0, 0, 1, 1, 2, 2]
    assert validation["labels"].tolist() == [0, 0, 1, 1, 2, 2]
    trained = task.training_batch([task.training[draw] for draw in range(18)])
    assert trained["labels"].sum(0).tolist() == [6, 6, 6]
    of_train = {wanted(label, number) for label in range(3) for number in range(8)}
    assert len(of_train) == 24
    assert set(colours(trained, task)) | set(colours(validation, task)) == of_train
    assert not set(colours(trained, task)) & set(colours(validation, task))
    other = Images.of(str(folder), {**SMALL, **PLAIN}, seed=1, draws=18)
    assert torch.equal(whole(other, "validation")["pixel_values"], validation["pixel_values"])


def test_parquet_files_hold_what_the_folder_holds(folder, parquet):
    tasks = [Images.of(str(place), SMALL, seed=2, draws=9) for place in (folder, parquet)]
    for split in ("validation", "test"):
        for name in ("pixel_values", "labels"):
            assert torch.equal(*(whole(task, split)[name] for task in tasks))
    batches = [task.training_batch([task.training[draw] for draw in range(3, 9)]) for task in tasks]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])
    assert tasks[0].fitted() == tasks[1].fitted()
    names = dict(enumerate(CLASSES))
    assert tasks[0].fitted() == {"image_size": 16, "channels": 3, "num_labels": 3, "id2label": names}


def test_a_resumed_run_sees_the_same_pixels_and_soft_labels(folder):
    first, again = (Images.of(str(folder), SMALL, seed=4, draws=60) for _ in range(2))
    batches = [first.training_batch([first.training[draw] for draw in range(at, at + 6)]) for at in (0, 6, 24)]
    before = torch.get_rng_state()
    resumed = again.training_batch([again.training[draw] for draw in range(24, 30)])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(resumed["pixel_values"], batches[2]["pixel_values"])
    assert torch.equal(resumed["labels"], batches[2]["labels"])
    assert resumed["labels"].shape == (6, 3)
    torch.testing.assert_close(resumed["labels"].sum(1), torch.ones(6))
    items = [first.training[draw] for draw in range(24, 30)]
    later = again.training_batch([{**items[0], "draw": 30}, *items[1:]])
    assert not torch.equal(later["pixel_values"], resumed["pixel_values"])
    other = Images.of(str(folder), SMALL, seed=5, draws=60)
    assert not torch.equal(
        other.training_batch([other.training[draw] for draw in range(6)])["labels"], batches[0]["labels"]
    )


def test_a_box_is_drawn_by_area_and_ratio_inside_the_image():
    chance = np.random.default_rng(0)
    boxes = np.array([random_box(400, 300, chance) for _ in range(4000)], dtype=float)
    left, upper, right, lower = boxes.T
    assert left.min() >= 0
    assert upper.min() >= 0
    assert right.max() <= 400
    assert lower.max() <= 300
    wide, high = right - left, lower - upper
    area, ratio = wide * high / 120_000, wide / high
    rounding = 1.02  # a side of 98 pixels or more is whole to half a pixel
    assert 0.08 / rounding < area.min() < 0.09
    assert area.max() > 0.95
    assert 0.75 / rounding < ratio.min()
    assert ratio.max() < 4 / 3 * rounding
    # Small boxes fit always: among them the area is even from 0.08 to 0.4, and the ratio even in its logarithm.
    small = area < 0.4
    deviation = 0.32 / math.sqrt(12 * small.sum())
    assert area[small].mean() == pytest.approx(0.24, abs=5 * deviation)
    logarithm = np.log(ratio[small])
    assert logarithm.mean() == pytest.approx(0, abs=5 * 2 * math.log(4 / 3) / math.sqrt(12 * small.sum()))
    assert logarithm.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.1)
    where = left[small] / (400 - wide[small])
    assert where.mean() == pytest.approx(0.5, abs=5 / math.sqrt(12 * small.sum()))


def test_where_no_box_fits_the_largest_in_the_middle_is_taken():
    chance = np.random.default_rng(0)
    assert random_box(1000, 2, chance) == (498, 0, 501, 2)  # both rows, and 4/3 of them in columns
    assert random_box(2, 1000, chance) == (0, 498, 2, 501)


def test_training_sees_the_box_that_was_drawn_and_half_of_the_images_turned_over(tmp_path):
    """Pictures that rise from left to right: their mean is the middle of the box, and they fall if turned over."""
    rising = np.repeat(np.linspace(0, 248, 32).astype(np.uint8)[None, :, None], 32, 0).repeat(3, 2)
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for number in range(2):
            Image.fromarray(rising).save(tmp_path / split / "a" / f"{number}.png")
    task = Images.of(str(tmp_path), {**SMALL, **PLAIN}, seed=3, draws=400)
    seen = np.array([task.training[draw]["pixels"][8, :, 0] for draw in range(400)], dtype=float)
    boxes = np.array([random_box(32, 32, np.random.default_rng([3, draw])) for draw in range(400)])
    # A column is 8 levels; scaling brings one of them in at the edges of a box at most.
    np.testing.assert_allclose(seen.mean(1), 8 * ((boxes[:, 0] + boxes[:, 2]) / 2 - 0.5), rtol=0, atol=8)
    assert np.mean(seen[:, 0] > seen[:, -1]) == pytest.approx(0.5, abs=5 / math.sqrt(4 * 400))


def test_an_evaluation_is_what_the_processor_beside_the_weights_gives(folder, tmp_path):
    from tokendynamics.pretrained.encoding import load_image_processor

    options = {**SMALL, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    task = Images.of(str(folder), options, seed=0, draws=1)
    task.save_inputs(tmp_path)
    processor = load_image_processor(tmp_path)
    with Image.open(folder / "val" / "dog" / "09.png") as image:
        read = processor(image, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(read, whole(task, "test")["pixel_values"][3])
    # 29 × 24 pixels: the shorter side becomes 18 = 16 · 256/224, of which the 16 × 16 in the middle are seen.
    by_hand = (torch.tensor(wanted(1, 9)) / 255 - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.3, 0.4])
    torch.testing.assert_close(read, by_hand[:, None, None].expand(3, 16, 16), rtol=0, atol=1e-5)


def test_the_square_of_an_evaluation_is_in_the_middle(tmp_path):
    striped = np.zeros((64, 128, 3), dtype=np.uint8)
    striped[:, 64 - 8 : 64 + 8] = 255  # a white stripe of 16 columns in the middle
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for number in range(2):
            Image.fromarray(striped).save(tmp_path / split / "a" / f"{number}.png")
    task = Images.of(str(tmp_path), {**SMALL, "image_size": 56, "mean": [0, 0, 0], "std": [1, 1, 1]}, seed=0, draws=1)
    row = task.test[0]["pixels"][0, 28]  # the shorter side becomes 64 = its own: nothing is scaled
    assert np.array_equal(row > 0.5, np.abs(np.arange(56) - 27.5) < 8)


def test_pictures_of_other_kinds_are_read_in_three_colours(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("L", (20, 20), 51).save(tmp_path / split / "a" / "grey.JPEG", quality=100)
        Image.new("RGBA", (20, 20), (51, 51, 51, 255)).save(tmp_path / split / "a" / "clear.png")
    task = Images.of(str(tmp_path), {**SMALL, "mean": [0, 0, 0], "std": [1, 1, 1]}, seed=0, draws=1)
    torch.testing.assert_close(
        whole(task, "test")["pixel_values"], torch.full((2, 3, 16, 16), 0.2), rtol=0, atol=1.01 / 255
    )


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place / "copy"))


def test_an_image_that_cannot_be_read_is_named(folder, tmp_path):
    place = copied(folder, tmp_path)
    broken = place / "val" / "cat" / "08.png"
    broken.write_bytes(broken.read_bytes()[:40])
    task = Images.of(str(place), SMALL, seed=0, draws=1)
    with pytest.raises(ArgumentValueError, match=r"data: expected images that can be read, got .*val/cat/08\.png"):
        task.test[0]
    stream = BytesIO()
    picture(0, 0).save(stream, "png")
    rows = {
        "image": [{"bytes": data, "path": None} for data in (stream.getvalue(), b"no image", stream.getvalue())],
        "label": [0, 0, 0],
    }
    (tmp_path / "tables").mkdir()
    features = Features({"image": ImageFeature(), "label": Value("int64")})
    for split in ("train", "val"):
        Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "tables" / f"{split}.parquet")
    task = Images.of(str(tmp_path / "tables"), SMALL, seed=0, draws=1)
    assert task.fitted()["num_labels"] == 1
    assert task.fitted()["id2label"] is None
    with pytest.raises(ArgumentValueError, match=r"image 1 of .*tables/val\*\.parquet"):
        task.test[1]


def test_what_is_no_set_of_images_is_refused_with_the_layout(folder, tmp_path):
    layout = "data: expected a folder with train/CLASS/.*train.*parquet.*"

    def refused(place: Path, came: str) -> None:
        with pytest.raises(ArgumentValueError, match=layout + came):
            Images.of(str(place), SMALL, seed=0, draws=1)

    refused(tmp_path / "nowhere", "got nothing at .*nowhere")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", "got the file .*file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "got .*empty without train and val")
    (tmp_path / "empty" / "other.txt").write_text("text")
    refused(tmp_path / "empty", "empty without train and val, but with other.txt")
    (tmp_path / "empty" / "train.parquet").write_bytes(b"PAR1")
    refused(tmp_path / "empty", "empty without val, but with other.txt, train.parquet")
    (tmp_path / "empty" / "val").mkdir()
    refused(tmp_path / "empty", "empty without both splits in one form, but with other.txt, train.parquet, val")
    (tmp_path / "empty" / "val.parquet").write_bytes(b"PAR1")
    refused(tmp_path / "empty", "nothing can be read: ")
    place = copied(folder, tmp_path)
    shutil.rmtree(place / "val" / "cat")
    shutil.rmtree(place / "val" / "dog")
    shutil.rmtree(place / "val" / "elk")
    refused(place, "no image in .*val")
    for file in (place / "train" / "elk").iterdir():
        file.unlink()
    refused(place, "no image in .*train/elk")
    shutil.rmtree(place / "train")
    (place / "train").mkdir()
    refused(place, "train without a folder of a class")


def test_classes_of_val_that_train_does_not_have_are_refused(folder, tmp_path):
    place = copied(folder, tmp_path)
    (place / "val" / "fox").mkdir()
    with pytest.raises(ArgumentValueError, match=r"classes in val that are in train, got .*val/fox"):
        Images.of(str(place), SMALL, seed=0, draws=1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"train": {"picture": [b""], "label": [0]}}, r"train\*\.parquet with the columns picture, label"),
        ({"val": {"image": [b""], "label": [-1]}}, "whole numbers from 0 in the column label of .*, got -1 to -1"),
        ({"val": {"image": [b""], "label": ["cat"]}}, "whole numbers from 0 in the column label of .*'cat'"),
        ({"val": {"image": [b""], "label": [3]}}, "classes in val that are in train, got label 3"),
        ({"val": {"image": [], "label": []}}, r"got .*val\*\.parquet, of which nothing can be read"),
        ({}, "a class of two images or more in train, got one image of each"),
    ],
)
def test_tables_of_another_kind_are_refused(columns, message, tmp_path):
    usual = {split: {"image": [b""], "label": [0]} for split in ("train", "val")}
    for split, rows in {**usual, **columns}.items():
        Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(ArgumentValueError, match=message):
        Images.of(str(tmp_path), SMALL, seed=0, draws=1)


def written(path: Path, names: tuple[str, ...], labels: list[int]) -> None:
    """Write a table whose labels are not checked against their names, as other programs write them."""
    features = Features({"image": Value("binary"), "label": ClassLabel(names=list(names))})
    facts = {"huggingface": json.dumps({"info": {"features": features.to_dict()}})}
    columns = {"image": pa.array([b""] * len(labels)), "label": pa.array(labels)}
    pq.write_table(pa.table(columns).replace_schema_metadata(facts), path)


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (("cat", "dog"), [0, 2], r"/val\*\.parquet, of which nothing can be read: Class label 2 greater"),
        (("dog", "cat"), [0, 1], r"the same classes in the same order .*, got \('cat', 'dog'\) and \('dog', 'cat'\)"),
        (("cat", "dog"), [0, 1], "nothing"),
    ],
)
def test_numbers_and_names_of_classes_must_fit(names, labels, message, tmp_path):
    written(tmp_path / "train.parquet", ("cat", "dog"), [0, 0, 1, 1])
    written(tmp_path / "val.parquet", names, labels)
    if message == "nothing":
        assert Images.of(str(tmp_path), SMALL, seed=0, draws=1).fitted()["id2label"] == {0: "cat", 1: "dog"}
        return
    with pytest.raises(ArgumentValueError, match=message):
        Images.of(str(tmp_path), SMALL, seed=0, draws=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"validation_share": 0.0}, ArgumentValueError, "validation_share: expected a share above 0, up to 0.5, got 0"),
        ({"context": 3}, ArgumentValueError, "options: expected entries among image_size.*got 'context'"),
        ({"image_size": 0}, ArgumentValueError, "image_size: expected"),
        ({"mixup": "strong"}, ArgumentTypeError, "mixup: expected"),
        ({"mean": [0.5]}, ArgumentTypeError, "mean: expected three numbers, for red, green and blue"),
        ({"std": [0.5, 0.0, 0.5]}, ArgumentValueError, "std: expected three positive numbers"),
        ({"erasing": 2.0}, ArgumentValueError, "erasing: expected a chance from 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, error, message, folder):
    with pytest.raises(error, match=message):
        Images.of(str(folder), options, seed=0, draws=1)
