"""The Grafana dashboard asks only for metrics and labels that exist."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.dashboard import METRIC, expressions, read_dashboard
from tests.fakes.full_exposition import coordinator_exposition, worker_exposition

ADDED_BY_PROMETHEUS = {"job", "instance"}


def told_labels() -> dict[str, set[str]]:
    """The labels of every sample that coordinators and workers tell, by its name."""
    labels: dict[str, set[str]] = {}
    for text in (coordinator_exposition(), worker_exposition()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_metric_of_a_panel_exists():
    """A name that was changed or misspelt shows as an empty panel and no error."""
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(asked) > 30
    assert sorted(asked - told_labels().keys()) == []
    (model,) = (v for v in read_dashboard()["templating"]["list"] if v["name"] == "model")
    assert set(METRIC.findall(model["query"])) <= told_labels().keys()


def test_every_label_of_a_panel_exists():
    """Selected by, grouped by or shown: each metric of the expression has it."""
    told = told_labels()
    for panel in read_dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            grouped = [
                name
                for group in re.findall(r"by \(([\w, ]+)\)", text)
                for name in group.split(", ")
            ]
            selected = re.findall(r"(\w+)=~?\"", text)
            for name in METRIC.findall(text):
                missing = {*shown, *grouped, *selected} - told[name] - ADDED_BY_PROMETHEUS
                assert not missing, f"{panel['title']}: {name} has no label {missing}"


def test_panels_say_what_they_show_and_do_not_overlap():
    """Each has a description and a place of its own on the grid."""
    taken: set[tuple[int, int]] = set()
    for panel in read_dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
