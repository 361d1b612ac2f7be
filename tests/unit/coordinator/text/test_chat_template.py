"""Chat templates behave as their authors tested them."""

from datetime import datetime

import pytest

from common.errors import InvalidRequest, ModelError
from coordinator.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "<hello> & \u00e9"}]


def test_blocks_leave_no_blank_lines():
    """Newlines after and spaces before a block vanish, as templates expect."""
    source = "{% for message in messages %}\n  {% if true %}\n{{ message['role'] }}\n{% endif %}\n{% endfor %}"
    assert ChatTemplate(source).render(HELLO) == "user\n"


def test_the_answer_is_opened():
    """The template is asked to open the assistant's turn and knows the special tokens."""
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}A:{% endif %}"
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert template.render(HELLO) == "<s><hello> & \u00e9</s>A:"


def test_json_is_not_escaped_for_html():
    """The tojson filter writes characters as they are."""
    assert ChatTemplate("{{ messages[0].content | tojson }}").render(HELLO) == '"<hello> & \u00e9"'


def test_the_date_comes_from_the_clock_given():
    """strftime_now formats the injected time."""
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3))
    assert template.render(HELLO) == "03 Feb 2026"


def test_generation_marks_are_transparent():
    """Marks for training leave their content in place."""
    source = "{% generation %}{{ messages[0].role }}{% endgeneration %}!"
    assert ChatTemplate(source).render(HELLO) == "user!"


def test_a_refusal_reaches_the_client_in_the_templates_words():
    """raise_exception becomes an InvalidRequest about `messages`."""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(HELLO)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 + 'a' }}"]
)
def test_a_template_cannot_leave_its_sandbox(source: str):
    """Reaching for Python's insides or changing the messages is refused, as is nonsense."""
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(HELLO)


def test_broken_jinja_is_an_error_of_the_model():
    """A template that does not compile is reported when it is loaded."""
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate("{% if %}")
