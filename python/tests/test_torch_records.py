"""The record of the exchange in TensorBoard and in trackers of experiments."""

import pytest

pytestmark = pytest.mark.needs("torch")


class Run:
    """A tracker of experiments that keeps what it is given."""

    def __init__(self):
        self.steps = []

    def log(self, figures, step):
        self.steps.append((step, figures))


class Writer(Run):
    """A writer with TensorBoard's method."""

    def add_scalar(self, name, value, step):
        self.log({name: value}, step)


def logged():
    """Writes the records of a training: what two loggers were given, and the records themselves."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, wrapped

    dist.init_process_group("gloo")
    hook = thinwire.torch.hook("int8", warmup_steps=0)
    training = Training("mlp", wrapped("mlp", hook))
    run, writer, records = Run(), Writer(), []
    logs = [thinwire.torch.tracker(run, every=2), thinwire.torch.tensorboard(writer, every=2)]
    for step in range(5):
        training.run(1)
        records.append(hook[0].record())
        for log in logs:
            log(hook[0], *([] if log is logs[0] else [100 + step]))
    dist.destroy_process_group()
    return run.steps, writer.steps, records


def test_loggers_have_the_record_of_every_second_step(ranks):
    for run, writer, records in ranks(2, logged):
        assert [step for step, _ in run] == [records[at]["step"] for at in (0, 2, 4)]
        for (_, figures), record in zip(run, records[::2], strict=True):
            for name in ("wait_s", "commit_s", "backward_s", "cpu_s", "overlap"):
                assert figures[f"thinwire/{name}"] == record[name]
            sent, raw = (
                sum(bucket[name] for bucket in record["buckets"])
                for name in ("sent_bytes", "raw_bytes")
            )
            assert figures["thinwire/sent_bytes"] == sent
            assert figures["thinwire/raw_over_sent"] == raw / sent > 1
        # The same figures, one by one, at the steps that the caller has named.
        single = [(100 + 2 * at, name) for at, (_, figures) in enumerate(run) for name in figures]
        assert [(step, name) for step, figures in writer for name in figures] == single


def test_tensorboard_reads_what_was_written(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    from thinwire.records import tensorboard

    class Exchange:
        def record(self):
            return {"step": 7, "wait_s": 0.25, "buckets": [{"sent_bytes": 3, "raw_bytes": 12}] * 2}

    with SummaryWriter(str(tmp_path)) as writer:
        tensorboard(writer)(Exchange())
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    (sent,) = events.Scalars("thinwire/sent_bytes")
    assert (sent.step, sent.value) == (7, 6)


def test_a_step_without_an_exchange_writes_nothing():
    from thinwire.errors import InvalidError
    from thinwire.records import tracker

    class Exchange:
        def record(self):
            return {}

    run = Run()
    tracker(run)(Exchange())
    assert run.steps == []
    with pytest.raises(InvalidError, match="every"):
        tracker(run, every=0)
