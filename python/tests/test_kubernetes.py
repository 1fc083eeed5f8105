"""Objects for Kubernetes: they follow their schemas, and agree with each other and with the images."""

import copy
import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
TORCH = ROOT / "deploy" / "kubernetes-torch"
FILES = ["coordinator.yaml", "data.yaml", "network-policy.yaml", "ranks.yaml", "trainer.yaml"]
# podReplacementPolicy and backoffLimitPerIndex are part of Kubernetes from 1.29 on.
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]


def objects(name):
    """Returns the objects of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def one(name, kind):
    """Returns the object of this kind in a file."""
    (found,) = (each for each in objects(name) if each["kind"] == kind)
    return found


def runtime_job():
    """Returns the Job that Kubeflow's runtime makes, with the arguments and resources of its TrainJob."""
    runtime = one("trainer.yaml", "ClusterTrainingRuntime")["spec"]["template"]["spec"]
    trainer = one("trainer.yaml", "TrainJob")["spec"]["trainer"]
    job = {"apiVersion": "batch/v1", "kind": "Job", **runtime["replicatedJobs"][0]["template"]}
    container = job["spec"]["template"]["spec"]["containers"][0]
    container |= {"args": trainer["args"], "resources": trainer["resourcesPerNode"]}
    return job


def jobs():
    """Returns the Jobs of all files."""
    made = {name: one(name, "Job") for name in ("coordinator.yaml", "ranks.yaml")}
    return made | {"trainer.yaml": runtime_job()}


def pods():
    """Returns the specs of all pods, by file."""
    return {name: job["spec"]["template"]["spec"] for name, job in jobs().items()}


def words(container):
    """Returns the whole command of a container."""
    return container["command"] + container.get("args", [])


def flag(container, name):
    """Returns the value of a flag in a container's command."""
    (value,) = (each.partition("=")[2] for each in words(container) if each.startswith(f"{name}="))
    return value


def validate(each, version):
    """Refuses an object that does not follow its schema, or has a field that is not in it."""
    kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_kubernetes_follow_their_schemas(version):
    found = [each for name in FILES for each in objects(name)]
    for each in [each for each in found if "kubeflow" not in each["apiVersion"]] + [runtime_job()]:
        validate(each, version)


def test_a_misspelt_field_is_refused():
    job = copy.deepcopy(one("ranks.yaml", "Job"))
    job["spec"]["completion"] = job["spec"].pop("completions")
    with pytest.raises(kubernetes_validate.ValidationError, match="completion"):
        validate(job, VERSIONS[-1])


def test_objects_of_kubeflow_follow_their_models():
    for each in objects("trainer.yaml"):
        read = getattr(models, f"TrainerV1alpha1{each['kind']}").from_dict(each)
        # What the model does not know is lost on the way.
        assert read.to_dict() == each


def test_a_runtime_has_the_job_of_ranks():
    alone, runtime = jobs()["ranks.yaml"]["spec"], jobs()["trainer.yaml"]["spec"]
    for spec in (alone, runtime):
        # JobSet counts pods itself, and Kubeflow's container has a name of its own.
        for key in ("completions", "parallelism"):
            spec.pop(key, None)
        spec["template"]["spec"]["containers"][0].pop("name")
    assert alone == runtime


def test_pods_are_restricted_and_limited():
    """Pods meet the strictest of the Pod Security Standards, and write to volumes alone."""
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False, name
        # A Service named thinwire-coordinator makes variables such as THINWIRE_COORDINATOR_PORT.
        assert pod["enableServiceLinks"] is False, name
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["imagePullPolicy"] == "IfNotPresent", name
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}, name
        assert {"readinessProbe", "livenessProbe"} <= container.keys(), name


