"""Runs the examples in docs/python.md, in the README and in docstrings."""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

import leasehold_locks
from conftest import ROOT
from leasehold_locks import Locker, _agent

#: The functions of the user's program that the examples call.
PROGRAM = ("deploy", "report", "save", "render", "search", "rebuild", "read")


def namespace(url: str) -> dict[str, Any]:
    async def deploy_async(fence: int) -> None:
        await asyncio.sleep(0)

    program = {name: MagicMock() for name in PROGRAM}
    return {**program, "rows": lambda: range(3), "deploy_async": deploy_async, "locker": Locker(url), "__name__": "x"}


@pytest.mark.parametrize("document", ["docs/python.md", "clients/python/README.md"])
def test_the_blocks_of_a_document_run_in_their_order(document: str, url: str) -> None:
    names = namespace(url)
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, document, "exec"), names)


@pytest.mark.parametrize("module", ["", "._locker", "._locks", "._serverless", "._types", ".aio"])
def test_the_examples_of_docstrings_run(module: str, url: str) -> None:
    found = importlib.import_module(f"leasehold_locks{module}")
    tests = [test for test in doctest.DocTestFinder(exclude_empty=True).find(found) if test.examples]
    assert tests
    for test in tests:
        names = {
            **vars(found),
            **namespace(url),
            "deploy": namespace(url)["deploy_async"] if module == ".aio" else MagicMock(),
        }
        for example in test.examples:
            if example.want:
                assert repr(eval(example.source, names)) == example.want.strip()
            else:
                exec(compile(ast.parse(example.source), test.name, "exec"), names)


def test_all_parts_have_one_version() -> None:
    workspace = re.search(r'\[workspace\.package\]\nversion = "(.*?)"', (ROOT / "Cargo.toml").read_text())
    package = re.search(r'^version = "(.*?)"', (ROOT / "clients/python/pyproject.toml").read_text(), re.MULTILINE)
    assert workspace and package
    versions = {workspace[1], package[1], leasehold_locks.__version__, _agent._CLIENT.partition("/")[2]}
    assert len(versions) == 1, versions
