"""The checks in conftest.py fail the tests that leave something behind."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKS = {
    "tasks": "async def test():\n    global task\n"
    "    task = asyncio.create_task(asyncio.Event().wait(), name='lost')",
    "threads": "def test():\n    threading.Thread(target=ended.wait, name='lost').start()",
    "contexts": "def test():\n    global context\n    context = zmq.Context()",
    "processes": "def test():\n    global process\n    process = subprocess.Popen(['sleep', '60'])",
}


@pytest.fixture
def leaky(pytester: pytest.Pytester) -> pytest.Pytester:
    """A place for a test that leaks, under the conftest of this suite with short patience."""
    pytester.makeconftest(CONFTEST.read_text().replace("GRACE_S = 3.0", "GRACE_S = 0.05"))
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    return pytester


@pytest.mark.parametrize("kind", LEAKS)
def test_leak_is_found(leaky: pytest.Pytester, kind: str):
    """A test that leaves tasks, threads, ZMQ contexts or processes fails, and the error says so."""
    source = (
        "import asyncio, subprocess, threading, zmq\nended = threading.Event()\ncontext = process = None\n"
        + LEAKS[kind]
    )
    leaky.makepyfile(
        source
        + "\n\ndef test_end():\n    ended.set()\n    context and context.destroy()\n    process and process.wait()\n"
    )
    result = leaky.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines([f"*the test left*{kind}*"])


def test_settings_of_the_caller_are_hidden(leaky: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """A test does not see the STEPWIRE_ variables of whoever runs it."""
    monkeypatch.setenv("STEPWIRE_MODEL", "mine")
    leaky.makepyfile(
        "from common.config_loader import environment\n"
        "def test():\n    assert 'STEPWIRE_MODEL' not in environment()"
    )
    leaky.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
