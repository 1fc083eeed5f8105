"""Metrics of ranks for Prometheus, while a job trains."""

import os
import urllib.request

import pytest

import launch

pytestmark = pytest.mark.needs("torch")


def metrics(address):
    """The numbers on a page of metrics, by name."""
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    samples = [line.split(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def scraped():
    """Trains a few steps in a rank that shows metrics: the page, and what the hook has counted itself."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, wrapped

    dist.init_process_group("gloo")
    hook = thinwire.torch.hook("int8", warmup_steps=0)
    training = Training("mlp", wrapped("mlp", hook))
    sent = 0
    for _ in range(4):
        training.run(1)
        sent += sum(bucket["sent_bytes"] for bucket in hook[0].record()["buckets"])
    host, port = os.environ["THINWIRE_METRICS"].split(":")
    found = metrics(f"{host}:{int(port) + dist.get_rank()}")
    dist.destroy_process_group()
    return found, sent


def test_every_rank_of_a_host_shows_its_metrics_at_a_port_of_its_own(ranks):
    with launch.reserved_ports(2) as port:
        found = ranks(2, scraped, env={"THINWIRE_METRICS": f"127.0.0.1:{port}"})
    for page, sent in found:
        assert page["thinwire_rank_step"] == page["thinwire_rank_steps_total"] == 4
        # Ranks have compared their parameters as well, in a call of their group.
        assert sent <= page["thinwire_rank_sent_bytes_total"] < 1.1 * sent
        assert page["thinwire_rank_raw_bytes_total"] > 2 * sent
        assert (
            0 <= page["thinwire_rank_wait_seconds_total"] < page["thinwire_rank_step_seconds_total"]
        )


def joined():
    """Joins the other ranks."""
    import thinwire

    thinwire.init().barrier()


def test_a_port_that_is_free_is_chosen_and_told():
    outcomes = launch.run(2, joined, env={"THINWIRE_METRICS": "127.0.0.1:0"})
    launch.results(outcomes)
    lines = [
        line for outcome in outcomes for line in outcome.stderr.splitlines() if "metrics" in line
    ]
    assert len(set(lines)) == 2, outcomes
    assert all("metrics: http://127.0.0.1:" in line for line in lines), lines


def test_no_address_is_an_error_in_one_line():
    for outcome in launch.run(2, joined, env={"THINWIRE_METRICS": "9400"}):
        assert (
            "THINWIRE_METRICS is '9400', which is not an address: "
            in outcome.stderr.splitlines()[-1]
        )
