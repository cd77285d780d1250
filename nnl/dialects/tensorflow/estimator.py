# SPDX-License-Identifier: Apache-2.0
"""tf.estimator: a function that builds a model, trained, evaluated and asked from checkpoints."""

from __future__ import annotations

import copy
import inspect
import itertools
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from nnl.converters.tensorflow.checkpoint import Checkpoint
from nnl.dialects.tensorflow.data import Dataset
from nnl.dialects.tensorflow.graph import Graph
from nnl.dialects.tensorflow.metrics import mean
from nnl.dialects.tensorflow.monitored import (
    LoggingTensorHook,
    MonitoredSession,
    MonitoredTrainingSession,
    NanTensorHook,
    StopAtStepHook,
)
from nnl.dialects.tensorflow.saver import latest_checkpoint
from nnl.dialects.tensorflow.session import OutOfRangeError
from nnl.dialects.tensorflow.train import get_or_create_global_step
from nnl.dialects.tensorflow.variables import set_random_seed


class ModeKeys:
    """What a model is built for."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


class EstimatorSpec:
    """What a model function gives.

    Raises:
        ValueError: What the mode needs is missing.
    """

    def __init__(self, mode, predictions=None, loss=None, train_op=None, eval_metric_ops=None,
                 export_outputs=None, training_chief_hooks=None, training_hooks=None,
                 scaffold=None, evaluation_hooks=None, prediction_hooks=None):  # fmt: skip
        needed = {
            ModeKeys.TRAIN: {"loss": loss, "train_op": train_op},
            ModeKeys.EVAL: {"loss": loss},
            ModeKeys.PREDICT: {"predictions": predictions},
        }
        if mode not in needed:
            raise ValueError(f"Invalid mode: {mode!r}")
        for name, value in needed[mode].items():
            if value is None:
                raise ValueError(f"Missing {name}.")
        self.mode, self.predictions, self.loss, self.train_op = mode, predictions, loss, train_op
        self.eval_metric_ops = dict(eval_metric_ops or {})
        self.training_hooks = [*(training_chief_hooks or ()), *(training_hooks or ())]
        self.evaluation_hooks = list(evaluation_hooks or ())
        self.prediction_hooks = list(prediction_hooks or ())


class RunConfig:
    """How an Estimator runs; settings of several machines are not used."""

    def __init__(self, model_dir=None, tf_random_seed=None, save_summary_steps=100,
                 save_checkpoints_steps=None, save_checkpoints_secs=None, session_config=None,
                 keep_checkpoint_max=5, keep_checkpoint_every_n_hours=10000,
                 log_step_count_steps=100, **_):  # fmt: skip
        self.model_dir, self.tf_random_seed = model_dir, tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = save_checkpoints_steps
        self.save_checkpoints_secs = save_checkpoints_secs
        self.log_step_count_steps = log_step_count_steps

    def replace(self, **changes):
        """The same with other settings."""
        made = copy.copy(self)
        for name, value in changes.items():
            if not hasattr(made, name):
                raise ValueError(f"RunConfig has no {name!r}")
            setattr(made, name, value)
        return made


class Estimator:
    """A model by a function of (features, labels, mode, params, config), of which it may leave out
    all but the first. Each call of a method builds it anew, in a graph of its own.

    Args:
        model_fn: Gives an EstimatorSpec.
        model_dir: Where its checkpoints are; a new folder if left out.
        params: Handed to model_fn.
    """

    def __init__(self, model_fn, model_dir=None, config=None, params=None, warm_start_from=None):
        if warm_start_from is not None:
            raise NotImplementedError("Estimator: warm_start_from")
        self.model_fn, self.params = model_fn, params
        folder = model_dir or (config and config.model_dir) or tempfile.mkdtemp()
        self.config = (config or RunConfig()).replace(model_dir=folder)

    @property
    def model_dir(self):
        """Where its checkpoints are."""
        return self.config.model_dir

    def latest_checkpoint(self):
        """The newest one, None if there is none."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self):
        """Names of what is in the newest checkpoint."""
        return self._checkpoint().names()

    def get_variable_value(self, name):
        """What the newest checkpoint has under a name."""
        return self._checkpoint()(name)

    def _checkpoint(self, path=None):
        found = path or self.latest_checkpoint()
        if found is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return Checkpoint(found)

    def _built(self, input_fn, mode):
        if self.config.tf_random_seed is not None:
            set_random_seed(self.config.tf_random_seed)
        step = get_or_create_global_step()
        found = _called(input_fn, {"mode": mode, "params": self.params, "config": self.config})
        if isinstance(found, Dataset):
            found = found.make_one_shot_iterator().get_next()
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        features, labels = found if pair else (found, None)
        more = {"labels": labels, "mode": mode, "params": self.params, "config": self.config}
        spec = _called(self.model_fn, more, features)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("model_fn should return an EstimatorSpec.")
        return spec, step

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Train for `steps` more steps, or up to the step `max_steps`, or to the end of the data.

        Returns:
            The Estimator.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {value}")
        done = self.latest_checkpoint()
        if max_steps is not None and done and Checkpoint(done)("global_step") >= max_steps:
            return self
        with Graph().as_default():
            spec, step = self._built(input_fn, ModeKeys.TRAIN)
            every = self.config.log_step_count_steps
            more = [NanTensorHook(spec.loss), *spec.training_hooks, *(hooks or ())]
            if every:
                more.append(LoggingTensorHook({"loss": spec.loss, "step": step}, every))
            if steps or max_steps:
                more.append(StopAtStepHook(steps, max_steps))
            with MonitoredTrainingSession(
                checkpoint_dir=self.model_dir, hooks=more,
                save_checkpoint_secs=self.config.save_checkpoints_secs,
                save_checkpoint_steps=self.config.save_checkpoints_steps,
                save_summaries_steps=self.config.save_summary_steps,
            ) as session:  # fmt: skip
                while not session.should_stop():
                    session.run([spec.train_op, spec.loss])
        return self

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None):
        """The measures of the model, with "loss" and "global_step", over the data or so many of its
        batches."""
        path = self._checkpoint(checkpoint_path).prefix
        with Graph().as_default():
            spec, step = self._built(input_fn, ModeKeys.EVAL)
            measures = {"loss": mean(spec.loss), **spec.eval_metric_ops}
            updates = [update for _, update in measures.values()]
            session = MonitoredSession(
                hooks=[*spec.evaluation_hooks, *(hooks or ())], checkpoint_path=path
            )
            with session:
                for _ in range(steps) if steps else itertools.count():
                    try:
                        session.run(updates)
                    except OutOfRangeError:
                        break
                values = {k: value for k, (value, _) in measures.items()}
                return session.raw_session().run({**values, "global_step": step})

    def predict(self, input_fn, predict_keys=None, hooks=None, checkpoint_path=None,
                yield_single_examples=True):  # fmt: skip
        """Predictions, one after the other: of each example, or of each batch."""
        path = self._checkpoint(checkpoint_path).prefix
        with Graph().as_default():
            spec, _ = self._built(input_fn, ModeKeys.PREDICT)
            asked = spec.predictions
            if predict_keys and isinstance(asked, Mapping):
                asked = {k: v for k, v in asked.items() if k in predict_keys}
                if not asked:
                    raise ValueError(
                        f"Expected to run at least one output from {list(spec.predictions)}, "
                        f"provided {predict_keys}."
                    )
            session = MonitoredSession(
                hooks=[*spec.prediction_hooks, *(hooks or ())], checkpoint_path=path
            )
        with session:
            while not session.should_stop():
                try:
                    found = session.run(asked)
                except OutOfRangeError:
                    return
                if not yield_single_examples:
                    yield found
                elif isinstance(found, Mapping):
                    for i in range(len(next(iter(found.values())))):
                        yield {k: v[i] for k, v in found.items()}
                else:
                    yield from found


