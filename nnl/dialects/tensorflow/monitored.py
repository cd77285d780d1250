# SPDX-License-Identifier: Apache-2.0
"""Sessions with hooks: they begin from a checkpoint, and end when a hook or the data says so."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager

import numpy as np

from nnl.dialects.tensorflow.graph import get_default_graph
from nnl.dialects.tensorflow.queues import Coordinator
from nnl.dialects.tensorflow.saver import Saver, latest_checkpoint
from nnl.dialects.tensorflow.session import OutOfRangeError, Session, _default
from nnl.dialects.tensorflow.summary import FileWriter, merge_all
from nnl.dialects.tensorflow.train import get_global_step
from nnl.dialects.tensorflow.variables import (
    global_variables_initializer,
    local_variables_initializer,
)

_logger = logging.getLogger("nnl")


class SessionRunArgs:
    """What a hook wants fetched and fed."""

    def __init__(self, fetches, feed_dict=None, options=None):
        self.fetches, self.feed_dict, self.options = fetches, feed_dict, options


class SessionRunValues:
    """What was fetched for a hook."""

    def __init__(self, results, options=None, run_metadata=None):
        self.results, self.options, self.run_metadata = results, options, run_metadata


class SessionRunContext:
    """The run that a hook is called for."""

    def __init__(self, original_args, session):
        self.original_args, self.session, self.stop_requested = original_args, session, False

    def request_stop(self):
        """Let the session end after this run."""
        self.stop_requested = True


class SessionRunHook:
    """What is called around the runs of a session."""

    def begin(self):
        """The graph may still be added to."""

    def after_create_session(self, session, coord):
        """Variables have their values."""

    def before_run(self, run_context):
        """Gives SessionRunArgs, or None."""

    def after_run(self, run_context, run_values):
        """A run has ended."""

    def end(self, session):
        """The session ends without an error."""


class _Every:
    """Whether it is time, by steps or seconds."""

    def __init__(self, steps=None, secs=None):
        self.steps, self.secs, self.last = steps, secs, None

    def due(self, step):
        now = time.monotonic()
        if self.last is not None:
            after, at = step - self.last[0], now - self.last[1]
            if not (self.steps and after >= self.steps) and not (self.secs and at >= self.secs):
                return False
        self.last = step, now
        return True


class StopAtStepHook(SessionRunHook):
    """Ends after so many steps, or at the step with a number."""

    def __init__(self, num_steps=None, last_step=None):
        if (num_steps is None) == (last_step is None):
            raise ValueError("One of num_steps or last_step must be specified.")
        self._count, self._last = num_steps, last_step

    def after_create_session(self, session, coord):
        if self._last is None:
            self._last = int(session.run(get_global_step())) + self._count

    def before_run(self, run_context):
        return SessionRunArgs(get_global_step())

    def after_run(self, run_context, run_values):
        if run_values.results + 1 >= self._last and (
            int(run_context.session.run(get_global_step())) >= self._last
        ):
            run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Logs values of tensors, by their names, every so many runs or seconds."""

    def __init__(self, tensors, every_n_iter=None, every_n_secs=None, at_end=False,
                 formatter=None):  # fmt: skip
        names = tensors if isinstance(tensors, dict) else {_label(t): t for t in tensors}
        self._tensors, self._every = names, _Every(every_n_iter, every_n_secs)
        self._at_end, self._formatter, self._runs = at_end, formatter, 0

    def before_run(self, run_context):
        self._now = self._every.due(self._runs)
        self._runs += 1
        return SessionRunArgs(self._tensors) if self._now else None

    def after_run(self, run_context, run_values):
        if self._now:
            self._say(run_values.results)

    def end(self, session):
        if self._at_end:
            self._say(session.run(self._tensors))

    def _say(self, values):
        text = ", ".join(f"{k} = {v}" for k, v in values.items())
        _logger.info(self._formatter(values) if self._formatter else text)


def _label(t):
    return t if isinstance(t, str) else t.name


