#!/usr/bin/env python3
"""Prints the licences of the crates in the command: packaging/third-party.py TARGET FEATURES

The texts are those that the crates contain. Each text appears once, after the crates that have it.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TEXTS = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def linked(metadata):
    """Returns the ids of the crates that the command is linked with."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [metadata["resolve"]["root"]]
    found = set()
    while todo:
        package = todo.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return found


def texts(package):
    """Yields the licence texts in the crate's folder."""
    folder = Path(package["manifest_path"]).parent
    for file in sorted(folder.iterdir()):
        if file.is_file() and TEXTS.match(file.name) and file.suffix not in {".rs", ".html"}:
            yield file.read_text(encoding="utf-8", errors="replace").strip()


def main():
    target, features = sys.argv[1:]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    command += ["--manifest-path", "crates/leasehold-cli/Cargo.toml", "--no-default-features", "--features", features]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    wanted = linked(metadata)
    having = defaultdict(list)
    without = []
    for package in sorted(metadata["packages"], key=lambda package: package["name"]):
        # leasehold's own crates have no source. Their licences are in separate files next to this output.
        if package["id"] not in wanted or package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license']})"
        found = list(texts(package))
        for text in found:
            having[text].append(name)
        if not found:
            without.append(f"{name}: {package['repository']}")
    print("The command leasehold contains these crates.")
    for text, names in having.items():
        print("\n" + "-" * 80)
        print("\n".join(names), end="\n\n")
        print(text)
    if without:
        print("\n" + "-" * 80)
        print("These contain no text of their licence:\n\n" + "\n".join(without))


main()
