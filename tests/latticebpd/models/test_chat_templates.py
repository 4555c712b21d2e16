"""Chat templates: the text that `transformers` renders, from the forms of published models; hostile ones end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from latticebpd.models.chat_templates import render_chat
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


@pytest.mark.parametrize("template", SMALL)
@pytest.mark.parametrize("chat", [2, 5, 6])
def test_parts_of_the_language_mean_what_they_mean_in_transformers(template: str, chat: int) -> None:
    expected = reference(template, CHATS[chat])
    assert expected is not None
    assert render_chat(template, CHATS[chat]) == expected


def test_the_date_is_todays() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", CHATS[0]) in (str(datetime.now().year), str(datetime.now().year - 1))


HOSTILE = {
    "a vast range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "ranges in ranges": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"
        "{% endfor %}"
    ),
    "a filter over ranges": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a class": "{{ ''.__class__ }}",
    "a class by name": "{{ '' | attr('__class__') }}{{ ''['__class__'].__mro__ }}",
    "a format of attributes": "{{ '{0.__class__}'.format(1) }}",
    "a frame": "{{ raise_exception.__globals__ }}",
    "globals of a global": "{{ dict.__call__.__globals__ }}",
    "a namespace's attribute": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "a namespace's name": "{{ namespace(__class__=1) }}",
    "a changed message": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a long text": "{{ 'a' * 10 ** 6 * 10 ** 6 }}",
    "a long list": "{% set x = [0] * 999999 %}{{ x * 2 }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
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
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_end_in_one_line(what: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a conversation that the chat template accepts, got ") as error:
        print(render_chat(HOSTILE[what], CHATS[0]))
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 600


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
