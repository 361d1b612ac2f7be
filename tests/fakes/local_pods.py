"""The main container of a pod as a process of this machine, and its probes.

Command, variables and mounted settings are those of the manifest; what a cluster would give, such as
the name of the pod and the addresses of others, is told by the test.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.probe import Probe, ProbeExit, check_health
from tests.fakes.kustomization import Object, one
from tests.fakes.local_container import EVERY_INTERFACE, LocalContainer, localized


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster gives to pods: other pods' addresses, folders to mount, and further variables."""

    objects: list[Object]
    address_by_host: Mapping[str, str]
    folder_by_mount: Mapping[str, Path]
    variables: Mapping[str, str]


class LocalPod(LocalContainer):
    """A pod that runs; killed at the latest by `kill`."""

    def __init__(self, name: str, pod: Object, *, address: str, cluster: Cluster) -> None:
        (self.container,) = pod["containers"]
        self._files = TemporaryDirectory()
        places = {mount: str(folder) for mount, folder in cluster.folder_by_mount.items()}
        places |= cluster.address_by_host
        settings = {**places, EVERY_INTERFACE: address}
        places |= _mount_config_maps(pod, cluster.objects, settings, Path(self._files.name))
        values = {entry["name"]: self._value(entry, name) for entry in self.container["env"]}
        own = {variable: localized(value, places) for variable, value in values.items()}
        super().__init__(
            [
                re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], argument)
                for argument in self.container["command"]
            ],
            address=address,
            places=places,
            variables={**own, **cluster.variables},
        )

    def probe(self, kind: str) -> ProbeExit:
        """Run startupProbe, livenessProbe or readinessProbe once, as the kubelet does."""
        probe = self.container[kind]
        exit_code, _ = check_health(
            Probe(
                address=f"{self.address}:{probe['grpc']['port']}",
                service=probe["grpc"].get("service", ""),
                connect_timeout=float(probe.get("timeoutSeconds", 1)),
                rpc_timeout=float(probe.get("timeoutSeconds", 1)),
            )
        )
        return exit_code

    def kill(self) -> None:
        """Kill the process if it still runs, and free what it leaves."""
        super().kill()
        self._files.cleanup()

    def _value(self, entry: Object, name: str) -> str:
        match entry:
            case {"value": value}:
                return value
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                return name
            case {"valueFrom": {"resourceFieldRef": {"resource": resource}}}:
                kind, resource_name = resource.split(".")
                return str(self.container["resources"][kind][resource_name])
        raise ValueError(f"where {entry} comes from is not known here")


def _mount_config_maps(
    pod: Object, objects: list[Object], places: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """Write the files of each mounted ConfigMap, as this pod sees them; folders by mount path."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted: dict[str, str] = {}
    (container,) = pod["containers"]
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        if "configMap" not in volume:
            continue
        name = volume["configMap"]["name"]
        own = folder / name
        own.mkdir()
        mounted[mount["mountPath"]] = str(own)
        for file, text in one(objects, "ConfigMap", name)["data"].items():
            (own / file).write_text(localized(text, places))
    return mounted
