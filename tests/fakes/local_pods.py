"""Containers of Kubernetes manifests as processes of this machine, and their probes.

A pod gets a loopback address of its own, so that the ports of the manifests are used as they stand
there. Commands, variables and mounted files are those of the manifest; only addresses and folders
are put in the place of what a cluster would give. Pods know nothing of images.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.config_loader import environment
from coordinator.probe import Probe, ProbeExit, check_health
from tests.fakes.kustomization import Object, one

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def loopback_address(index: int) -> str:
    """An address that no other process of this machine is given here; 127.0.0.0/8 is all loopback."""
    value = (os.getpid() << 3) + index
    return f"127.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster gives to pods: names to addresses, mount paths to folders, and variables."""

    objects: list[Object]
    address_by_host: Mapping[str, str]
    folder_by_mount: Mapping[str, Path]
    variables: Mapping[str, str]


class LocalPod:
    """The main container of a pod, running; its log goes to a file."""

    def __init__(self, name: str, pod: Object, *, address: str, cluster: Cluster) -> None:
        (self.container,) = pod["containers"]
        self.address = address
        self._name, self._cluster = name, cluster
        self._files = tempfile.TemporaryDirectory()
        self._folder_by_mount = dict(cluster.folder_by_mount)
        self._mount_config_maps(pod)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            self._command(),
            cwd=ROOT,
            env=self._variables(),
            stdout=self._log,
            stderr=subprocess.STDOUT,
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

    def log(self) -> str:
        """What the process has written so far."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """Kill the process if it still runs, and free what it leaves."""
        self.process.kill()
        self.process.wait(20)
        self._log.close()
        self._files.cleanup()

    def _mount_config_maps(self, pod: Object) -> None:
        """Write the files of each mounted ConfigMap, as this pod would see them."""
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if "configMap" not in volume:
                continue
            name = volume["configMap"]["name"]
            folder = self._folder_by_mount[mount["mountPath"]] = Path(self._files.name) / name
            folder.mkdir()
            for file, text in one(self._cluster.objects, "ConfigMap", name)["data"].items():
                (folder / file).write_text(self._localized(text))

    def _localized(self, text: str) -> str:
        """The text with addresses and folders of this machine."""
        folders = {mount: str(folder) for mount, folder in self._folder_by_mount.items()}
        places = {**folders, **self._cluster.address_by_host, "0.0.0.0": self.address}
        found = "|".join(re.escape(place) for place in places)
        return re.sub(rf"(?<![\w/])({found})\b", lambda match: places[match[0]], text)

    def _variables(self) -> dict[str, str]:
        own = {entry["name"]: self._value(entry) for entry in self.container["env"]}
        return {"PATH": environment()["PATH"], **own, **self._cluster.variables}

    def _value(self, entry: Object) -> str:
        match entry:
            case {"value": value}:
                return self._localized(value)
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                return self._name
            case {"valueFrom": {"resourceFieldRef": {"resource": resource}}}:
                kind, name = resource.split(".")
                return str(self.container["resources"][kind][name])
        raise ValueError(f"where {entry} comes from is not known here")

    def _command(self) -> list[str]:
        values = {entry["name"]: self._value(entry) for entry in self.container["env"]}
        program, *arguments = self.container["command"]
        expanded = [
            re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], argument)
            for argument in arguments
        ]
        return [str(BIN / program), *(self._localized(argument) for argument in expanded)]
