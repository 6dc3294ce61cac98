"""Chat templates do what their authors wrote, and nothing else: no escape, no endless loop, no flood."""

from __future__ import annotations

import pytest

from underload.decoder.chat import ChatTemplate
from underload.decoder.weights import CheckpointError
from underload.request import InvalidRequest

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 < 3 & 'x'?"},
    {"role": "assistant", "content": "True."},
    {"role": "user", "content": "  Über {{ 7 }} \n"},
]

# In the manner of templates in use: ChatML, Llama 2 and Llama 3, with what they use of the language.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
    {%- set system, loop_messages = messages[0]['content'], messages[1:] %}
{%- else %}
    {%- set system, loop_messages = none, messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' ~ ('<<SYS>>\\n' ~ system ~ '\\n<</SYS>>\\n\\n' if loop.first and system is not none else '') }}
        {{- message['content'] | trim }} [/INST]
    {%- else %}
        {{- ' ' + message['content'].strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
LLAMA_3 = """{{- bos_token }}
{%- macro header(role) %}<|start_header_id|>{{ role }}<|end_header_id|>{% endmacro %}
{%- set ns = namespace(seen=0) %}
{%- for message in messages if message.role in ['system', 'user', 'assistant'] %}
    {%- set ns.seen = ns.seen + 1 %}
    {{- header(message.role) + '\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}
    {{- header('assistant') + '\\n\\n' }}
{%- endif %}
{#- a remark -#}
{{- '%s of %d' % (ns.seen, messages | length) }}{{ messages | map(attribute='role') | join(',') }}
{%- for key, value in messages[0] | dictsort %}{{ key }}={{ value }};{% endfor %}
{%- for m in messages | selectattr('role', 'equalto', 'user') %}
    {{- loop.index }}/{{ loop.length }}{% if loop.last %}.{% else %},{% endif %}
{%- endfor %}
{%- generation %}{{ messages[-1].content | upper }}{% endgeneration %}
{%- for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}
"""


@pytest.mark.parametrize("source", [CHATML, LLAMA_2, LLAMA_3], ids=["chatml", "llama-2", "llama-3"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompts_are_those_of_transformers(source, add_generation_prompt):
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    reference, _ = render_jinja_template(
        [MESSAGES],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    ours = ChatTemplate(source).render(
        MESSAGES, add_generation_prompt=add_generation_prompt, bos_token="<s>", eos_token="</s>"
    )
    assert [ours] == reference
    assert "2 < 3 & 'x'" in ours  # a prompt is not HTML
    assert "{{ 7 }}" in ours.replace("Ü", "Ü")  # a message is text, not a template


def test_variables_and_the_clock_reach_the_template():
    template = ChatTemplate("{{ strftime_now('%Y') | int > 2000 }} {{ enable_thinking }} {{ missing is defined }}")
    assert template.render(MESSAGES, enable_thinking=False) == "True False False"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hello", "must be a list"),
        ({"role": "user", "content": "x"}, "must be a list"),
        (["hello"], "message 0 must be a dict"),
        ([{"role": "user"}], "message 0 needs a text under 'content'"),
        (
            [{"role": "user", "content": "x"}, {"role": "user", "content": None}],
            "message 1 needs a text under 'content'",
        ),
        ([{"role": 1, "content": "x"}], "needs a text under 'role'"),
        ([{"role": "", "content": "x"}], "empty role"),
    ],
)
def test_malformed_messages_are_refused(messages, message):
    with pytest.raises(InvalidRequest, match=message):
        ChatTemplate(CHATML).render(messages)


def test_a_template_may_refuse_messages():
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        ChatTemplate(LLAMA_2).render([MESSAGES[1], MESSAGES[1]])


def test_a_template_cannot_change_the_messages():
    messages = [{"role": "user", "content": "x", "extra": [1]}]
    for source in (
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='y') }}",
        "{{ messages[0].extra.append(2) }}",
    ):
        with pytest.raises(CheckpointError, match="outside its sandbox"):
            ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "x", "extra": [1]}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ messages[0].items.__self__ }}",
        "{% include 'other' %}",
        "{% import 'os' as os %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(CheckpointError):
        ChatTemplate(source).render(MESSAGES)


DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}STEP{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if b is odd %}x{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% for a in range(99999) %}{{ range(99999) | join }}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'.ljust(width=1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 2.5 | round(1000000000) }}",
        "{% set a = 'x' * 1000000 %}{{ a.replace('x', a) }}",
        "{% set a = 'x' * 1000000 %}{{ a | replace('x', a) }}",
        "{% set a = 'x' * 1000000 %}{{ a.join(a | list) }}",
        "{% set a = 'x' * 1000000 %}{{ range(1000) | join(a) }}",
        DOUBLING.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
        DOUBLING.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
        DOUBLING.replace("STEP", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        DOUBLING.replace("STEP", "{% set ns.x = [ns.x, ns.x] %}"),
        DOUBLING.replace("STEP", "{% set ns.x = (ns.x, ns.x) %}"),
        DOUBLING.replace("STEP", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
        DOUBLING.replace("STEP", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
        DOUBLING.replace("STEP", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        DOUBLING.replace("STEP", "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
        DOUBLING.replace("STEP", "{% set ns.x = [ns.x, ns.x] | join %}"),
        "{% for a in range(9999) %}{% set b %}" + "long" * 20_000 + "{% endset %}{% endfor %}",
    ],
)
def test_a_template_that_loops_or_floods_is_stopped(source):
    with pytest.raises(
        CheckpointError, match=r"chat template (was stopped|failed: RecursionError|failed: OverflowError)"
    ):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% unknown %}", "{{ 1 | no_such_filter }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"]
)
def test_a_template_that_is_none_is_refused(source):
    with pytest.raises(CheckpointError, match="does not compile"):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_that_fails_says_why():
    with pytest.raises(CheckpointError, match="UndefinedError: 'x' is undefined"):
        ChatTemplate("{{ x.y.z }}").render(MESSAGES)
    with pytest.raises(CheckpointError, match="200001 characters"):
        ChatTemplate("x" * 200_001)


def test_a_long_conversation_is_within_the_budget():
    conversation = [{"role": ("user", "assistant")[i % 2], "content": "some words " * 100} for i in range(2000)]
    assert len(ChatTemplate(CHATML).render(conversation)) > 2_000_000
