"""Pages of every kind in a browser: they fit a window of any width."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fst.files import write_text
from latticebpd import BlockwiseLM, TreeDrafter, generate
from latticebpd.drafters import HeadLattices
from latticebpd.jacobi import RandomTokens
from latticebpd.jacobi.analysis import analyse, corpus_statistics
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.call_records import read_calls, scorer_of
from latticebpd.measuring.collect import CollectOptions, collect_shards
from latticebpd.report import DataSet, Options, TracedDecode, make_report, measure, trace_page
from latticebpd.report.dependency_plots import graphs_page
from latticebpd.scoring.rescoring import as_scorer
from tests.helpers.tiny_families import VOCABULARY, tiny
from tests.helpers.tokenizers import letters
from tests.helpers.trigrams import trigram

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def pages(model: BlockwiseLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind."""
    directory = tmp_path_factory.mktemp("pages")
    prompts = np.random.default_rng(0).integers(0, 23, (8, 4)).tolist()
    data, options = Texts.of_rows(prompts, [4] * 8), CollectOptions(k=4, max_new_tokens=16)
    collect_shards(HeadLattices(model), data, directory / "d", options, shard_texts=3)
    measured = measure(
        [DataSet("tiny", (directory / "d",))],
        {"3-gram": as_scorer(trigram())},
        Options(tuning_examples=2),
    )
    make_report(measured, word=lambda token: f"word {token}").write(directory)
    drafter = TreeDrafter(model, trigram(), num_nodes=24, k=5)
    out = generate(model, [3, 1, 4], drafter, max_new_tokens=40, trace=True)
    calls = read_calls(model, [3, 1, 4], out, scorer_of(drafter))
    decodes = [
        TracedDecode(f"Decode {i}", "a prompt of some words", out.sequences[0, 3:].tolist(), calls) for i in range(2)
    ]
    page = trace_page(
        "A decode", "how", decodes, lambda tokens: " ".join(f"word{t}" for t in tokens), lambda token: f" word{token}"
    )
    write_text(directory / "trace.html", page.replace("<details", "<details open"))
    initial = RandomTokens(VOCABULARY, 4)
    sentences = [
        analyse(tiny("marian", 5), letters(), text, initial, max_new_tokens=24) for text in ("beg", "cab", "fad")
    ]
    write_text(
        directory / "graphs.html", graphs_page(sentences, corpus_statistics(sentences), "settings | of | some length")
    )
    return directory


@pytest.fixture
def served(pages: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=pages))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


PROBE = """<!doctype html><body></body><script>
const frame = document.createElement("iframe"), asked = new URLSearchParams(location.search);
frame.width = asked.get("width"); frame.height = 900; frame.src = asked.get("page");
frame.onload = () => {
  const page = frame.contentDocument, width = frame.contentWindow.innerWidth, wide = [];
  for (const element of page.querySelectorAll("body *")) {
    const inside = element.parentElement.closest(".scroll, svg");
    if (!inside && element.getBoundingClientRect().right > width + 0.5)
    wide.push(element.tagName + "." + element.className);
  }
  const tables = [...page.querySelectorAll(".table .scroll")].filter(each => each.scrollWidth > each.clientWidth);
  const holes = [...page.querySelectorAll(".tiles")].filter(tiles => {
    const ends = {};
    for (const tile of tiles.children) {
      const place = tile.getBoundingClientRect();
      ends[place.top] = Math.max(ends[place.top] ?? 0, place.right);
    }
    return Object.values(ends).some(end => end < tiles.getBoundingClientRect().right - 0.5);
  });
  const found = {
    width, scroll: page.scrollingElement.scrollWidth, wide, plots: page.querySelectorAll("svg").length,
    scrolling: tables.map(each => each.closest("figure").id), holes: holes.length,
  };
  document.documentElement.dataset.found = JSON.stringify(found);
};
document.body.append(frame);
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 520, 390])
@pytest.mark.parametrize(("page", "pictures"), [("report.html", 7), ("trace.html", 4), ("graphs.html", 1)])
def test_nothing_overflows_in_a_browser(
    served: str, pages: Path, page: str, pictures: int, width: int, tmp_path: Path
) -> None:
    (pages / "probe.html").write_text(PROBE, encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path}", "--window-size=1400,1000"]
    url = f"{served}/probe.html?width={width}&page={page}"
    done = subprocess.run(
        [str(CHROMIUM), *flags, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True
    )
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match is not None, done.stdout[:500]
    sizes = json.loads(match[1].replace("&quot;", '"'))
    assert sizes["width"] == width
    assert sizes["scroll"] <= width
    assert sizes["wide"] == []
    assert sizes["plots"] >= pictures
    assert sizes["holes"] == 0  # cards fill their lines
    assert width < 1280 or sizes["scrolling"] == []