def test_probes_ask_what_the_container_serves():
    for name, pod in pods().items():
        (container,) = pod["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        for probe in (container["readinessProbe"], container["livenessProbe"]):
            asked = probe.get("httpGet") or probe.get("tcpSocket")
            assert probe.get("exec") or asked["port"] in ports, name
        if "metrics" in ports:
            assert flag(container, "--metrics") == f"0.0.0.0:{ports['metrics']}", name


def test_ranks_find_the_coordinator():
    """Names, ports, secrets and times of silence agree."""
    service = one("coordinator.yaml", "Service")
    port = service["spec"]["ports"][0]["port"]
    coordinator = pods()["coordinator.yaml"]["containers"][0]
    variables = {each["name"]: each for each in coordinator["env"]}
    assert coordinator["ports"][0]["containerPort"] == port
    assert flag(coordinator, "--listen") == "$(THINWIRE_COORDINATOR)"
    assert variables["THINWIRE_COORDINATOR"]["value"] == f"$(POD_IP):{port}"
    template = one("coordinator.yaml", "Job")["spec"]["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    rank = pods()["ranks.yaml"]["containers"][0]
    env = {each["name"]: each for each in rank["env"]}
    assert env["THINWIRE_COORDINATOR"]["value"] == f"{service['metadata']['name']}:{port}"
    for name in ("THINWIRE_TOKEN", "THINWIRE_HEARTBEAT_TIMEOUT_S"):
        assert env[name] == variables[name]
    # Two seconds, which hold otherwise, are too few for pods at their CPU limit.
    assert float(env["THINWIRE_HEARTBEAT_TIMEOUT_S"]["value"]) >= 10


def test_drains_leave_the_fewest_ranks():
    job, budget = one("ranks.yaml", "Job")["spec"], one("ranks.yaml", "PodDisruptionBudget")["spec"]
    labels = job["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == labels
    (spread,) = job["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    ranks = flag(pods()["coordinator.yaml"]["containers"][0], "--ranks")
    fewest, most = (int(each) for each in ranks.split(":"))
    assert budget["minAvailable"] == fewest <= job["completions"] <= most
    assert job["parallelism"] == job["completions"]


def test_network_policies_allow_what_ranks_need():
    """Ranks reach each other at all ports, and the coordinator at its own; nobody else does."""
    policies = {each["metadata"]["name"]: each["spec"] for each in objects("network-policy.yaml")}
    rank = one("ranks.yaml", "Job")["spec"]["template"]["metadata"]["labels"]
    coordinator = one("coordinator.yaml", "Job")["spec"]["template"]["metadata"]["labels"]
    port = one("coordinator.yaml", "Service")["spec"]["ports"][0]["port"]
    (to_rank, to_coordinator) = ([{"podSelector": {"matchLabels": x}}] for x in (rank, coordinator))
    ranks, coordinators = policies["thinwire-rank"], policies["thinwire-coordinator"]
    assert ranks["podSelector"]["matchLabels"] == rank
    assert coordinators["podSelector"]["matchLabels"] == coordinator
    assert ranks["ingress"] == [{"from": to_rank}]
    assert coordinators["ingress"] == [{"from": to_rank, "ports": [{"port": port}]}]
    assert {"to": to_rank} in ranks["egress"]
    assert {"to": to_coordinator, "ports": [{"port": port}]} in ranks["egress"]


def test_files_of_commands_are_on_volumes():
    claims = {
        each["metadata"]["name"]
        for name in FILES
        for each in objects(name)
        if each["kind"] == "PersistentVolumeClaim"
    }
    for name, pod in pods().items():
        (container,) = pod["containers"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        files = [each.partition("=")[2] for each in words(container) if "=/" in each]
        assert files, name
        for file in files:
            claim = mounts[f"/{file.split('/')[1]}"]["persistentVolumeClaim"]["claimName"]
            assert claim in claims, (name, file)


def test_images_run_as_the_user_of_the_pods():
    user = {str(pod["securityContext"]["runAsUser"]) for pod in pods().values()}
    group = {str(pod["securityContext"]["runAsGroup"]) for pod in pods().values()}
    for folder in (FOLDER, TORCH):
        lines = (folder / "Dockerfile").read_text().splitlines()
        assert lines[-1] == f"USER {user.copy().pop()}:{group.copy().pop()}"
        assert all(line.startswith("FROM ${") for line in lines if line.startswith("FROM"))
    assert len(user) == len(group) == 1


def test_images_have_the_versions_that_are_tested():
    toolchain = re.search(r'channel = "(\d+\.\d+)', (ROOT / "rust-toolchain.toml").read_text())
    requirements = (ROOT / "python" / "tests" / "requirements.txt").read_text()
    for folder in (FOLDER, TORCH):
        text = (folder / "Dockerfile").read_text()
        assert f"BUILD_IMAGE=rust:{toolchain[1]}-" in text
        for pin in re.findall(r"\S+==\S+", text):
            assert f"{pin}\n" in requirements


def test_the_context_of_images_is_small():
    """Whatever grows beside the sources, such as target/ and .git/, is left out."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    taken = [name for each in patterns if each[0] == "!" for name in ROOT.glob(each[1:])]
    left_out = [each.removeprefix("**/") for each in patterns[1:] if each[0] != "!"]

    def size(path):
        if any(fnmatch(path.name, each) or path == ROOT / each for each in left_out):
            return 0
        return sum(map(size, path.iterdir())) if path.is_dir() else path.stat().st_size

    assert {"crates", "docs", "examples", "python", "xtask"} <= {each.name for each in taken}
    assert not {"target", ".git", "bench"} & {each.name for each in taken}
    assert sum(map(size, taken)) < 30e6


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_both_trainings_are_made_by_kustomize():
    made = {}
    for folder in (FOLDER, TORCH):
        command = ["kubectl", "kustomize", str(folder)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        made[folder] = list(yaml.safe_load_all(text))
        for each in made[folder]:
            validate(each, VERSIONS[-1])
    kinds = sorted(each["kind"] for name in FILES[:-1] for each in objects(name))
    assert [sorted(each["kind"] for each in found) for found in made.values()] == [kinds, kinds]
    (job,) = (x for x in made[TORCH] if x["metadata"]["name"] == "thinwire-ranks")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "thinwire-torch:latest"
    assert container["command"] == pods()["ranks.yaml"]["containers"][0]["command"]
    assert not {"readinessProbe", "livenessProbe"} & container.keys()
    script = container["args"][1]
    assert (ROOT / script.lstrip("/")).is_file()
    assert (
        f"COPY {Path(script).parent.relative_to('/')} {Path(script).parent}\n"
        in (TORCH / "Dockerfile").read_text()
    )
