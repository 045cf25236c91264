"""Tests the systemd unit: it is valid and hardened, and its command starts with the files and rights that systemd gives
it."""

import os
import pwd
import re
import shutil
import subprocess

import pytest
from conftest import ACCESS, DEPLOY, LEASEHOLD, SECRET, answer, free_port, started

UNIT = DEPLOY / "systemd/leasehold-serve.service"
INSTALLED = "/usr/local/bin/leasehold"


@pytest.fixture
def unit(tmp_path):
    """Returns a copy of the unit whose command exists."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(INSTALLED, shutil.which("true")))
    return copy


def analyze(*arguments):
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_unit_is_valid(unit):
    assert analyze("verify", "--man=no", str(unit)) == (0, "")


def test_a_misspelt_setting_is_found(unit):
    unit.write_text(unit.read_text().replace("StateDirectory=", "StateDir="))
    assert "'StateDir'" in analyze("verify", "--man=no", str(unit))[1]


def test_unit_is_hardened(unit):
    """The exposure is at most 1.5 of 10. The server needs the rest: Internet addresses and /proc."""
    status, text = analyze("security", "--offline=true", "--threshold=15", str(unit))
    assert status == 0, text


def settings(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_command_starts_as_another_user_with_the_units_files(tmp_path):
    environment = dict(setting.split("=", 1) for setting in settings("Environment"))
    listen, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    state, credentials = tmp_path / "state", tmp_path / "credentials"
    state.mkdir()
    credentials.mkdir()
    texts = {"access.toml": ACCESS, "secret": SECRET}
    # Creates exactly the files that the unit loads.
    for name in (credential.split(":")[0] for credential in settings("LoadCredential")):
        (credentials / name).write_text(texts.pop(name))
    assert texts == {}
    environment |= {"LISTEN": listen, "METRICS": metrics, "CREDENTIALS_DIRECTORY": str(credentials)}
    environment |= {"STATE_DIRECTORY": str(state), "LEASEHOLD_STORE": f"sqlite:{state}/locks.db"}

    (command,) = settings("ExecStart")
    words = []
    for word in command.split():
        if re.fullmatch(r"\$\w+", word):  # systemd splits such a word
            words += environment[word[1:]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], word))
    assert words[0] == INSTALLED
    options = {"env": environment, "cwd": "/"}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        shutil.chown(state, nobody.pw_uid)
        # The test's folders belong to root. Other users must be able to reach the two folders.
        for folder in [tmp_path, *tmp_path.parents]:
            mode = folder.stat().st_mode
            if not mode & 0o001:
                folder.chmod(mode | 0o001)
    with started([LEASEHOLD, *words[1:]], f"http://{listen}/readyz", **options):
        assert answer(f"http://{listen}/v1/locks")[0] == 401
        assert answer(f"http://{listen}/v1/locks", Authorization="Bearer test")[0] == 200
        assert answer(f"http://{metrics}/metrics")[0] == 200
        assert answer(f"http://{metrics}/readyz")[0] == 204
    assert (state / "audit.jsonl").exists() and (state / "locks.db").exists()
