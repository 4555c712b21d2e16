"""Chat templates: the text that `transformers` renders, from the forms of published models; hostile ones end."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.defaults import DEFAULT_FILTERS
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from latticebpd.models import chat_templates
from latticebpd.models.chat_templates import KNOWN, render_chat
from latticebpd.models.template_worker import MAX_TEXT
from tests.helpers.tokenizers import letters

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson }}
        {{- "}" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""  # noqa: E501

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {%- generation %}
        {{- " " + message["content"]|trim + eos_token}}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- macro turn(role, text) -%}
<start_of_turn>{{ role }}
{{ text | trim }}<end_of_turn>
{% endmacro -%}
{% for message in messages %}
    {% if message['content'] is string and not message['content'] | trim %}
        {% continue %}
    {% endif %}
    {{ turn('model' if message['role'] == 'assistant' else message['role'], message['content']) }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""  # noqa: E501

QWEN_3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>" + (tools | tojson(indent=2, sort_keys=true)) + "<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {{- (message.content or '').lstrip('\\n') }}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' ~ tool_call.function.name ~ '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<tool_response>' ~ message.content ~ '</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

TEMPLATES = {"ChatML": CHATML, "Llama 3": LLAMA_3, "Mistral": MISTRAL, "Gemma": GEMMA, "Qwen 3": QWEN_3}
CALL = {"function": {"name": "weather", "arguments": {"city": "Zürich <&> \"north\"", "days": 2}}}  # fmt: skip
THOUGHT = "<think>\nhm\n</think>\n\nYes"
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Hi\n there <b>&amp;</b> {{ 7 * 7 }} '\"  "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 日本"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": " Hello! ", "name": None},
        {"role": "user", "content": " "},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": THOUGHT, "tool_calls": [CALL]}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "reasoning": "so\n", "tool_calls": [CALL]},
        {"role": "tool", "content": "sun"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes", "reasoning_content": "", "thinking": "b"},
    ],
    [{"role": "user"}],
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
VARIABLES: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "enable_thinking": False, "tools": [{"type": "function", "é": [1.5, None, True]}]},
]


def reference(template: str, chat: list[dict[str, Any]], **variables: Any) -> str | None:
    """What `transformers` renders; None where the template refuses."""
    chat = [{name: value for name, value in message.items() if value is not None} for message in chat]
    try:
        return str(render_jinja_template([chat], chat_template=template, **variables)[0][0])
    except Exception:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("variables", range(len(VARIABLES)))
def test_a_conversation_has_the_text_that_transformers_renders(name: str, chat: int, variables: int) -> None:
    template, options = TEMPLATES[name], {**TOKENS, **VARIABLES[variables]}
    expected = reference(template, CHATS[chat], **options)
    if expected is None:
        with pytest.raises(
            ValueError, match=r"^expected a conversation that the chat template accepts, got \w+Error: "
        ):
            render_chat(template, CHATS[chat], **options)
    else:
        assert render_chat(template, CHATS[chat], **options) == expected


def test_templates_accept_most_of_these_conversations() -> None:
    texts = [reference(template, chat, **TOKENS) for template in TEMPLATES.values() for chat in CHATS]
    assert sum(text is not None for text in texts) >= 26


SMALL = [
    "{%- set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.content }}\n{% endgeneration %}{% endfor %}\n",
    "{{ messages | tojson }}{{ 'é</' | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{% for i in range(9) %}{% if i == 3 %}{% continue %}{% elif i > 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ dict(a=1, **{'b': 2}) }}{{ dict.fromkeys('ab', 0) }}",
    "{% set n = namespace(dict(a=1), self=2) %}{% set n.b = 3 %}{{ n.a + n.self + n.b }}",
    "   {% if true %}\n  a\n   {% endif %}\n{{ undefined }}{{ tools is none }}{{ add_generation_prompt }}\n\n",
    "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [0] * 2 }}{{ 3 * 1.5 }}{{ -7 * 7 }}",
]


SMALL += [
    "{% macro quoted(text, mark='\"') %}{{ mark ~ text ~ mark }}{{ caller() if caller }}{% endmacro %}"
    "{{ quoted(messages[0].content) }}{% call quoted('a', mark=\"'\") %}b{% endcall %}{{ quoted.name }}",
    "{% for key, value in {'b': 1, 'a': [2]} | dictsort %}{{ loop.revindex }}{{ key }}{{ value }}{% endfor %}",
    "{% set text %}a{{ 1 }}\n{% endset %}{{ text | upper }}{{ text is string }}{{ '\\u00e9\\n' }}{{ -1 | abs }}",
    "{% for m in messages if m.role == 'user' %}{{ m.content[:1] }}{{ loop.nextitem is none }}{% else %}-{% endfor %}",
    "{{ '%s %5.2f' % ('a', 2) }}{{ '{:>5}|{}'.format('a', 'b') }}{{ 'a' in 'abc' }}{{ [1, 2] < [1, 3] }}{{ (1, 'a') }}",
    "{{ {'a': {'b': None}}.a.items() | list }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1} == dict(a=1) }}{{ 1.0 }}{{ none }}",
    "{{ lipsum is defined }}{{ cycler('a', 'b').next() }}{% set j = joiner() %}{{ j() }}{{ j() }}{{ range(3) | sum }}",
    "{% filter upper %}a{{ messages | length }}{% endfilter %}{% with x = 3 %}{{ x }}{% endwith %}",
    "{% raw %}{{ }}{% endraw %}{# no text #}{{ strftime_now('%%') }}{{ 'abc'[::-1] }}{{ [3, 1] | sort | join(', ') }}",
]  # fmt: skip


@pytest.mark.parametrize("template", SMALL)
@pytest.mark.parametrize("chat", [2, 5, 6])
def test_parts_of_the_language_mean_what_they_mean_in_transformers(template: str, chat: int) -> None:
    expected = reference(template, CHATS[chat])
    assert expected is not None
    assert render_chat(template, CHATS[chat]) == expected


@pytest.mark.parametrize("name", sorted(set(DEFAULT_FILTERS) - {"random"}))
def test_filters_mean_what_they_mean_in_transformers(name: str) -> None:
    """Also those that Jinja imports when it needs them, which the worker no longer could."""
    for value in ("messages", "messages[0].content", "messages[0]", "7.5", "['b', 'a']"):
        for call in (name, f"{name} | list", f"{name}(2)", f"{name}('role')"):
            template = f"{{{{ {value} | {call} }}}}"
            expected = reference(template, CHATS[2])
            if expected is not None and " at 0x" not in expected:
                assert render_chat(template, CHATS[2]) == expected, template


def test_texts_and_variables_of_any_characters_are_kept() -> None:
    text = "\ud800 \x00\u2028\U0001f600 é\r\n" + "日" * 100_000
    assert render_chat("{{ messages[0].content }}{{ é }}\udc00", [{"content": text}], é=text) == text + text + "\udc00"


def test_the_date_is_todays() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", CHATS[0]) in (str(datetime.now().year), str(datetime.now().year - 1))


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ '' | attr('__class__') }}{{ ''['__class__'] }}",
        "{{ raise_exception.__globals__ }}",
        "{{ dict.__call__ }}{{ dict.__self__ }}{{ dict.mro }}{{ dict.fromkeys.__self__ }}",
        "{{ namespace.__init__ }}{{ self.__class__ }}{{ messages.append }}{{ cycler.__init__ }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_internals_of_python_are_undefined(template: str) -> None:
    assert reference(template, CHATS[0]) == ""
    assert render_chat(template, CHATS[0]) == ""


NESTED = (
    "{% set n = namespace(a=[1], b=[1]) %}"
    "{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
)
HOSTILE = {
    "a vast range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "ranges in ranges": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"
        "{% endfor %}"
    ),
    "a filter over ranges": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "attributes of a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a module of a global": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "a namespace's attribute": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "a namespace's name": "{{ namespace(__class__=1) }}",
    "a namespace's private name": "{{ namespace(_a=1) }}",
    "a changed message": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a long text": "{{ 'a' * 10 ** 6 * 10 ** 6 }}",
    "a long list": "{% set x = [0] * 999999 %}{{ x * 200 }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubled text": "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "added text": "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "much output": "{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}",
    "nested output": "{% set x = [['a' * 999999] * 9999] * 9999 %}{{ x }}",
    "nested JSON": "{{ ([['a' * 999999] * 9999] * 9999) | tojson }}",
    "a wide filter": "{{ 'a' | center(10 ** 10) }}",
    "many wide filters": "{{ range(9999) | map('center', 999999) | list | length }}",
    "a wide method": "{{ 'a'.ljust(10 ** 10) }}",
    "a wide format": "{{ '{:>9999999999}'.format(1) }}",
    "a repeated format": "{{ ('{0}' * 99999).format('a' * 99999) }}",
    "a wide format of a number": "{{ '%9999999999d' % 1 }}{{ '%9999999999d' | format(1) }}",
    "a width as an argument": "{{ '%*d' % (10 ** 10, 1) }}",
    "one text for each letter": "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
    "one text for each letter, by a filter": "{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}",
    "a joined text": "{{ (['a' * 999999] * 9999) | join }}",
    "bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "indented JSON": "{{ [[]] | tojson(indent=10 ** 10) }}",
    "no template": "{% for",
    "deep brackets": "{{ " + "(" * 50_000 + " }}",
    "an error of lines": "{{ raise_exception('a\\nb\\n' * 999) }}",
    "a long error": "{{ raise_exception('a' * 99999999) }}",
    "a long text that is folded": "{{ 'a' * 99999999 }}",
    "a width in a field": "{{ '{:>{w}}'.format('x', w='5000000000') | length }}",
    "dicts in dicts": (
        "{% set n = namespace(a=1) %}"
        "{% for i in range(99999) %}{% set n.a = {'p': n.a, 'q': dict.fromkeys(range(99999))} %}{% endfor %}"
    ),
    "copied dicts": (
        "{% set n = namespace(d=dict.fromkeys(range(99999)), a=[]) %}"
        "{% for i in range(99999) %}{% set n.a = [n.a, n.d.copy()] %}{% endfor %}"
    ),
    "batches": (
        "{% set n = namespace(a=[]) %}"
        "{% for i in range(99999) %}{% set n.a = [n.a, [1] | batch(999999, 'x') | list] %}{% endfor %}"
    ),
    "wrapped text in a loop": (
        "{% set x = 'ab ' * 99999 %}{% for i in range(99999) %}{{ x | wordwrap(1) | length }}{% endfor %}"
    ),
    "sums in a loop": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "a shared list that is written": NESTED + "{{ n.a }}",
    "two shared lists that are compared": NESTED + "{{ 'x' if n.a == n.b }}",
    "a shared list that is sought": NESTED + "{{ n.a in [n.b] }}",
    "a shared list as a string": NESTED + "{{ n.a | string | length }}",
    "a shared list in capitals": NESTED + "{{ n.a | upper | length }}",
    "a shared list as JSON": NESTED + "{{ n.a | tojson | length }}",
    "two shared lists that are sorted": NESTED + "{{ [n.a, n.b] | sort | length }}",
    "a shared list as an attribute": NESTED + "{{ {'a': n.a} | xmlattr | length }}",
    "a shared list that is printed": NESTED + "{{ n.a | pprint | length }}",
}


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker with less time and memory."""
    monkeypatch.setattr(chat_templates, "CPU_SECONDS", 0.4)
    monkeypatch.setattr(chat_templates, "MEMORY", 256 << 20)
    chat_templates._worker.stop()
    yield
    chat_templates._worker.stop()


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_end_in_one_line(what: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a conversation that the chat template accepts, got ") as error:
        print(len(render_chat(HOSTILE[what], CHATS[0])))
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 600
    assert render_chat("{{ messages[0].content }}", CHATS[1]) == "Be brief."


ENDS = ["two shared lists that are compared", "dicts in dicts", "a width in a field", "wrapped text in a loop"]
SCRIPT = """
import resource, sys, time
from pathlib import Path
from latticebpd.models import chat_templates
from latticebpd.models.chat_templates import render_chat

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

def render(template):
    try:
        return render_chat(template, [{"role": "user", "content": "Hi"}])
    except ValueError as error:
        return str(error)
"""


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that prints; in a group of its own, as of a terminal."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", SCRIPT + code, *arguments], stdout=subprocess.PIPE, text=True, process_group=0
    )


