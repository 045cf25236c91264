"""Tests the Dockerfile: hadolint finds nothing, the command starts, and it needs no library that the image does not
have."""

import json
import re
import shutil
import subprocess

from conftest import ACCESS, DEPLOY, HADOLINT, LEASEHOLD, SECRET, answer, free_port, started

DOCKERFILE = DEPLOY / "docker/Dockerfile"
# The libraries in the image distroless/cc.
LIBRARIES = {
    "linux-vdso.so.1",
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
}


def test_dockerfile_has_no_findings():
    done = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_rust_is_the_oldest_supported_one():
    manifest = (DEPLOY.parent / "Cargo.toml").read_text()
    version = re.search(r'^rust-version = "(.*)"', manifest, re.MULTILINE)[1]
    assert f"FROM rust:{version}-" in DOCKERFILE.read_text()


def test_the_build_gets_the_files_that_it_needs(tmp_path):
    """Cargo accepts the workspace, and all files that the sources include exist."""
    rules = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().split()
    assert rules[0] == "*"
    for name in (rule.removeprefix("!") for rule in rules if rule.startswith("!")):
        for source in DEPLOY.parent.glob(name):
            ignored = shutil.ignore_patterns("target")
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tmp_path / source.name, **({"ignore": ignored} if source.is_dir() else {}))
    command = ["cargo", "metadata", "--format-version=1", "--no-deps", "--locked", "--offline"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sources = list(tmp_path.glob("crates/*/src/**/*.rs"))
    assert sources
    for source in sources:
        for included in re.findall(r'include_(?:str|bytes)!\("([^"]*)"\)', source.read_text()):
            assert (source.parent / included).exists(), f"{source}: {included}"


def test_the_image_has_all_libraries_of_the_command():
    text = subprocess.run(["ldd", LEASEHOLD], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in text.splitlines()}
    assert {name for name in names if not name.startswith("/lib")} <= LIBRARIES


def test_command_of_the_image_starts(tmp_path):
    (tmp_path / "access.toml").write_text(ACCESS)
    (tmp_path / "secret").write_text(SECRET)
    words = json.loads(re.search(r"^CMD (\[.*\])", DOCKERFILE.read_text().replace("\\\n", ""), re.MULTILINE)[1])
    listen, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    replaced = {"0.0.0.0:7420": listen, "0.0.0.0:7422": metrics}
    words = [replaced.get(word, word.replace("/etc/leasehold", str(tmp_path))) for word in words]
    with started([LEASEHOLD, "-s", "mem:", *words], f"http://{listen}/readyz"):
        assert answer(f"http://{listen}/v1/locks")[0] == 401
        assert answer(f"http://{metrics}/metrics")[0] == 200
