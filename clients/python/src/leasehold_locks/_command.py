"""Finds and starts the leasehold command."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sysconfig

from ._errors import AgentError

FIND = "set LEASEHOLD_COMMAND to the path of the leasehold command, or install the wheel that contains it"


def find() -> str:
    """Returns the leasehold command from the environment variable, from this package, or from PATH."""
    given = os.environ.get("LEASEHOLD_COMMAND")
    if given:
        return given
    schemes = [sysconfig.get_default_scheme()]
    # Not with `python3 -I` or `-s`, where a package is not loaded from the user's folder either.
    if site.ENABLE_USER_SITE:
        schemes.append(sysconfig.get_preferred_scheme("user"))
    for scheme in schemes:
        command = os.path.join(sysconfig.get_path("scripts", scheme), "leasehold")
        if os.access(command, os.X_OK):
            return command
    found = shutil.which("leasehold")
    if found is None:
        raise AgentError("the leasehold command was not found", [FIND])
    return found


def start(command: str) -> subprocess.Popen[bytes]:
    """Starts the command as an agent."""
    try:
        return subprocess.Popen(
            [command, "agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
    except OSError as error:
        raise AgentError(f"cannot start {command}: {error.strerror}", [FIND]) from error
