from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import treetrain

SHIPPED = Path(treetrain.__file__).parent / "demo" / "tokenizer"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Thinking stands inside the content and is cut out of all messages but those after the last
# question, where an empty thought is written too.
STRIPPING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] "
    "if '</think>' in m.content else '' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ thought.strip('\\n') }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if no_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

# The generation prompt opens a thought that no rendered message has.
OPENED_THOUGHT = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
)

# The last turn ends otherwise than those before it.
LAST_DIFFERS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
    "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)

# A tool may only answer a call, and content is trimmed.
STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('a tool answers a call') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Nothing ends a turn but the next one.
NO_CLOSING = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The shipped tokenizer; its template strips thinking from all but the last message."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(scope="session")
def templates() -> SimpleNamespace:
    """Small chat templates, each with one habit of a real one."""
    return SimpleNamespace(
        chatml=CHATML,
        stripping=STRIPPING,
        opened_thought=OPENED_THOUGHT,
        last_differs=LAST_DIFFERS,
        strict=STRICT,
        no_closing=NO_CLOSING,
    )