@pytest.mark.long
def test_hostile_templates_end_within_the_limits_and_leave_this_process_its_memory() -> None:
    code = """
render("{{ 1 }}")
before = peak()
for template in sys.argv[1:]:
    assert "more than 2 s of processor time or 512 MiB of memory" in render(template)
chat_templates._worker.stop()
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(peak() - before, children.ru_maxrss, children.ru_utime + children.ru_stime)
"""
    with script(code, *(HOSTILE[what] for what in ENDS)) as process:
        grown, largest, seconds = map(float, process.communicate()[0].split())
    assert grown < 4096  # KiB
    assert largest < 512 << 10
    assert seconds < 2.5 * len(ENDS)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.03)
    raise AssertionError("it does not come")


def test_ctrl_c_ends_a_hostile_rendering() -> None:
    code = """
render("{{ 1 }}")
print(chat_templates._worker.process.pid)
try:
    print(render(sys.argv[1]))
except KeyboardInterrupt:
    print(chat_templates._worker.process.poll(), render("{{ 1 + 1 }}"))
"""
    with script(code, HOSTILE["two shared lists that are compared"]) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        wait_for(lambda: busy(worker))
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate()[0] == "-9 2\n"
    assert ended(worker)


def busy(pid: int) -> bool:
    """Whether a process has used a fifth of a second."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) > 0.2 * os.sysconf("SC_CLK_TCK")


def test_ctrl_c_leaves_an_idle_worker_as_it_is() -> None:
    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    assert process is not None
    process.send_signal(signal.SIGINT)
    assert render_chat("{{ 2 }}", CHATS[0]) == "2"
    assert chat_templates._worker.process is process


@pytest.mark.usefixtures("in_a_hurry")
def test_a_rendering_leaves_the_next_one_its_memory() -> None:
    cycle = "{% set n = namespace() %}{% set n.n = n %}{% set n.text = messages[0].content * 20_000_000 %}"
    for _ in range(20):
        assert render_chat(cycle, [{"content": "a"}]) == ""


def test_a_text_has_a_limit() -> None:
    longest = MAX_TEXT - len(json.dumps([True, ""]))
    template = "{{ messages[0].content * n }}"
    assert len(render_chat(template, [{"content": "a"}], n=longest)) == longest
    with pytest.raises(ValueError, match="the template writes more than 64 MiB"):
        render_chat(template, [{"content": "a"}], n=longest + 1)


@pytest.mark.parametrize("template", ["{{ 1 }}", HOSTILE["two shared lists that are compared"]])
def test_the_worker_ends_with_its_parent(template: str) -> None:
    code = """
