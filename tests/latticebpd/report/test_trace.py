"""The page of decodes call by call: everything that happened stands on it, and it needs nothing else."""

from __future__ import annotations

import re

from latticebpd import BlockwiseLM, TopK, TreeDrafter, generate
from latticebpd.measuring.call_records import read_calls
from latticebpd.report import TracedDecode, trace_page
from tests.helpers.pages import check_page
from tests.helpers.trigrams import trigram

PROMPT = [3, 1, 4]


def test_page_holds_every_call_and_loads_nothing(model: BlockwiseLM) -> None:
    lm = trigram()
    out = generate(model, PROMPT, TreeDrafter(model, lm, num_nodes=12, k=4), TopK(2), max_new_tokens=24, trace=True)
    assert out.trace is not None
    calls = read_calls(model, PROMPT, out, lm)
    written = out.sequences[0, 3:].tolist()
    decodes = [TracedDecode(title, "a <b>", written, calls) for title in ("One & only", "Another")]
    page = trace_page(
        "A & B", "by <hand>", decodes, lambda tokens: "".join(f" w{t}<i>" for t in tokens), lambda t: f"w{t}<i>"
    )
    tags = check_page(page)
    assert not {"script", "link", "img"} & tags
    assert page.count('<details class="call"') == 2 * len(calls)
    assert page.count("<svg") == sum(call.step.tree.lattice is not None for call in calls) * 2
    assert page.count('<li><span class="') == 2 * sum(len(step.tree) for step in out.trace)  # every drafted node
    assert "a &lt;b&gt;" in page
    assert "One &amp; only" in page
    text = re.search(r'<p class="running"><span class="before">.*?</p>', page, re.DOTALL)
    assert text is not None
    words = re.findall(r"w(\d+)&lt;i&gt;", text[0])
    assert [int(word) for word in words] == out.sequences[0, 3:].tolist()
    states = {position.state for call in calls for position in call.positions}
    assert {"kept", "lenient", "void"} <= states
    assert all(f"· {call.end.value}" in page for call in calls)


def test_tokens_that_end_inside_a_character_show_nothing_until_it_is_whole(model: BlockwiseLM) -> None:
    out = generate(model, PROMPT, TreeDrafter(model, None, num_nodes=4, k=4), max_new_tokens=6, trace=True)
    calls = read_calls(model, PROMPT, out)
    text = "äöü".encode()
    decodes = [TracedDecode("t", "", out.sequences[0, 3:].tolist(), calls)]
    page = trace_page("t", "", decodes, lambda tokens: text[: len(tokens)].decode(errors="replace"), str)
    shown = re.search(r'<p class="running"><span class="before">.*?</p>', page, re.DOTALL)
    assert shown is not None
    assert re.sub(r"<[^>]+>|\s", "", shown[0]) == "äöü"
