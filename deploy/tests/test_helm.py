"""Tests the Helm chart: `helm lint` finds nothing, the chart refuses wrong values, a real API server accepts the
manifests, and the container's command starts."""

import base64
import json
import re
import shutil
import subprocess
import urllib.parse

import pytest
import yaml
from conftest import ACCESS, DEPLOY, HELM, KUBERNETES, LEASEHOLD, SECRET, answer, free_port, started

CHART = DEPLOY / "helm/leasehold"

# The oldest version of Kubernetes that the chart supports.
VERSION = ["--kube-version", "1.30.0"]
GIVEN = {"image": {"repository": "registry.example.com/leasehold"}, "store": "s3://bucket/locks"}
TOKENS = {"access": {"existingSecret": "leasehold-tokens"}}

VALUES = {
    "s3": {**GIVEN, **TOKENS, "env": [{"name": "AWS_REGION", "value": "eu-west-1"}]},
    "tokens in the values": {**GIVEN, "access": {"accessToml": ACCESS, "secret": SECRET}},
    "kubernetes": {**GIVEN, **TOKENS, "store": "k8s://default?context=none"},
    "sqlite": {
        **GIVEN,
        **TOKENS,
        "store": "sqlite:/var/lib/leasehold/locks.db",
        "replicaCount": 1,
        "persistence": {"existingClaim": "locks"},
    },
    "everything": {
        **GIVEN,
        **TOKENS,
        "imagePullSecrets": [{"name": "registry"}],
        "ui": "rw",
        "extraArgs": ["--host=locks.example.com"],
        "envFrom": [{"secretRef": {"name": "bucket"}}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/locks"}},
        "metrics": {"annotations": False},
        "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}], "metrics": []},
        "maxConnections": 1000,
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "75"},
            "host": "locks.example.com",
            "tlsSecretName": "locks-tls",
        },
        "podAnnotations": {"team": "a"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "locks", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    },
}


def helm(tmp_path, values, *arguments):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    environment = {"HOME": str(tmp_path), "PATH": ""}
    version = VERSION if arguments[0] in ("lint", "template") else []
    command = [HELM, *arguments, *version, "--values", file]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


def rendered(tmp_path, values):
    status, text, errors = helm(tmp_path, values, "template", "locks", CHART)
    assert status == 0, errors
    return [document for document in yaml.safe_load_all(text) if document]


def one(documents, kind):
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


@pytest.mark.parametrize("name", VALUES)
def test_chart_has_no_findings(tmp_path, name):
    status, text, errors = helm(tmp_path, VALUES[name], "lint", "--strict", CHART)
    assert status == 0, text + errors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**TOKENS, "image": GIVEN["image"]}, "`store` is missing"),
        ({**TOKENS, "store": "s3://b"}, "`image.repository` is missing"),
        (GIVEN, "`access.existingSecret` is missing"),
        ({**GIVEN, "access": {"accessToml": ACCESS, "secret": "short"}}, "`access.secret` has fewer than 32 bytes"),
        ({**VALUES["sqlite"], "replicaCount": 2}, "a SQLite file is for the processes of one machine"),
        ({**VALUES["sqlite"], "persistence": {}}, "`persistence.existingClaim` is missing"),
        ({**VALUES["sqlite"], "store": "sqlite:/tmp/locks.db"}, "the file must be there"),
        ({**GIVEN, **TOKENS, "store": "mem:"}, "mem: loses all locks"),
        ({**GIVEN, **TOKENS, "ingress": {"enabled": True, "host": "a"}}, "tokens would be sent without TLS"),
        ({**GIVEN, **TOKENS, "replicaCount": 0}, "replicaCount"),
        ({**GIVEN, **TOKENS, "replicas": 3}, "replicas"),
        ({**GIVEN, **TOKENS, "ui": "write"}, "ui"),
        ({**GIVEN, **TOKENS, "maxConnections": 10}, "maxConnections"),
    ],
)
def test_wrong_values_are_refused(tmp_path, values, message):
    status, _, errors = helm(tmp_path, values, "template", "locks", CHART)
    assert status != 0 and message in errors, errors


PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Service": "/api/v1/namespaces/default/services",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "Secret": "/api/v1/namespaces/default/secrets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "Ingress": "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
}


def api_server():
    (server,) = urllib.parse.parse_qs(urllib.parse.urlsplit(KUBERNETES).query)["endpoint"]
    return server


def created(document):
    """Sends the document to a real API server in a dry run, in which unknown fields are errors. Returns the
    response."""
    url = f"{api_server()}{PATHS[document['kind']]}?dryRun=All&fieldValidation=Strict"
    return answer(url, json.dumps(document).encode(), **{"Content-Type": "application/json"})


@pytest.mark.parametrize("name", VALUES)
def test_a_real_api_server_accepts_the_manifests(tmp_path, name):
    documents = rendered(tmp_path, VALUES[name])
    for document in documents:
        status, text = created(document)
        assert status == 201, f"{document['kind']}: {text}"


