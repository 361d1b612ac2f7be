"""The commands of grpcurl in a document, compared with the contract: grpcurl itself is on no index of ours."""

import re
import shlex

from google.protobuf import descriptor_pool, json_format, message_factory
from stepwire.v1 import cluster_pb2, inference_pb2

CONTRACTS = (cluster_pb2, inference_pb2)
METHOD = re.compile(r"(?P<service>[\w.]+)/(?P<method>\w+)")


def check_grpcurl(script: str) -> None:
    """Raise for a call of a method that nobody serves, or with a body that is not its request."""
    assert CONTRACTS, "importing them makes their services known"
    pool = descriptor_pool.Default()
    for line in script.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        match = METHOD.fullmatch(arguments[-1]) if program == "grpcurl" else None
        if match is None:
            continue
        method = pool.FindServiceByName(match["service"]).FindMethodByName(match["method"])
        body = arguments[arguments.index("-d") + 1] if "-d" in arguments else "{}"
        json_format.Parse(body, message_factory.GetMessageClass(method.input_type)())
