# Pizarra in a container. CPU by default; for NVIDIA GPUs:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t pizarra .
# The API key is asked for at start: the server listens beyond loopback in here. See deploy/compose.yaml.
FROM python:3.11-slim

# The C++ compiler builds CPU kernels on first use, and Triton needs it on a GPU.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/pizarra
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1

# Dependencies first: they change seldom, and a layer that has them is kept while the code changes.
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY scripts/bootstrap.sh scripts/bootstrap.py scripts/
RUN PIZARRA_TORCH_INDEX="$TORCH_INDEX" sh scripts/bootstrap.sh

COPY app/ app/
COPY engine/ engine/
COPY kernels/ kernels/
COPY db/ db/
COPY ui/ ui/
COPY assets/ assets/

RUN useradd --create-home --uid 1000 pizarra && install -d -o pizarra -g pizarra /data
USER pizarra
ENV PATH=/opt/pizarra/.venv/bin:$PATH \
    PIZARRA_HOME=/data \
    PIZARRA_HOST=0.0.0.0 \
    PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 7860
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/health', timeout=4)"]
ENTRYPOINT ["pizarra"]
CMD ["serve", "--model", "smollm2-135m-instruct"]
