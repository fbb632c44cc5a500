"""Messages: what is allowed, and how a chat template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from edge_tr.chat.history import check_messages
from edge_tr.chat.template import ChatTemplate
from edge_tr.errors import ConfigError
from edge_tr.models.tiny_vocab import CHAT_TEMPLATE

USER = {"role": "user", "content": "Hello"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
KNOWS_TOOLS = "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}" + CHAT_TEMPLATE


def render(template: str, messages: list[Any], tools: tuple[Any, ...] = ()) -> str:
    return ChatTemplate(template).render(messages, tools)


def test_a_conversation_in_the_template() -> None:
    text = render(CHAT_TEMPLATE, [{"role": "developer", "content": "Be brief."}, USER])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert check_messages([{"role": "user", "content": parts}])[0]["content"] == "one\ntwo"


def test_a_template_that_knows_tools_gets_them() -> None:
    text = render(KNOWS_TOOLS, [USER], (TOOL,))
    assert text.startswith("[add]<|im_start|>user")


def test_a_template_that_knows_no_tools_gets_instructions() -> None:
    text = render(CHAT_TEMPLATE, [USER], (TOOL,))
    assert text.startswith("<|im_start|>system\nYou may call these functions:\n")
    assert '"name": "add"' in text


def test_instructions_come_after_those_of_the_user() -> None:
    text = render(CHAT_TEMPLATE, [{"role": "system", "content": "Be brief."}, USER], (TOOL,))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call these functions:\n")


def test_calls_and_results_as_plain_text() -> None:
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    text = render(CHAT_TEMPLATE, turns)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>" in text


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages is empty"),
        (["Hello"], "a message must be an object"),
        ([{"content": "Hello"}], "role None is not allowed"),
        ([{"role": "robot", "content": ""}], "role 'robot' is not allowed"),
        ([{"role": "user", "content": 3}], "must be text, not 3"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "type 'image_url'"),
        ([{"role": "user", "content": ["Hello"]}], "type None"),
        ([USER | {"tool_calls": [{"id": "1"}]}], "a function with a name"),
    ],
)
def test_messages_that_are_not_allowed(messages: list[Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_messages(messages)


def test_a_template_that_refuses() -> None:
    template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ConfigError, match="refuses the messages: no system here"):
        render(template, [USER])


def test_a_template_that_stumbles() -> None:
    with pytest.raises(ConfigError, match="refuses the messages"):
        render("{{ messages[0].content.name.first }}", [USER])


def test_what_is_no_template() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate("{% for message in %}")
