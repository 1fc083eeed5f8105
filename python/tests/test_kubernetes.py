"""Objects for Kubernetes: they follow their schemas, and agree with each other.

Schemas come from the packages kubernetes-validate and kubeflow-trainer-api; without them, their tests are
skipped.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = ["coordinator.yaml", "ranks.yaml", "trainer.yaml"]


def objects(name):
    """Returns the objects of a file, by kind."""
    yaml = pytest.importorskip("yaml")
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def pods():
    """Returns the specs of all pods, by file."""
    job = objects("trainer.yaml")["ClusterTrainingRuntime"]["spec"]["template"]["spec"]
    return {
        "coordinator.yaml": objects("coordinator.yaml")["Deployment"]["spec"]["template"]["spec"],
        "ranks.yaml": objects("ranks.yaml")["Job"]["spec"]["template"]["spec"],
        "trainer.yaml": job["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
    }


@pytest.mark.parametrize("name", FILES)
def test_objects_of_kubernetes_follow_their_schemas(name):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    found = [each for each in objects(name).values() if "kubeflow" not in each["apiVersion"]]
    for version in ("1.33", "1.37"):
        for each in found:
            validate.validate(each, version, strict=True)


def test_objects_of_kubeflow_follow_their_schemas():
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api"
    )
    for kind, each in objects("trainer.yaml").items():
        read = getattr(models, f"TrainerV1alpha1{kind}").from_dict(each)
        # What the model does not know is lost on the way.
        assert read.to_dict() == each


def test_a_runtime_has_the_job_of_ranks():
    """Whatever replaces a rank is the same in both files."""
    alone = objects("ranks.yaml")["Job"]["spec"]
    runtime = objects("trainer.yaml")["ClusterTrainingRuntime"]["spec"]
    inner = runtime["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    for key in ("completionMode", "backoffLimitPerIndex", "podFailurePolicy"):
        assert inner[key] == alone[key], key
    one, other = (pods()[name] for name in ("ranks.yaml", "trainer.yaml"))
    for key in ("restartPolicy", "terminationGracePeriodSeconds", "volumes"):
        assert one[key] == other[key], key
    for key in ("image", "command", "env", "volumeMounts"):
        assert one["containers"][0][key] == other["containers"][0][key], key
    trainer = objects("trainer.yaml")["TrainJob"]["spec"]["trainer"]
    assert trainer["args"] == one["containers"][0]["args"]
    assert trainer["resourcesPerNode"] == one["containers"][0]["resources"]


def test_ranks_find_the_coordinator():
    """Names, ports and the secret agree."""
    service = objects("coordinator.yaml")["Service"]
    port = service["spec"]["ports"][0]["port"]
    coordinator = pods()["coordinator.yaml"]["containers"][0]
    assert coordinator["ports"][0]["containerPort"] == port
    assert f"--listen=$(POD_IP):{port}" in coordinator["command"]
    labels = objects("coordinator.yaml")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    for name in ("ranks.yaml", "trainer.yaml"):
        env = {each["name"]: each for each in pods()[name]["containers"][0]["env"]}
        address = f"{service['metadata']['name']}:{port}"
        assert env["THINWIRE_COORDINATOR"]["value"] == address
        assert env["THINWIRE_TOKEN"] in coordinator["env"]
