# One image for every role. An external PostgreSQL: docker run -e BRAID_DATABASE_URL=... IMAGE serve --role all
# Everything in one container:                     docker run -v braid:/var/lib/braid -p 8000:8000 IMAGE

FROM python:3.13.9-slim-trixie AS build
WORKDIR /build
RUN python -m venv /opt/braid
COPY deploy/requirements.lock pyproject.toml README.md LICENSE NOTICE ./
RUN /opt/braid/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY service service
COPY migrations migrations
RUN /opt/braid/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13.9-slim-trixie
RUN groupadd --system --gid 10001 braid \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/braid --create-home braid
COPY --from=build /opt/braid /opt/braid
USER 10001:10001
ENV PATH=/opt/braid/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BRAID_HOST=0.0.0.0 \
    BRAID_DATA_DIR=/var/lib/braid
VOLUME /var/lib/braid
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD \
    ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('BRAID_PORT', '8000')}/livez\", timeout=2)"]
ENTRYPOINT ["braid"]
CMD ["up"]