class NanLossDuringTrainingError(RuntimeError):
    """The loss is no number."""


class NanTensorHook(SessionRunHook):
    """Ends where a loss is no number."""

    def __init__(self, loss_tensor, fail_on_nan_loss=True):
        self._loss, self._fail = loss_tensor, fail_on_nan_loss

    def before_run(self, run_context):
        return SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if np.isnan(run_values.results):
            if self._fail:
                raise NanLossDuringTrainingError("NaN loss during training.")
            run_context.request_stop()


class CheckpointSaverHook(SessionRunHook):
    """Saves checkpoints: at the beginning, every so many steps or seconds, and at the end."""

    def __init__(self, checkpoint_dir, save_secs=None, save_steps=None, saver=None,
                 checkpoint_basename="model.ckpt", scaffold=None, listeners=None):  # fmt: skip
        self._path = os.path.join(checkpoint_dir, checkpoint_basename)
        self._every, self._saver, self._saved = _Every(save_steps, save_secs), saver, None

    def begin(self):
        self._saver = self._saver or Saver()

    def after_create_session(self, session, coord):
        self._save(session, True)

    def after_run(self, run_context, run_values):
        self._save(run_context.session)

    def end(self, session):
        self._save(session, True)

    def _save(self, session, always=False):
        step = int(session.run(get_global_step()))
        if (self._every.due(step) or always) and step != self._saved:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._saver.save(session, self._path, step)
            self._saved = step


class SummarySaverHook(SessionRunHook):
    """Writes summaries every so many steps or seconds."""

    def __init__(self, save_steps=None, save_secs=None, output_dir=None, summary_writer=None,
                 scaffold=None, summary_op=None):  # fmt: skip
        self._every, self._folder = _Every(save_steps, save_secs), output_dir
        self._writer, self._summary = summary_writer, summary_op

    def begin(self):
        self._writer = self._writer or FileWriter(self._folder)
        self._summary = merge_all() if self._summary is None else self._summary
        self._runs = 0

    def before_run(self, run_context):
        self._now = self._summary is not None and self._every.due(self._runs)
        self._runs += 1
        return SessionRunArgs([self._summary, get_global_step()]) if self._now else None

    def after_run(self, run_context, run_values):
        if self._now:
            self._writer.add_summary(*run_values.results)


class FeedFnHook(SessionRunHook):
    """Feeds what a function gives."""

    def __init__(self, feed_fn):
        self._feed = feed_fn

    def before_run(self, run_context):
        return SessionRunArgs(None, self._feed())


