# asr_offline and asr_streaming on NVIDIA's tritonserver. Its images from 24.11 on have Python 3.12, which is needed.
ARG TRITON_TAG=25.06-py3
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# What the image's Python lacks to make a virtual environment.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 asr \
    && install --directory --owner=asr --group=asr /opt/asr /plans
WORKDIR /opt/asr
# Of the user asr, by number: hosts that know no such name can tell that it is not root.
USER 10001:10001
ENV HOME=/home/asr

# "gpu" adds PyTorch and TensorRT; "base" serves on CPUs.
ARG VARIANT=gpu
COPY --chown=asr:asr requirements requirements
COPY --chown=asr:asr scripts/environment.sh scripts/install.sh scripts/
RUN ./scripts/install.sh ${VARIANT}
COPY --chown=asr:asr LICENSE README.md ./
COPY --chown=asr:asr scripts scripts
COPY --chown=asr:asr oasr_backend oasr_backend
COPY --chown=asr:asr model_repository model_repository

ENV PLAN_DIR=/plans
VOLUME ["/plans"]
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["./scripts/health.sh"]
ENTRYPOINT ["./scripts/container.sh"]
