# syntax=docker/dockerfile:1
# The gateway and the worker in one image: `docker run refold serve`, `docker run refold worker`.
# `python -m scripts.image_steps` runs these steps where there is no Docker engine.

FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/refold
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/refold/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    ".[cli,cluster,mcp,otel,postgres,prometheus,search,server,sqlite,tokens]"

FROM python:3.13-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin refold \
    && install --directory --owner refold --group refold --mode 0700 /data
COPY --from=build /opt/refold /opt/refold
ENV PATH=/opt/refold/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    REFOLD_SERVER_HOST=0.0.0.0 \
    REFOLD_SERVER_LOG=json \
    REFOLD_STORE_URL=sqlite:////data/refold.db
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 7336
STOPSIGNAL SIGTERM
# Whether the process answers. Whether requests should be sent to it is a question for the load balancer, at /readyz.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('REFOLD_SERVER_PORT', '7336') + '/healthz', timeout=4)"]
ENTRYPOINT ["refold"]
CMD ["serve"]
