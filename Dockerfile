# An image with the commands, from this clone:
#
#   docker build --tag agentgrpo .
#   docker build --build-arg DEVICE=gpu --tag agentgrpo:gpu .
#   mkdir -p work
#   docker run --rm -it --shm-size 8g --volume "$PWD/work:/work" agentgrpo demo
#
# DEVICE=gpu takes the pins of requirements-gpu.txt (CUDA); add `--gpus all` to docker run.
FROM python:3.11-slim-bookworm AS build
ARG DEVICE=cpu
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN pip install --no-cache-dir "uv==0.9.*"
WORKDIR /opt/agentgrpo
COPY . .
RUN if [[ $DEVICE == gpu ]]; then \
        uv venv --python 3.11 .venv && \
        uv pip install --no-cache --python .venv/bin/python --no-deps -r requirements-gpu.txt && \
        uv pip install --no-cache --python .venv/bin/python --no-deps --editable .; \
    else \
        UV_NO_CACHE=1 bash scripts/setup.sh; \
    fi

FROM python:3.11-slim-bookworm
# vLLM and Triton compile with gcc as they run; Debian keeps no older version of a package
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/agentgrpo /opt/agentgrpo
RUN useradd --create-home --uid 1000 agent && mkdir /work && chown agent /work
USER 1000
WORKDIR /work
ENTRYPOINT ["/opt/agentgrpo/.venv/bin/agentgrpo"]
CMD ["--help"]
