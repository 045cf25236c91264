"""Fixtures of the browser tests: Debian's Chromium, a store with about 40 locks, and a server."""

import os

import pytest
from playwright.sync_api import expect, sync_playwright

from locks import LIMIT, Site, populate

BINARY = os.environ.get("LEASEHOLD", "target/debug/leasehold")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]


expect.set_options(timeout=LIMIT * 1_000)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def full():
    """A store with locks in all states. Tests must not change it."""
    with Site(BINARY) as site:
        populate(site)
        site.server = site.serve("--ui=rw")
        yield site


@pytest.fixture
def site():
    """A store for one test."""
    with Site(BINARY) as site:
        yield site


@pytest.fixture
def open_page(browser):
    """Opens pages. Fails the test if a page violated its policy or had an error."""
    contexts, complaints = [], []

    def open_page(address, width=1440, scheme="light", token=None, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT * 1_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # Ignores killed servers and responses with an error status, which are not faults of the page.
        page.on("console", lambda message: complaints.append(message.text)
                if message.type in ("error", "warning") and "Failed to load resource" not in message.text else None)
        if token:
            base = address.split("/ui")[0]
            page.goto(f"{base}/ui/sign-in")
            page.fill("#token", token)
            page.press("#token", "Enter")
            page.wait_for_url("**/ui/")
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
