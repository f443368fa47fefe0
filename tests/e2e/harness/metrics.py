"""The metrics page, as numbers."""

import re
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<name>[a-z_0-9]+)(?:\{(?P<labels>.*)\})? (?P<value>[0-9.]+)$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


class Metrics:
    """All samples of one scrape."""

    def __init__(self, page: str) -> None:
        self.samples: list[Sample] = []
        for line in page.splitlines():
            if not line or line.startswith("#"):
                continue
            match = _LINE.match(line)
            assert match, f"not a Prometheus sample: {line!r}"
            labels = dict(_LABEL.findall(match["labels"] or ""))
            self.samples.append(Sample(match["name"], labels, float(match["value"])))

    def has(self, name: str) -> bool:
        """Whether the process has a metric of this name."""
        return any(sample.name == f"expressway_{name}" for sample in self.samples)

    def sum(self, name: str, **labels: str) -> int:
        """The sum of a metric over all label sets that contain `labels`. One that is absent is an error."""
        family = [sample for sample in self.samples if sample.name == f"expressway_{name}"]
        assert family, f"no metric expressway_{name}; there are {sorted({s.name for s in self.samples})}"
        matching = [s.value for s in family if labels.items() <= s.labels.items()]
        return int(sum(matching))

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample that has `labels`."""
        (found,) = (s.value for s in self.samples if s.name == f"expressway_{name}" and labels.items() <= s.labels.items())
        return found

    def drops(self) -> dict[str, int]:
        """What was dropped or refused anywhere, by metric and labels; only what is not zero."""
        found: dict[str, int] = {}
        for sample in self.samples:
            if sample.value and ("drop" in sample.name or "refused" in sample.name):
                pairs = sorted(pair for pair in sample.labels.items() if pair[0] != "worker")
                labels = ",".join(f"{label}={value}" for label, value in pairs)
                key = f"{sample.name}{{{labels}}}" if labels else sample.name
                found[key] = found.get(key, 0) + int(sample.value)
        return found