class MonitoredSession:
    """A session whose variables have values from the beginning, with hooks around its runs.

    Args:
        hooks: SessionRunHooks.
        checkpoint_dir: Where the last checkpoint is taken from, if there is one.
        checkpoint_path: One, in place of the last.
    """

    def __init__(self, session_creator=None, hooks=None, stop_grace_period_secs=120,
                 checkpoint_dir=None, checkpoint_path=None):  # fmt: skip
        self._hooks, self._coordinator = list(hooks or ()), Coordinator()
        self.graph = get_default_graph()
        for hook in self._hooks:
            hook.begin()
        self._session = Session(graph=self.graph)
        last = latest_checkpoint(checkpoint_dir) if checkpoint_dir else None
        found = checkpoint_path or last
        self._session.run([global_variables_initializer(), local_variables_initializer()])
        if found:
            Saver().restore(self._session, found)
        self._default = _default(self._session)
        self._default.__enter__()
        for hook in self._hooks:
            hook.after_create_session(self._session, self._coordinator)

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As Session.run, with what hooks fetch and feed."""
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), self._session)
        asked = [hook.before_run(context) for hook in self._hooks]
        fed = dict(feed_dict or {})
        for args in asked:
            fed.update((args and args.feed_dict) or {})
        more = {i: a.fetches for i, a in enumerate(asked) if a and a.fetches is not None}
        try:
            made, found = self._session.run([fetches, more], fed)
        except OutOfRangeError:
            self._coordinator.request_stop()
            raise
        for i, hook in enumerate(self._hooks):
            hook.after_run(context, SessionRunValues(found.get(i)))
        if context.stop_requested:
            self._coordinator.request_stop()
        return made

    def raw_session(self):
        """The session without hooks."""
        return self._session

    def run_step_fn(self, step_fn):
        """f(context with session, run_with_hooks and request_stop)."""
        context = SessionRunContext(None, self._session)
        context.run_with_hooks = self.run
        context.request_stop = self._coordinator.request_stop
        return step_fn(context)

    def should_stop(self):
        """Whether it is to end."""
        return self._session is None or self._coordinator.should_stop()

    def close(self):
        """End it, with what hooks do then."""
        self._end(True)

    def _end(self, well):
        if self._session is None:
            return
        try:
            for hook in self._hooks if well else ():
                hook.end(self._session)
        finally:
            self._default.__exit__(None, None, None)
            self._session.close()
            self._session = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        ended = kind is None or issubclass(kind, (OutOfRangeError, StopIteration))
        self._end(ended)
        return kind is not None and ended


class SingularMonitoredSession(MonitoredSession):
    """The same, whose session may be had."""

    def __init__(self, hooks=None, scaffold=None, master="", config=None, checkpoint_dir=None,
                 stop_grace_period_secs=120):  # fmt: skip
        super().__init__(None, hooks, checkpoint_dir=checkpoint_dir)


def MonitoredTrainingSession(master="", is_chief=True, checkpoint_dir=None, scaffold=None,
                             hooks=None, chief_only_hooks=None, save_checkpoint_secs=None,
                             save_summaries_steps=None, save_summaries_secs=None, config=None,
                             stop_grace_period_secs=120, log_step_count_steps=100,
                             max_wait_secs=7200, save_checkpoint_steps=None,
                             summary_dir=None):  # fmt: skip
    """A session that trains: it goes on from the last checkpoint, and saves others."""
    more = [*(chief_only_hooks or ()), *(hooks or ())]
    if checkpoint_dir:
        secs = save_checkpoint_secs if save_checkpoint_secs or save_checkpoint_steps else 600
        more.append(CheckpointSaverHook(checkpoint_dir, secs, save_checkpoint_steps))
        steps = save_summaries_steps if save_summaries_steps or save_summaries_secs else 100
        more.append(SummarySaverHook(steps, save_summaries_secs, summary_dir or checkpoint_dir))
    return MonitoredSession(None, more, checkpoint_dir=checkpoint_dir)


class Supervisor:
    """What MonitoredTrainingSession was before: it saves at the end."""

    def __init__(self, graph=None, logdir=None, saver=None, init_op=None, summary_op=None,
                 save_model_secs=600, global_step=None, init_fn=None, **_):  # fmt: skip
        self._folder, self._saver, self._step = logdir, saver, global_step
        self._init, self._init_fn, self._secs = init_op, init_fn, save_model_secs
        self.coord = Coordinator()
        self.saver = saver or Saver()

    should_stop = property(lambda self: self.coord.should_stop)
    request_stop = property(lambda self: self.coord.request_stop)

    @contextmanager
    def managed_session(self, master="", config=None, **_):
        """A session whose variables have values."""
        with Session() as session:
            session.run(global_variables_initializer() if self._init is None else self._init)
            session.run(local_variables_initializer())
            if self._init_fn is not None:
                self._init_fn(session)
            found = latest_checkpoint(self._folder) if self._folder else None
            if found:
                self.saver.restore(session, found)
            try:
                yield session
            except OutOfRangeError:
                pass
            if self._folder and self._secs:
                os.makedirs(self._folder, exist_ok=True)
                self.saver.save(session, os.path.join(self._folder, "model.ckpt"), self._step)

    def stop(self, *_, **__):
        """Ask all to end."""
        self.coord.request_stop()