render("{{ 1 }}")
print(chat_templates._worker.process.pid)
render(sys.argv[1])
time.sleep(60)
"""
    with script(code, template) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    wait_for(lambda: ended(worker))


def test_threads_share_a_worker() -> None:
    def rendered(i: int) -> str:
        return render_chat(f"{{{{ messages[0].content }}}} {i % 20}", [{"content": f"{i}" * 9999}])

    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(rendered, range(400))) == [f"{i}" * 9999 + f" {i % 20}" for i in range(400)]
    assert chat_templates._worker.process is process


def test_a_forked_process_has_a_worker_of_its_own() -> None:
    """Also while a thread of the parent is rendering."""
    code = """
import os, threading
render("{{ 1 }}")
pid = chat_templates._worker.process.pid
thread = threading.Thread(target=lambda: print(render(sys.argv[1])))
thread.start()
while not chat_templates._worker._lock.locked():
    time.sleep(0.01)
child = os.fork()
if not child:
    own = [render("{{ 2 }}"), chat_templates._worker.process.pid != pid]
    chat_templates._worker.stop()
    os._exit(own != ["2", True])
print(os.waitpid(child, 0)[1])
thread.join()
print(render("{{ 3 }}"), chat_templates._worker.process.pid == pid)
"""
    slow = "{% for i in range(99999) %}{% set x = i %}{% endfor %}" * 20 + "{{ 0 }}"
    with script(code, slow) as process:
        printed = process.communicate()[0].splitlines()
    assert sorted(printed) == ["0", "0", "3 True"]


def test_a_killed_worker_is_started_again() -> None:
    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert render_chat("{{ 2 }}", CHATS[0]) == "2"
    assert chat_templates._worker.process is not process


def test_a_worker_that_is_killed_while_it_renders_is_an_error_of_one_line() -> None:
    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(ValueError, match="status -9"):
        render_chat("{{ 2 }}", CHATS[0])
    assert render_chat("{{ 3 }}", CHATS[0]) == "3"


@pytest.mark.parametrize("length", [1, 10**7])  # the socket holds less
def test_a_worker_that_does_not_answer_is_killed(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "SECONDS", 1.0)
    chat_templates._worker.stop()
    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(ValueError, match="status -9"):
        render_chat("{{ messages[0].content | length }}", [{"content": "a" * length}])
    monkeypatch.undo()
    assert render_chat("{{ 3 }}", CHATS[0]) == "3"


def test_the_worker_imports_little_opens_nothing_and_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTICEBPD_API_KEY", "secret")
    chat_templates._worker.stop()
    render_chat("{{ 1 }}", CHATS[0])
    process = chat_templates._worker.process
    assert process is not None
    assert b"secret" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) == 3
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (0, 0)
    assert resource.prlimit(process.pid, resource.RLIMIT_AS) == (512 << 20, 512 << 20)
    line: Any = process.args
    line = [each.replace("main(", "print(*sys.modules) or (") for each in line]
    modules = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert "template_worker" in modules
    assert not {"torch", "transformers", "numpy", "latticebpd", "fst", "subprocess"} & set(modules)


KNOWN_TEMPLATES = sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))


@pytest.mark.parametrize("path", KNOWN_TEMPLATES, ids=lambda path: path.stem)
def test_known_templates_are_rendered_without_a_worker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "_worker", None)
    template = path.read_text(encoding="utf-8")
    for chat in CHATS:
        for variables in VARIABLES:
            expected = reference(template, chat, **variables)
            if expected is not None:
                assert render_chat(template, chat, **variables) == expected
            else:
                with pytest.raises(ValueError, match="got UndefinedError: "):
                    render_chat(template, chat, **variables)


def test_all_known_templates_are_tested() -> None:
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in KNOWN_TEMPLATES} == KNOWN


@pytest.mark.parametrize("value", [{1, 2}, b"a", object()])
def test_templates_get_json_values_only(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON serializable; give the prompt as plain text"):
        render_chat("{{ x }}", CHATS[0], x=value)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_long_conversation_is_no_hostile_one(name: str) -> None:
    roles = ["user", "assistant"]
    chat = [{"role": roles[i % 2], "content": f"{i} word " * 3000} for i in range(101)]
    assert render_chat(TEMPLATES[name], chat, **TOKENS) == reference(TEMPLATES[name], chat, **TOKENS)


def test_a_rendering_leaves_the_next_one_its_characters() -> None:
    for _ in range(3):
        assert len(render_chat("{{ 'a' * 900000 }}" * 15, CHATS[0])) == 13_500_000


def test_a_conversation_without_messages_is_refused() -> None:
    with pytest.raises(ValueError, match="got TemplateError: it is empty"):
        render_chat(CHATML, [])


def test_a_tokenizer_of_transformers_renders_the_same() -> None:
    """By its public method: nulls left out, special tokens as variables."""
    tokenizer: PreTrainedTokenizerFast = letters()
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    for template in TEMPLATES.values():
        chat = CHATS[2]
        expected = tokenizer.apply_chat_template(chat, tokenize=False, chat_template=template)
        assert render_chat(template, chat, **tokenizer.special_tokens_map) == expected
