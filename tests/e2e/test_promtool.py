"""What Prometheus's own tool says of our metrics: of Debian's package prometheus."""

import json
import subprocess

import pytest

from tests.fakes.dashboard import expressions
from tests.fakes.full_exposition import coordinator_exposition, worker_exposition

pytestmark = pytest.mark.external

VLLM_COMPLAINTS = (
    "metric names should not contain ':'",
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
)
"""What the tool says of vLLM's names, which are kept as they are for its dashboards."""


def complaints(text: str) -> list[str]:
    """What `promtool check metrics` complains of; an error of its own is none of them."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert checked.returncode in (0, 3), checked.stderr
    lines = (checked.stdout + checked.stderr).splitlines()
    assert bool(lines) == (checked.returncode == 3)
    return lines


def test_a_wrong_name_is_complained_of():
    """The tool looks at names, so that its silence means something."""
    assert complaints("# HELP x_total X.\n# TYPE x_total gauge\nx_total 1\n")


@pytest.mark.parametrize("read", [coordinator_exposition, worker_exposition])
def test_our_metrics_are_clean(read):
    """Nothing is to be said of names, types and help texts that are ours, or the process's."""
    ours = [line for line in read().splitlines(keepends=True) if "vllm:" not in line]
    assert any("stepwire_" in line for line in ours)
    assert complaints("".join(ours)) == []


def test_the_names_of_vllm_are_complained_of_for_two_reasons_alone():
    """Their colon, and one histogram that is called a total."""
    found = complaints(coordinator_exposition())
    assert [line for line in found if not line.endswith(VLLM_COMPLAINTS)] == []
    assert {line.split()[0].partition(":")[0] for line in found} == {"vllm"}


def test_the_dashboard_asks_what_prometheus_understands(tmp_path):
    """Every expression of a panel can be parsed."""
    rules = [{"record": f"panel:{index}", "expr": expr} for index, expr in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
