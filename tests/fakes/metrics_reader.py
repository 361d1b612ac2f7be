"""What a test reads where Prometheus would."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one answer."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels; there must be one."""
        return sum(self.by_labels(name, **labels).values())

    def by_labels(self, name: str, **labels: str) -> Mapping[tuple[tuple[str, str], ...], float]:
        """The samples of a name that have these labels, by all of theirs."""
        found = {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }
        assert found, f"no sample of {name} with {labels}"
        return found


def scrape(url: str) -> Scrape:
    """Ask once."""
    response = httpx.get(url, timeout=30)
    assert response.status_code == 200, response.text
    return Scrape(response.text)
