"""Where the APIs find the engine: they are up before it is, and say so until then."""

from pathlib import Path

from common.errors import Unavailable
from coordinator.engine.engine import Engine


class EngineGate:
    """Shut until the engine stands; opened once."""

    def __init__(self) -> None:
        """Begin shut."""
        self._engine: Engine | None = None
        self._model_folder: Path | None = None

    def open(self, engine: Engine, *, model_folder: Path | None = None) -> None:
        """Let requests through to the engine; model_folder holds the files of its model."""
        self._engine = engine
        self._model_folder = model_folder

    @property
    def engine(self) -> Engine:
        """The engine; raises Unavailable while the service starts."""
        if self._engine is None:
            raise Unavailable("the service is starting, its workers are not ready yet")
        return self._engine

    @property
    def model_folder(self) -> Path:
        """Where the served model's files are; raises Unavailable while the service starts."""
        if self._model_folder is None:
            raise Unavailable("the service is starting, its model is not read yet")
        return self._model_folder

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of a request; None while the service starts."""
        return None if self._engine is None else self._engine.models()[0].max_model_len

    @property
    def is_serving(self) -> bool:
        """Whether there is an engine and it accepts requests."""
        return self._engine is not None and self._engine.is_serving
