#!/usr/bin/env python3
"""Checks that `cargo binstall leasehold-cli` finds the tarball that ./package has built: packaging/binstall.py FOLDER TARGET

Fills in the templates of [package.metadata.binstall] as cargo-binstall does, and compares them with the tarball in FOLDER.
"""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path


def filled_in(template, values):
    return re.sub(r"\{ *([a-z-]+) *\}", lambda match: values[match[1]], template)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    folder, target = Path(sys.argv[1]), sys.argv[2]
    packages = json.loads(output("cargo", "metadata", "--format-version", "1", "--locked", "--no-deps"))["packages"]
    package = next(package for package in packages if package["name"] == "leasehold-cli")
    values = {
        "name": package["name"],
        "version": package["version"],
        "target": target,
        "repo": package["repository"],
        "bin": "leasehold",
        "binary-ext": "",
    }
    metadata = package["metadata"]["binstall"]
    url = filled_in(metadata["pkg-url"], values)
    command = filled_in(metadata["bin-dir"], values)
    release = f"{package['repository']}/releases/download/v{package['version']}/"
    tarball = folder / url.removeprefix(release)
    if metadata["pkg-fmt"] != "tgz" or not url.startswith(release) or not tarball.is_file():
        sys.exit(f"binstall: {url} is not the tarball in {folder}")
    with tarfile.open(tarball) as archive:
        if command not in archive.getnames() or not archive.getmember(command).mode & 0o100:
            sys.exit(f"binstall: {tarball.name} has no command {command}")
    print(f"cargo binstall downloads {url}")


main()
