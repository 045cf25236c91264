#!/usr/bin/env python3
"""Serves the npm packages of a folder on a free loopback port, as a registry: packaging/npm-registry.py FOLDER

Prints the address. Describes the packages for other platforms, which are built elsewhere and cannot be downloaded here.
"""

import base64
import hashlib
import json
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


def described(file):
    """Returns the package.json of a package, with the fields that a registry adds."""
    with tarfile.open(file) as package:
        description = json.load(package.extractfile("package/package.json"))
    digest = hashlib.sha512(file.read_bytes()).digest()
    integrity = "sha512-" + base64.b64encode(digest).decode()
    return description | {"dist": {"tarball": f"{address}/-/{file.name}", "integrity": integrity}}


def elsewhere(name, version):
    """Returns the description of a package for another platform."""
    system, processor = name.removeprefix("@leasehold/").split("-")
    dist = {"tarball": f"{address}/-/missing.tgz", "integrity": "sha512-" + base64.b64encode(bytes(64)).decode()}
    return {"name": name, "version": version, "os": [system], "cpu": [processor], "dist": dist}


def packages():
    found = {}
    for file in folder.glob("*.tgz"):
        package = described(file)
        found[package["name"]] = package
    for name, version in found["leasehold"]["optionalDependencies"].items():
        found.setdefault(name, elsewhere(name, version))
    return found


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = unquote(self.path).lstrip("/")
        if path.startswith("-/"):
            file = folder / Path(path).name
            body = file.read_bytes() if file.is_file() else None
        else:
            package = packages().get(path)
            body = package and json.dumps(
                {
                    "name": path,
                    "dist-tags": {"latest": package["version"]},
                    "versions": {package["version"]: package},
                }
            ).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


folder = Path(sys.argv[1])
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
address = f"http://127.0.0.1:{server.server_port}"
print(address, flush=True)
server.serve_forever()
