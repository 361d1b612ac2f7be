"""The Grafana dashboard that is shipped, as a test reads it."""

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "stepwire.json"
METRIC = re.compile(r"\b(?:vllm:|stepwire_|process_)\w+")
RATE_INTERVAL = "$__rate_interval"


def read_dashboard() -> dict[str, Any]:
    """The whole of it."""
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions() -> list[str]:
    """What its panels ask Prometheus, with Grafana's variables filled in."""
    return [
        target["expr"].replace(RATE_INTERVAL, "1m").replace("$model", "tiny")
        for panel in read_dashboard()["panels"]
        for target in panel.get("targets", ())
    ]
