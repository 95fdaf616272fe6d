# The service alone: no Spark, no embedded broker, no test tools. A base image by its digest:
# docker build --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:... . (docs/security.md#what-is-installed)
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv /opt/overlay
# dependencies first: this layer stays as long as the lock does
COPY requirements-service.lock ./
RUN /opt/overlay/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement requirements-service.lock
# the build backend stays out of the image
COPY requirements-build.lock ./
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY overlay ./overlay
COPY spark ./spark
COPY examples ./examples
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels . \
 && /opt/overlay/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${PYTHON_IMAGE}
# numba keeps compiled kernels in the second folder; a volume there spares the next start the compilation
RUN useradd --system --uid 10001 --no-create-home overlay \
 && install --directory --owner overlay /etc/overlay /var/cache/overlay
COPY --from=build /opt/overlay /opt/overlay
ENV PATH=/opt/overlay/bin:$PATH \
    NUMBA_CACHE_DIR=/var/cache/overlay \
    PYTHONUNBUFFERED=1
USER overlay
VOLUME /var/cache/overlay
EXPOSE 8222
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8222/healthz', timeout=4)"]
ENTRYPOINT ["overlay"]
CMD ["run", "--config", "/etc/overlay"]
