# The coordinator and the command line: no torch. Built from the root of the checkout:
#   docker build -f docker/coordinator.Dockerfile -t stepwire-coordinator .
FROM docker.io/library/python:3.11-slim-bookworm AS build
RUN python -m pip install --no-cache-dir --root-user-action=ignore 'uv>=0.13'
RUN uv venv --python python /opt/stepwire
ENV VIRTUAL_ENV=/opt/stepwire UV_NO_CACHE=1 UV_LINK_MODE=copy UV_SYSTEM_CERTS=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
# Dependencies first: they change less often than the code.
RUN uv pip install --compile-bytecode -r pyproject.toml
COPY common common
COPY coordinator coordinator
COPY proto/gen proto/gen
# Without the sources of a worker's kernels and without a compiler, setuptools leaves them out.
RUN uv pip install --compile-bytecode --no-deps .

FROM docker.io/library/python:3.11-slim-bookworm
# A fixed number, so that clusters can check that it is not root; it owns the folder of models, whose
# volume must be writable for the import and is only read otherwise.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent stepwire \
 && install -d -o stepwire -g stepwire /models
COPY --from=build /opt/stepwire /opt/stepwire
ENV PATH=/opt/stepwire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STEPWIRE_CACHE=/models \
    HF_HOME=/models/huggingface
USER 10001:10001
# 50050 gRPC, 8000 HTTP
EXPOSE 50050 8000
ENTRYPOINT ["stepwire"]
CMD ["coordinator", "--help"]
