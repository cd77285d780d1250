# SPDX-License-Identifier: Apache-2.0
"""From a path and wishes to batches of pictures."""

from __future__ import annotations

from collections.abc import Sequence

from nnl.core.arguments.annotations import checked
from nnl.core.arrays.resources import cores
from nnl.data.images.cached import Cached, is_cache
from nnl.data.images.crew import Crew
from nnl.data.images.dali import Dali
from nnl.data.images.loader import Engine, Images
from nnl.data.images.order import Order
from nnl.data.images.shards import Shards, shard_files
from nnl.data.images.sources import Folder, Source
from nnl.data.images.synthetic import IMAGENET, Drawn, Noise
from nnl.data.images.work import Recipe

ENGINES = ("auto", "nnl", "dali", "dali-gpu", "synthetic")


@checked
def open_images(
    path: str | None,
    batch_size: int,
    size: int = 224,
    training: bool = True,
    resize: int = 256,
    engine: str = "auto",
    exact: bool = False,
    jitter: float = 0.0,
    workers: int | None = None,
    prefetch: int = 2,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    samples: int | None = None,
) -> Images:
    """Open pictures for training or validation.

    Args:
        path: A folder of class folders; shards (a folder of .tar or .tfrecord files, one such file,
            or a pattern as in "train-{000..127}.tar"; or of an address as in "s3://pictures/*.tar"
            that fsspec opens, of which copies are kept: nnl[urls]); a folder of NNabla's cache
            files; None with engine="synthetic".
        batch_size: Number of samples in a batch, all of this rank's.
        size: Height and width of a sample.
        training: Whether samples are random crops, mirrored every other time, in a new order each
            epoch, in whole batches; else each is the middle of its picture, in the source's order.
        resize: What a picture's shorter side is made before its middle is taken.
        engine: "nnl"; "dali" or "dali-gpu", NVIDIA's, where it is installed; "synthetic": the same
            drawn pictures again and again; "auto" is "nnl".
        exact: Whether samples are within 1/255 of torchvision's; else JPEGs are decoded smaller
            where a crop is large, with the same geometry and nearly the same values.
        jitter: How far from 1 the factors of brightness, contrast and saturation are in training,
            at most.
        workers: Number of processes, of DALI's threads, that make samples; 0 is this process, None
            one for each core.
        prefetch: Number of batches that are made ahead.
        rank, ranks: Which share of each epoch this is, of how many.
        seed: What decides, with epoch and picture, all that is random. The number of workers and
            where an epoch is begun do not.
        classes: Names of the classes that the pictures must have: those of the training data. None
            is a folder's, sorted; "0", "1", ... for shards and caches, which have only numbers.
        samples: Number of drawn pictures; None is that of ImageNet.
    Raises:
        FileNotFoundError: There is nothing at `path`. ModuleNotFoundError: There is no DALI.
        ValueError: A number is out of its range, or `path` has no classes, an empty class, other
            classes than `classes`, or fewer pictures than a batch.
    """
    if engine not in ENGINES:
        raise ValueError(f"open_images: engine={engine!r} is not one of {', '.join(ENGINES)}")
    for name, value, low, high in (
        ("batch_size", batch_size, 1, 2**20),
        ("size", size, 8, 4096),
        ("resize", resize, size, 2**14),
        ("workers", workers, 0, 1024),
        ("prefetch", prefetch, 1, 64),
        ("ranks", ranks, 1, 2**20),
        ("rank", rank, 0, ranks - 1),
        ("seed", seed, 0, 2**63),
        ("jitter", jitter, 0, 1),
    ):
        if value is not None and not low <= value <= high and (training, name) != (True, "resize"):
            raise ValueError(f"open_images: {name}={value} is not in [{low}, {high}]")
    workers = cores() if workers is None else workers
    source = _source(path, engine, classes, samples, seed)
    order = Order(len(source.labels), batch_size, training, rank, ranks, seed)
    if not order.batches:
        raise ValueError(
            f"open_images: path={path!r} has {order.size} pictures for each of {ranks} ranks, "
            f"fewer than batch_size={batch_size}"
        )
    made: Engine
    if engine == "synthetic":
        made = Noise((prefetch + 1, batch_size, size, size, 3), seed)
        return Images(source, made, order, engine, 0)
    recipe = Recipe(size, training, resize, exact, jitter, seed)
    shape = (prefetch + 1 if workers else 1, batch_size, size, size, 3)
    if engine.startswith("dali"):
        made = Dali(recipe, shape, workers, "cpu" if engine == "dali" else "mixed")
        return Images(source, made, order, engine, workers)
    return Images(source, Crew(recipe, shape, workers), order, "nnl", workers)


def _source(
    path: str | None, engine: str, classes: Sequence[str] | None, samples: int | None, seed: int
) -> Source:
    if engine == "synthetic":
        number, several = IMAGENET
        names = [str(i) for i in range(several)] if classes is None else classes
        return Drawn(number if samples is None else samples, names, seed)
    if path is None:
        raise ValueError('open_images: path=None, wanted a folder, or engine="synthetic"')
    files = shard_files(path)
    if files:
        return Shards(path, files, classes)
    return Cached(path, classes) if is_cache(path) else Folder(path, classes)