def test_chart_is_installed_upgraded_and_removed_on_a_real_api_server(tmp_path):
    """The cluster has no node, so no pod starts."""
    at = ["--kube-apiserver", api_server(), "--namespace", "default"]
    # The test server is built from a module and does not know its version.
    chart = shutil.copytree(CHART, tmp_path / "chart")
    description = chart / "Chart.yaml"
    description.write_text(re.sub("(?m)^kubeVersion:.*\n", "", description.read_text()))
    deployment = f"{api_server()}{PATHS['Deployment']}/chart-leasehold"

    def checksum(verb, access):
        status, text, errors = helm(tmp_path, {**GIVEN, "access": access}, verb, "chart", chart, *at)
        assert status == 0, text + errors
        template = json.loads(answer(deployment)[1])["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/access"]

    access = {"accessToml": ACCESS, "secret": SECRET}
    before = checksum("install", access)
    # New tokens restart the pods.
    assert checksum("upgrade", {**access, "accessToml": ACCESS + "# new"}) != before
    command = [HELM, "uninstall", "chart", *at]
    subprocess.run(command, check=True, capture_output=True, env={"HOME": str(tmp_path), "PATH": ""})
    for kind in ["Deployment", "Service", "Secret", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"]:
        status, text = answer(f"{api_server()}{PATHS[kind]}/chart-leasehold")
        # This server has no garbage collector, so an object may wait for its deletion.
        assert status == 404 or "deletionTimestamp" in text, text


def test_a_real_api_server_refuses_a_misspelt_field(tmp_path):
    deployment = one(rendered(tmp_path, VALUES["s3"]), "Deployment")
    deployment["spec"]["template"]["spec"]["enableServiceLink"] = False
    status, text = created(deployment)
    assert status == 400 and "enableServiceLink" in text


def test_only_the_kubernetes_store_gets_permissions(tmp_path):
    for name in VALUES:
        documents = rendered(tmp_path, VALUES[name])
        kinds = {document["kind"] for document in documents}
        pod = one(documents, "Deployment")["spec"]["template"]["spec"]
        on_kubernetes = name == "kubernetes"
        assert ({"Role", "RoleBinding"} <= kinds) == on_kubernetes == pod["automountServiceAccountToken"], name


def test_permissions_are_those_of_the_documentation(tmp_path):
    page = (DEPLOY.parent / "docs/stores/kubernetes.md").read_text()
    documented = re.search(r"resources: \[leases\]\n  verbs: \[(.*)\]", page)[1].split(", ")
    (rule,) = one(rendered(tmp_path, VALUES["kubernetes"]), "Role")["rules"]
    assert sorted([*rule["verbs"], "delete"]) == sorted(documented)


def test_pods_have_no_rights_of_the_node(tmp_path):
    pod = one(rendered(tmp_path, VALUES["everything"]), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == rights


def test_the_network_policy_protects_the_metrics(tmp_path):
    """Without a `from`, a rule of a NetworkPolicy admits everyone."""

    def sources(name):
        rules = one(rendered(tmp_path, VALUES[name]), "NetworkPolicy")["spec"]["ingress"]
        return {rule["ports"][0]["port"]: rule.get("from") for rule in rules}

    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert sources("s3") == {"http": None, "metrics": [monitoring]}
    assert sources("everything") == {"http": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}
    documents = rendered(tmp_path, {**VALUES["s3"], "networkPolicy": {"enabled": False}})
    assert not [document for document in documents if document["kind"] == "NetworkPolicy"]


def test_the_memory_is_enough_for_the_connections():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    page = (DEPLOY.parent / "docs/serve/limits.md").read_text()
    base, each = map(int, re.search(r"needs at most (\d+) MiB, and (\d+) KiB for each connection", page).groups())
    (limit,) = re.fullmatch(r"(\d+)Mi", values["resources"]["limits"]["memory"]).groups()
    assert base + values["maxConnections"] * each / 1024 <= int(limit)


def test_chart_is_of_the_version_of_the_command():
    manifest = (DEPLOY.parent / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', manifest, re.MULTILINE)[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_container_starts_and_answers_its_probes(tmp_path):
    documents = rendered(tmp_path, {**VALUES["tokens in the values"], "ui": "rw"})
    (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: free_port() for port in container["ports"]}
    (mount,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "access")
    for name, text in one(documents, "Secret")["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    words = []
    for word in container["args"]:
        for port in container["ports"]:
            word = word.replace(f"0.0.0.0:{port['containerPort']}", f"127.0.0.1:{ports[port['name']]}")
        words.append(word.replace(mount, str(tmp_path)))

    def probed(probe):
        request = container[probe]["httpGet"]
        return f"http://127.0.0.1:{ports[request['port']]}{request['path']}"

    with started([LEASEHOLD, "-s", "mem:", *words], probed("readinessProbe")):
        assert answer(probed("livenessProbe"))[0] == 204
        url = f"http://127.0.0.1:{ports['http']}/v1/locks"
        assert answer(url)[0] == 401 and answer(url, Authorization="Bearer test")[0] == 200
        assert answer(f"http://127.0.0.1:{ports['metrics']}/metrics")[0] == 200
