"""Tests of the site: its links, the length of its pages, and its search in Chromium. See docs/site/build."""

import collections
import functools
import http.server
import os
import re
import subprocess
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import sync_playwright

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]
BASE = "https://leasehold.github.io/leasehold/"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
# A query, and a page that the first three results contain.
SEARCHES = {
    "cron": "docs/guides/cron/",
    "cost": "docs/stores/",
    "MinIO": "docs/stores/s3-compatible/",
    "force-unlock": "docs/guides/terraform/",
    "Jenkins": "docs/guides/jenkins/",
    "FastAPI": "docs/guides/fastapi/",
}


class Page(HTMLParser):
    """The links of a page, with what it loads, its anchors, and how often it has each tag without a class."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.tags = [], {""}, collections.Counter()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        self.tags[tag] += "class" not in attributes


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    subprocess.run([SITE / "build", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def pages(site):
    return {path.relative_to(site): Page(path) for path in site.rglob("index.html")}


def dead(site, pages, page, link):
    """Returns whether a link leads to a page or an anchor of the site that does not exist."""
    url = urlsplit(urljoin(BASE + page.as_posix(), link))
    if not url.geturl().startswith(BASE):
        return False
    path = Path(unquote(url.path.removeprefix(urlsplit(BASE).path)))
    path = path / "index.html" if (site / path).is_dir() else path
    if path not in pages:
        return not (site / path).is_file()
    return unquote(url.fragment) not in pages[path].anchors


def test_every_link_leads_somewhere(site, pages):
    found = [f"{page}: {link}" for page, content in pages.items() for link in content.links
             if dead(site, pages, page, link)]
    assert found == []
    assert len(pages) > 100 and sum(len(content.links) for content in pages.values()) > 5_000


def test_a_dead_link_is_noticed(site, pages):
    links = {"../cron/": False, "../cron/#what-goes-wrong-without-a-lock": True, "../nothing/": True,
             "https://example.com/x": False, BASE + "docs/nothing/": True, "#nothing": True, ".": False}
    page = Path("docs/guides/jenkins/index.html")
    assert {link: dead(site, pages, page, link) for link in links} == links


def test_headings_lists_and_code_are_recognised(pages):
    """The generator needs another dialect than the forge: see `in_dialect` in docs/site/build."""
    for source in (ROOT / "docs").rglob("*.md"):
        built = source.relative_to(ROOT).with_suffix("") / "index.html"
        content = pages[built if source.name != "README.md" else built.parents[1] / "index.html"]
        fences = re.split(r"^ *```.*\n", source.read_text(), flags=re.MULTILINE)
        prose = "".join(fences[::2])
        assert content.tags["h2"] == len(re.findall(r"^## ", prose, re.MULTILINE)), source
        assert content.tags["li"] == len(re.findall(r"^ *([-*]|\d+\.) ", prose, re.MULTILINE)), source
        assert content.tags["pre"] >= len(fences) // 2, source


def test_every_page_has_a_place_in_the_navigation():
    text = (SITE / "mkdocs.yml").read_text()
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert [page for page in sorted(there) if f" {page}\n" not in text] == []


def test_no_page_is_long():
    """A word has a letter or a digit. Tables count. A proposal may be longer."""
    def words(path):
        return sum(1 for word in path.read_text().split() if re.search(r"\w", word))
    long = {path.name: words(path) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "rfcs"}
    assert {name: count for name, count in long.items() if count > 3_000} == {}


@pytest.fixture(scope="session")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def reader(address):
    """A page of a browser. Fails if it sends a request elsewhere, or reports an error."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(20_000)
        complaints = []
        page.on("request", lambda request: complaints.append(request.url)
                if not request.url.startswith((address, "data:", "blob:")) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
    assert complaints == []


@pytest.fixture(scope="session")
def search(reader, address):
    reader.goto(address)
    reader.locator("[data-md-component=search] button").click()
    return reader.get_by_role("combobox", name="Search")


@pytest.mark.parametrize("query", SEARCHES)
def test_search_finds(reader, search, query):
    search.fill(query)
    results = reader.get_by_role("option")
    results.locator("mark", has_text=query.split("-")[0]).first.wait_for()
    found = [urlsplit(result.get_attribute("href")).path for result in results.all()[:3]]
    assert f"/{SEARCHES[query]}" in found


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_a_page_fits_its_window(reader, address, width):
    reader.set_viewport_size({"width": width, "height": 900})
    for page in ("", "docs/guides/cron/", "docs/stores/s3/", "docs/performance/"):
        reader.goto(address + page)
        assert reader.evaluate("document.documentElement.scrollWidth") <= width, page
