#!/usr/bin/env python3
"""Checks the dependencies against deny.toml: licences, banned crates, duplicates, sources.

cargo-deny reads the same file and does the same checks, and it also looks for advisories. But it takes minutes to
build, so every test run uses this script. Needs Python 3.11. If cargo-deny is installed and its database can be
downloaded, this script also checks the advisories.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def fulfils(expression, allowed):
    """Returns whether the SPDX expression can be fulfilled with the allowed licences."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens and tokens[0] == "WITH":
            token = f"{token} WITH {tokens[1]}"
            del tokens[:2]
        return token in allowed

    return either()


def check(packages, rules):
    """Returns the errors and the warnings about the packages."""
    errors, warnings = [], []
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["crate"] for ban in rules["bans"]["deny"]}
    skipped = {skip["crate"] for skip in rules["bans"].get("skip", [])}
    versions = defaultdict(set)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        versions[package["name"]].add(package["version"])
        licence = package["license"]
        if licence is None or not fulfils(licence, allowed):
            errors.append(f"{name}: licence {licence} is not in deny.toml")
        if package["name"] in banned:
            errors.append(f"{name}: banned by deny.toml")
        if package["source"] not in (None, CRATES_IO):
            errors.append(f"{name}: comes from {package['source']}, not from crates.io")
    for name, found in sorted(versions.items()):
        new = [version for version in sorted(found) if f"{name}@{version}" not in skipped]
        if len(found) > 1 and len(new) > 1:
            warnings.append(f"{name} is there more than once: {', '.join(sorted(found))}")
    known = {f"{name}@{version}" for name, found in versions.items() for version in found}
    for skip in sorted(skipped - known):
        warnings.append(f"deny.toml skips {skip}, which is no longer a dependency")
    return errors, warnings


def check_can_fail(rules):
    """Tests that the check can fail."""
    good = {"name": "a", "version": "1.0.0", "license": "MIT OR GPL-3.0-only", "source": CRATES_IO}
    bad = [
        {"license": "MIT AND GPL-3.0-only"},
        {"license": "(MIT OR Apache-2.0) AND SSPL-1.0"},
        {"license": "Apache-2.0 WITH Classpath-exception-2.0"},
        {"license": None},
        {"name": "openssl-sys"},
        {"source": "git+https://example.com/a"},
    ]
    assert check([good], rules)[0] == []
    for change in bad:
        assert len(check([good | change], rules)[0]) == 1, change
    assert len(check([good, good | {"version": "2.0.0"}], rules)[1]) > len(check([good], rules)[1])


def advisories():
    if shutil.which("cargo-deny") is None:
        return "advisories: not checked, since cargo-deny is not installed"
    deny = ["cargo", "deny", "--all-features"]
    if subprocess.run([*deny, "fetch", "db"], capture_output=True, check=False).returncode != 0:
        return "advisories: not checked, because the database cannot be downloaded"
    run = subprocess.run([*deny, "check", "--disable-fetch", "advisories"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return "advisories: none"


def main():
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    check_can_fail(rules)
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"],
        capture_output=True, text=True, check=True,
    )
    packages = json.loads(metadata.stdout)["packages"]
    errors, warnings = check(packages, rules)
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(f"error: {error}")
    print(f"{len(packages)} packages: {len(errors)} errors, {len(warnings)} warnings")
    print(advisories())
    sys.exit(1 if errors else 0)


main()
