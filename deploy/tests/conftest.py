"""The common part of the tests of deploy/: the command, other programs, and a server."""

import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

DEPLOY = pathlib.Path(__file__).resolve().parent.parent

# Missing variables are errors, so that no check is skipped.
LEASEHOLD = os.environ["LEASEHOLD"]
PROMETHEUS = pathlib.Path(os.environ["PROMETHEUS"])
HELM = os.environ["HELM"]
HADOLINT = os.environ["HADOLINT"]
KUBERNETES = os.environ["LEASEHOLD_TEST_KUBERNETES"]

# Gives access to the user "ci", whose token is "test".
ACCESS = """
[[token]]
principal = "ci"
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
[[rule]]
principal = "ci"
allow = ["read", "acquire", "evict"]
"""
SECRET = "0123456789abcdef0123456789abcdef"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answer(url, data=None, **headers):
    """Returns the status and the text of a response."""
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextlib.contextmanager
def started(command, url, **options):
    """Starts a process, and yields it when `url` responds with 2xx. Stops it with SIGTERM, after which it must exit
    with 0."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **options)

        def said():
            log.seek(0)
            return log.read()

        try:
            deadline = time.monotonic() + 120
            while True:
                assert process.poll() is None, said()
                assert time.monotonic() < deadline, said()
                with contextlib.suppress(OSError):
                    if answer(url)[0] < 300:
                        break
                time.sleep(0.1)
            yield process
            process.terminate()
            assert process.wait(60) == 0, said()
        finally:
            process.kill()
            process.wait()


class Serve:
    """A `leasehold serve` with metrics."""

    def __init__(self, port, metrics):
        self.url, self.metrics = f"http://127.0.0.1:{port}", f"127.0.0.1:{metrics}"

    def post(self, path, body, **headers):
        headers = {"Authorization": "Bearer test", "Content-Type": "application/json", **headers}
        return answer(self.url + path, body.encode(), **headers)


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    (folder / "access.toml").write_text(ACCESS)
    server = Serve(free_port(), free_port())
    command = [LEASEHOLD, "-s", "mem:", "serve", "--listen", server.url.removeprefix("http://")]
    command += ["--access", str(folder / "access.toml"), "--metrics", server.metrics]
    with started(command, f"http://{server.metrics}/metrics"):
        yield server
