# A worker, the import of models, and the whole command line. Built from the root of the checkout:
#   docker build -f docker/worker.Dockerfile -t stepwire-worker .
#   docker build -f docker/worker.Dockerfile -t stepwire-worker-cuda --build-arg TORCH_BACKEND=cu130 .
FROM docker.io/library/python:3.11-slim-bookworm AS build
# A compiler and Python's headers, for the CPU kernels.
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends g++ python3-dev \
 && rm -rf /var/lib/apt/lists/*
# The virtual environment keeps pip, which fetches bundled models.
RUN python -m pip install --no-cache-dir --root-user-action=ignore 'uv>=0.13' \
 && python -m venv /opt/stepwire
ENV VIRTUAL_ENV=/opt/stepwire UV_NO_CACHE=1 UV_LINK_MODE=copy UV_SYSTEM_CERTS=1
# Which build of PyTorch: cpu, a CUDA version such as cu130, or any other value of uv's --torch-backend;
# empty takes the one of the package index. TORCH may also be "torch @ URL-OF-A-WHEEL".
ARG TORCH_BACKEND=cpu
ARG TORCH=torch==2.13.0
RUN uv pip install --compile-bytecode ${TORCH_BACKEND:+--torch-backend=${TORCH_BACKEND}} "${TORCH}"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
# Dependencies before the code: they change less often.
RUN uv pip install --compile-bytecode -r pyproject.toml --extra worker
COPY common common
COPY coordinator coordinator
COPY worker_service worker_service
COPY proto/gen proto/gen
RUN uv pip install --compile-bytecode --no-deps . \
 && /opt/stepwire/bin/python -P -c 'import worker_service.kernels._native'

FROM docker.io/library/python:3.11-slim-bookworm
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent stepwire \
 && install -d -o stepwire -g stepwire /models
COPY --from=build /opt/stepwire /opt/stepwire
ENV PATH=/opt/stepwire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STEPWIRE_CACHE=/models \
    HF_HOME=/models/huggingface \
    TRITON_CACHE_DIR=/tmp/triton
USER 10001:10001
# 50061 gRPC, 50062 hidden states
EXPOSE 50061 50062
ENTRYPOINT ["stepwire"]
CMD ["worker", "--help"]