def _called(f, values, *first):
    """f of those values that it has arguments for."""
    names = inspect.signature(f).parameters
    return f(*first, **{k: v for k, v in values.items() if k in names})


class TrainSpec(NamedTuple):
    """How train_and_evaluate trains."""

    input_fn: Any
    max_steps: Any = None
    hooks: Any = ()


class EvalSpec(NamedTuple):
    """How train_and_evaluate evaluates."""

    input_fn: Any
    steps: Any = 100
    name: Any = None
    hooks: Any = ()
    exporters: Any = None
    start_delay_secs: Any = 120
    throttle_secs: Any = 600


def train_and_evaluate(estimator, train_spec, eval_spec):
    """Train to the end, then evaluate: (measures, None)."""
    if eval_spec.exporters:
        raise NotImplementedError("train_and_evaluate: exporters")
    estimator.train(train_spec.input_fn, train_spec.hooks, max_steps=train_spec.max_steps)
    return estimator.evaluate(eval_spec.input_fn, eval_spec.steps, eval_spec.hooks), None


def numpy_input_fn(x, y=None, batch_size=128, num_epochs=1, shuffle=None, queue_capacity=1000,
                   num_threads=1, target_column="target"):  # fmt: skip
    """An input_fn of arrays; num_epochs None goes on for ever."""
    if shuffle not in (True, False):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it "
            f"as True for training); got {shuffle}"
        )
    columns = dict(x) if isinstance(x, Mapping) else {"": x}
    targets = dict(y) if isinstance(y, Mapping) else {} if y is None else {target_column: y}
    sizes = {k: len(v) for k, v in {**columns, **targets}.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"Length of tensors in x and y is mismatched: {sizes}")

    def input_fn():
        features = columns if isinstance(x, Mapping) else columns[""]
        labels = targets if isinstance(y, Mapping) else y
        data = Dataset.from_tensor_slices(features if y is None else (features, labels))
        if shuffle:
            data = data.shuffle(max(queue_capacity, 1))
        data = data.repeat(num_epochs).batch(batch_size)
        return data.make_one_shot_iterator().get_next()

    return input_fn
