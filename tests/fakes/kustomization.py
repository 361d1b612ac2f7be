"""The part of kustomize that deploy/kubernetes uses, since kustomize itself is not on PyPI.

Builds a folder into its objects: `resources`, `patches` by strategic merge, `images`, `replicas`,
`namespace`, and `configMapGenerator`, whose name gets no hash here. What it does not know it refuses,
so that nothing is left out in silence.
"""

from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

NEWEST = "1.37"
"""The last version of Kubernetes whose schemas manifests are held to."""

KNOWN_KEYS = {
    *("apiVersion", "kind", "namespace", "resources"),
    *("patches", "images", "replicas", "configMapGenerator"),
}
KEY_BY_LIST = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name"}
"""Lists whose entries a patch changes one by one, and what names an entry."""

REPLACED_LISTS = {"tolerations", "command", "args"}


def build(folder: Path) -> list[Object]:
    """The objects that `kubectl apply -k FOLDER` would apply."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - KNOWN_KEYS:
        raise ValueError(f"this is more of kustomize than is known here: {unknown}")
    objects = [
        each for name in kustomization.get("resources", ()) for each in _resource(folder / name)
    ]
    for entry in kustomization.get("configMapGenerator", ()):
        _generate(_config_map(entry, folder), objects, behavior=entry.get("behavior", "create"))
    for entry in kustomization.get("patches", ()):
        patch = yaml.safe_load((folder / entry["path"]).read_text())
        (target,) = [each for each in objects if _identity(each) == _identity(patch)]
        target.update(_merged(target, patch))
    for image in kustomization.get("images", ()):
        for container in containers(objects):
            if container["image"].partition(":")[0] == image["name"]:
                container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    for entry in kustomization.get("replicas", ()):
        one(objects, "StatefulSet", entry["name"])["spec"]["replicas"] = entry["count"]
    for each in objects:
        if "namespace" in kustomization:
            each["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def containers(objects: list[Object]) -> list[Object]:
    """Every container of every pod template, those that run first included."""
    return [
        container
        for pod in pods(objects).values()
        for container in (*pod.get("initContainers", ()), *pod["containers"])
    ]


def pods(objects: list[Object]) -> dict[str, Object]:
    """The pod specification of each workload, by the workload's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects
        if "template" in each.get("spec", {})
    }


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of a kind and name."""
    (found,) = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def _resource(path: Path) -> list[Object]:
    if path.is_dir():
        return build(path)
    return list(yaml.safe_load_all(path.read_text()))


def _config_map(entry: Object, folder: Path) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": entry["name"]},
        "data": {name: (folder / name).read_text() for name in entry["files"]},
    }


def _generate(config_map: Object, objects: list[Object], *, behavior: str) -> None:
    """Add a map, or put its data in the place of what one of the same name holds."""
    if behavior == "create":
        objects.append(config_map)
        return
    if behavior != "replace":
        raise ValueError(f"the behavior {behavior!r} is not known here")
    one(objects, "ConfigMap", config_map["metadata"]["name"])["data"] = config_map["data"]


def _identity(each: Object) -> tuple[str, str, str]:
    return each["apiVersion"], each["kind"], each["metadata"]["name"]


def _merged(old: Object, patch: Object) -> Object:
    result = dict(old)
    for key, value in patch.items():
        if isinstance(value, dict) and key in old:
            result[key] = _merged(old[key], value)
        elif isinstance(value, list) and key in KEY_BY_LIST:
            result[key] = _merged_list(old.get(key, []), value, key=KEY_BY_LIST[key])
        elif isinstance(value, list) and key not in REPLACED_LISTS:
            raise ValueError(f"how to merge the list {key!r} is not known here")
        else:
            result[key] = value
    return result


def _merged_list(old: list[Object], patches: list[Object], *, key: str) -> list[Object]:
    """Entries of the same name merged, new ones behind them."""
    by_name = {entry[key]: entry for entry in old}
    for patch in patches:
        by_name[patch[key]] = _merged(by_name.get(patch[key], {}), patch)
    return list(by_name.values())
