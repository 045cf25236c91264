"""Tests the alert rules and the Grafana dashboard with a real Prometheus and the metrics of a real server."""

import json
import re
import subprocess
import time
import urllib.parse

import pytest
import yaml
from conftest import DEPLOY, PROMETHEUS, answer, free_port, started

RULES = DEPLOY / "prometheus/leasehold.rules.yml"
RULE_TESTS = DEPLOY / "prometheus/leasehold.rules.test.yml"
DASHBOARD = json.loads((DEPLOY / "grafana/leasehold.json").read_text())

ALERTS = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]

# A selector: a metric, and its label matchers in braces.
SELECTOR = re.compile(r"\b(up|leasehold_\w+)(\{[^}]*\})?")
# The labels that Prometheus adds.
ADDED = {"job", "instance"}


def promtool(*arguments):
    done = subprocess.run([PROMETHEUS / "promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid():
    promtool("check", "rules", RULES)


def test_rules_fire_when_they_should():
    promtool("test", "rules", RULE_TESTS)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not():
    fires, stays_silent = set(), set()
    for case in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            (fires if check["exp_alerts"] else stays_silent).add(check["alertname"])
    assert fires == stays_silent == set(ALERTS)


def exported(text):
    """Parses the series in Prometheus' text format. Returns, for each metric, a list of the labels of its series."""
    series = {}
    for line in text.splitlines():
        found = re.match(r"(leasehold_\w+)(?:\{(.*)\})? ", line)
        if found:
            series.setdefault(found[1], []).append(dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")))
    return series


def unmatched(query, series):
    """Yields the selectors in `query` that match none of the `series`, and the labels that no series has."""
    for name, labels in SELECTOR.findall(query):
        if name == "up":
            continue
        rows = series.get(name)
        if not rows:
            yield f"no metric {name}"
            continue
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', labels):
            if label in ADDED:
                continue
            if label not in rows[0]:
                yield f"{name} has no label {label}"
            elif operator in ("=", "=~"):
                # Each alternative must exist, so that a renamed word is noticed.
                for word in value.split("|") if operator == "=~" else [value]:
                    if not any(re.fullmatch(word if operator == "=~" else re.escape(word), row[label]) for row in rows):
                        yield f'{name} never has {label}="{word}"'
    for label in re.findall(r"by \(([^)]*)\)", query):
        known = ADDED.union(["le"], *(row for rows in series.values() for row in rows))
        yield from (f"no series has the label {word}" for word in label.split(", ") if word not in known)


@pytest.fixture(scope="module")
def series(serve):
    status, text = answer(f"http://{serve.metrics}/metrics")
    assert status == 200
    return exported(text)


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_names_series_that_a_new_server_exports(alert, series):
    assert list(unmatched(ALERTS[alert], series)) == []


@pytest.mark.parametrize("query", QUERIES)
def test_panel_names_series_that_a_new_server_exports(query, series):
    assert list(unmatched(query, series)) == []


def test_names_that_do_not_exist_are_found(series):
    for query, fault in [
        ("leasehold_lossses_total > 0", "no metric leasehold_lossses_total"),
        ('leasehold_losses_total{cause="x"}', "leasehold_losses_total has no label cause"),
        ('leasehold_losses_total{reason="gone"}', 'leasehold_losses_total never has reason="gone"'),
        ('leasehold_renewals_total{outcome=~"lost|bad.*"}', 'leasehold_renewals_total never has outcome="bad.*"'),
        ("sum by (job, cause) (leasehold_waiters)", "no series has the label cause"),
    ]:
        assert list(unmatched(query, series)) == [fault]


@pytest.fixture(scope="module")
def prometheus(serve, tmp_path_factory):
    """Starts a Prometheus that scrapes the server every second and evaluates the rules."""
    folder = tmp_path_factory.mktemp("prometheus")
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "leasehold", "static_configs": [{"targets": [serve.metrics]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    promtool("check", "config", folder / "prometheus.yml")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        PROMETHEUS / "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    ]
    with started([*command, f"--web.listen-address={url.removeprefix('http://')}"], f"{url}/-/ready"):
        yield url


def query(prometheus, expression):
    status, text = answer(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    assert status == 200, f"{expression}: {text}"
    return json.loads(text)["data"]["result"]


def until(prometheus, expression):
    """Sends the query until the result is not empty."""
    deadline = time.monotonic() + 120
    while not query(prometheus, expression):
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)


def acquire(serve, key, lock, **more):
    body = json.dumps({"lock": lock, **more})
    return serve.post("/v1/holds", body, **{"Idempotency-Key": f"{key}-0123456789abcdef"})


def test_alerts_fire_and_panels_show_data_on_a_real_prometheus(serve, prometheus):
    until(prometheus, "leasehold_waiters")
    status, hold = acquire(serve, "first", "deploy")
    assert status == 201, hold
    hold = json.loads(hold)
    assert acquire(serve, "second", "deploy")[0] == 423
    assert (
        serve.post("/v1/evict", '{"lock": "deploy", "reason": "test"}', **{"If-Match": f'"{hold["token"]}"'})[0] < 300
    )
    assert serve.post("/v1/holds/renew", json.dumps({"ticket": hold["ticket"]}))[0] == 410

    until(prometheus, 'ALERTS{alertname="LeaseholdEvicted", alertstate="firing"}')
    until(prometheus, 'leasehold_losses_total{reason="ended"} == 1')
    _, text = answer(f"{prometheus}/api/v1/rules")
    rules = [rule for group in json.loads(text)["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(ALERTS)
    assert [rule for rule in rules if rule["health"] == "err"] == []

    for expression in QUERIES:
        for word, value in [("$__rate_interval", "1m"), ("$__range", "10m"), ("$job", ".*"), ("$instance", ".*")]:
            expression = expression.replace(word, value)
        assert query(prometheus, expression), f"no data: {expression}"


def test_dashboard_is_complete():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) and DASHBOARD["uid"] and DASHBOARD["schemaVersion"] >= 36
    for panel in DASHBOARD["panels"]:
        assert panel["title"] and panel["description"] and panel["datasource"]["uid"] == "${datasource}", panel["title"]
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval", "__range"}
    assert {word for query in QUERIES for word in re.findall(r"\$(\w+)", query)} <= known
