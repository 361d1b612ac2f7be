"""Where the APIs find the engine: they are up before it is, and say so until then."""

from collections.abc import Mapping

from common.errors import Unavailable
from coordinator.engine.engine import Engine


class EngineGate:
    """Shut until the engine stands; opened once."""

    def __init__(self) -> None:
        """Begin shut."""
        self._engine: Engine | None = None

    def open(self, engine: Engine) -> None:
        """Let requests through to the engine."""
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine; raises Unavailable while the service starts."""
        if self._engine is None:
            raise Unavailable("the service is starting, its workers are not ready yet")
        return self._engine

    @property
    def num_ended(self) -> Mapping[str, int]:
        """Requests that have ended so far, by finish reason."""
        return {} if self._engine is None else self._engine.num_ended

    @property
    def is_serving(self) -> bool:
        """Whether there is an engine and it accepts requests."""
        return self._engine is not None and self._engine.is_serving
